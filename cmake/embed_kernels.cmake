# cmake -DOUT=file.cc -DROOT=folder -P embed_kernels.cmake: the files of kernels/ as string literals, for
# codegen/kernel_headers.h.
file(GLOB headers RELATIVE ${ROOT} ${ROOT}/kernels/*/*.cuh ${ROOT}/kernels/layout/*.h)
list(SORT headers)
set(rows "")
foreach(header IN LISTS headers)
  file(READ ${ROOT}/${header} text)
  string(APPEND rows "    {\"${header}\", R\"cuh(${text})cuh\"},\n")
endforeach()
file(WRITE ${OUT} "#include \"codegen/kernel_headers.h\"\n\nnamespace llmc {\n\nabsl::Span<const SourceFile> KernelHeaders() {\n  static constexpr SourceFile kHeaders[] = {\n${rows}  };\n  return kHeaders;\n}\n\n}  // namespace llmc\n")

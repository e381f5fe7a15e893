# What llmc links. All of it comes from Debian 12 or Ubuntu 24.04; tools/setup.sh installs it.

find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ICU REQUIRED COMPONENTS uc i18n)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)

find_path(ONNX_INCLUDE_DIR onnx/onnx_pb.h REQUIRED)
find_library(ONNX_PROTO_LIBRARY onnx_proto REQUIRED)
add_library(onnx_proto INTERFACE)
target_include_directories(onnx_proto SYSTEM INTERFACE ${ONNX_INCLUDE_DIR})
target_compile_definitions(onnx_proto INTERFACE ONNX_NAMESPACE=onnx ONNX_ML=1)
target_link_libraries(onnx_proto INTERFACE ${ONNX_PROTO_LIBRARY} protobuf::libprotobuf)

find_path(ONIG_INCLUDE_DIR oniguruma.h REQUIRED)
find_library(ONIG_LIBRARY onig REQUIRED)
add_library(oniguruma INTERFACE)
target_include_directories(oniguruma SYSTEM INTERFACE $<BUILD_INTERFACE:${ONIG_INCLUDE_DIR}>)
target_link_libraries(oniguruma INTERFACE ${ONIG_LIBRARY})

# Its own CMake files ask for programs that Debian packages apart.
find_path(ZIP_INCLUDE_DIR zip.h REQUIRED)
find_library(ZIP_LIBRARY zip REQUIRED)
add_library(libzip INTERFACE)
target_include_directories(libzip SYSTEM INTERFACE ${ZIP_INCLUDE_DIR})
target_link_libraries(libzip INTERFACE ${ZIP_LIBRARY})

find_path(EIGEN_INCLUDE_DIR Eigen/Dense PATH_SUFFIXES eigen3 REQUIRED)
add_library(eigen INTERFACE)
target_include_directories(eigen SYSTEM INTERFACE $<BUILD_INTERFACE:${EIGEN_INCLUDE_DIR}>)

find_path(DLPACK_INCLUDE_DIR dlpack/dlpack.h REQUIRED)
add_library(dlpack INTERFACE)
target_include_directories(dlpack SYSTEM INTERFACE $<BUILD_INTERFACE:${DLPACK_INCLUDE_DIR}>)

# The parts of Abseil that every library may use.
add_library(llmc_absl INTERFACE)
target_link_libraries(llmc_absl INTERFACE
  absl::status absl::statusor absl::strings absl::str_format absl::cord absl::span absl::inlined_vector
  absl::flat_hash_map absl::flat_hash_set absl::btree absl::hash absl::int128 absl::bits absl::time
  absl::synchronization absl::cleanup absl::function_ref absl::algorithm_container absl::core_headers)

# Nothing links CUDA: NVRTC and cuBLASLt are opened when first needed.
find_path(LLMC_CUDA_INCLUDE_DIR nvrtc.h
  HINTS ${LLMC_CUDA_ROOT} $ENV{CUDA_HOME}
  PATHS /usr/local/cuda ${PROJECT_SOURCE_DIR}/third_party/cuda/nvidia/cu13
  PATH_SUFFIXES include targets/x86_64-linux/include)
get_filename_component(llmc_cuda_root_found "${LLMC_CUDA_INCLUDE_DIR}" DIRECTORY)
set(LLMC_CUDA_ROOT "${llmc_cuda_root_found}" CACHE PATH "CUDA toolkit or the folder of NVIDIA's wheels, if any")
message(STATUS "CUDA: ${LLMC_CUDA_ROOT}")
# Ranges for NVIDIA's profilers, if the toolkit's headers are here.
find_path(LLMC_NVTX_INCLUDE_DIR nvtx3/nvToolsExt.h HINTS ${LLMC_CUDA_ROOT}/include ${LLMC_CUDA_INCLUDE_DIR})

if(LLMC_BUILD_TESTS)
  find_package(GTest REQUIRED)
endif()

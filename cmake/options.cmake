# Language level, warnings and flags of our own targets; users of the libraries get none of them but the language level.

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR})

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

# mold links in a tenth of the time.
find_program(LLMC_MOLD mold)
if(LLMC_MOLD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 12.1)
  add_link_options(-fuse-ld=mold)
endif()

add_library(llmc_options INTERFACE)
target_link_options(llmc_options INTERFACE LINKER:--as-needed)
target_compile_definitions(llmc_options INTERFACE LLMC_VERSION="${PROJECT_VERSION}")
# Designated initializers leave fields at their defaults on purpose.
target_compile_options(llmc_options INTERFACE -Wall -Wextra -Wno-missing-field-initializers)
if(LLMC_WERROR)
  target_compile_options(llmc_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC 12 sees overlaps and uninitialized reads in the standard library that are not there.
  target_compile_options(llmc_options INTERFACE -Wno-restrict -Wno-maybe-uninitialized)
endif()
# An expression gives the same number wherever it is inlined; ir/ops_matmul.cc asks for fused multiply-add itself.
target_compile_options(llmc_options INTERFACE -ffp-contract=off)
if(LLMC_MARCH AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  target_compile_options(llmc_options INTERFACE -march=${LLMC_MARCH})
endif()
if(LLMC_DEBUG_CHECKS)
  target_compile_definitions(llmc_options INTERFACE LLMC_DEBUG_CHECKS)
endif()
if(LLMC_FUZZ)
  target_compile_options(llmc_options INTERFACE -O1 -g1 -fno-omit-frame-pointer
    -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all)
  target_link_options(llmc_options INTERFACE -fsanitize=address,undefined)
endif()
# To save time, tests are not checked for undefined behavior; libraries are, but for functions of their headers that a test
# has a copy of. Of its checks those of types are left out, and those of null pointers and
# sizes of objects, whose accesses the address sanitizer finds.
add_library(llmc_sanitized INTERFACE)
if(LLMC_SANITIZE)
  set(sanitizers ${LLMC_SANITIZE})
  string(REPLACE "," ";" sanitizers "${sanitizers}")
  target_link_options(llmc_options INTERFACE -fsanitize=${LLMC_SANITIZE})
  target_compile_options(llmc_sanitized INTERFACE -fsanitize=${LLMC_SANITIZE} -fno-sanitize=null,object-size,vptr
    -fno-sanitize-recover=all)
  list(REMOVE_ITEM sanitizers undefined)
  foreach(sanitizer IN LISTS sanitizers)
    target_compile_options(llmc_options INTERFACE -fsanitize=${sanitizer} -fno-omit-frame-pointer)
  endforeach()
endif()

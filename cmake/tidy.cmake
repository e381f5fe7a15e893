# `cmake --build build-dev --target tidy` runs clang-tidy on our sources.
find_program(RUN_CLANG_TIDY NAMES run-clang-tidy-14 run-clang-tidy)
if(RUN_CLANG_TIDY)
  add_custom_target(tidy
    COMMAND ${RUN_CLANG_TIDY} -quiet -p ${PROJECT_BINARY_DIR}
      "${PROJECT_SOURCE_DIR}/(files|ir|frontend|passes|codegen|runtime|tools|tests)/.*\\.cc$"
    WORKING_DIRECTORY ${PROJECT_SOURCE_DIR} VERBATIM)
endif()

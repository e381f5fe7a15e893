# llmc_add_directories(DIR...)
function(llmc_add_directories)
  foreach(dir IN LISTS ARGN)
    add_subdirectory(${dir})
  endforeach()
endfunction()

# llmc_library(NAME [DEPS target...]): the library llmc_NAME, of every *.cc in this directory except main.cc.
# The directory runtime/text is NAME runtime_text.
function(llmc_library name)
  cmake_parse_arguments(ARG "" "" "DEPS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  add_library(llmc_${name} STATIC ${sources})
  target_link_libraries(llmc_${name} PUBLIC llmc_absl Threads::Threads ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:llmc_options>)
  target_include_directories(llmc_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/llmc>)
  target_compile_features(llmc_${name} PUBLIC cxx_std_20)
endfunction()

# llmc_test(NAME [SOURCES file...] [DEPS target...] [LABELS label...] [TIMEOUT seconds]): one program, one ctest entry.
# SOURCES defaults to NAME.cc. Target tests_LABEL builds all tests of one label.
function(llmc_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;DEPS;LABELS" ${ARGN})
  if(NOT ARG_SOURCES)
    set(ARG_SOURCES ${name}.cc)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE llmc_options ${ARG_DEPS} GTest::gmock GTest::gtest GTest::gtest_main)
  target_compile_definitions(${name} PRIVATE
    LLMC_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data" LLMC_SHARED_DATA="${LLMC_SHARED_DATA}")
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  # COST: what may take longest starts first.
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_TIMEOUT})
  foreach(label IN LISTS ARG_LABELS)
    if(NOT TARGET tests_${label})
      add_custom_target(tests_${label})
    endif()
    add_dependencies(tests_${label} ${name})
  endforeach()
endfunction()

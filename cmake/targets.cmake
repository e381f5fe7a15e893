# llmc_add_directories(DIR...)
function(llmc_add_directories)
  foreach(dir IN LISTS ARGN)
    add_subdirectory(${dir})
  endforeach()
endfunction()

# llmc_unity(TARGET): compiles several files as one, where that is asked for (LLMC_UNITY). Headers are then read once for all
# of them, which is most of the work of compiling this project; names in unnamed namespaces must differ within a library.
function(llmc_unity target)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ${LLMC_UNITY})
  cmake_language(EVAL CODE "cmake_language(DEFER DIRECTORY [[${PROJECT_SOURCE_DIR}]] CALL llmc_unity_batches ${target})")
  if(LLMC_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC takes a source that another one includes for a header.
    target_compile_options(${target} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# About 40 files in each, and in all the same number. Called when all sources are known.
function(llmc_unity_batches target)
  get_target_property(sources ${target} SOURCES)
  list(REMOVE_DUPLICATES sources)
  list(LENGTH sources files)
  math(EXPR batches "(${files} + 20) / 40")
  if(batches LESS 1)
    set(batches 1)
  endif()
  math(EXPR size "(${files} + ${batches} - 1) / ${batches}")
  set_target_properties(${target} PROPERTIES UNITY_BUILD_BATCH_SIZE ${size})
endfunction()

# llmc_library(NAME [ROOMS folder...] [DEPS target...]): the library llmc_NAME, of every *.cc in this directory and in those
# folders of it, except main.cc.
# The directory runtime/text is NAME runtime_text.
function(llmc_library name)
  cmake_parse_arguments(ARG "" "" "ROOMS;DEPS" ${ARGN})
  list(TRANSFORM ARG_ROOMS APPEND "/*.cc")
  file(GLOB sources CONFIGURE_DEPENDS *.cc ${ARG_ROOMS})
  list(FILTER sources EXCLUDE REGEX "/main\\.cc$")
  add_library(llmc_${name} STATIC ${sources})
  target_link_libraries(llmc_${name} PUBLIC llmc_absl Threads::Threads ${ARG_DEPS} PRIVATE $<BUILD_INTERFACE:llmc_options>
    $<BUILD_INTERFACE:llmc_sanitized>)
  target_include_directories(llmc_${name} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/llmc>)
  target_compile_features(llmc_${name} PUBLIC cxx_std_20)
  llmc_unity(llmc_${name})
endfunction()

# llmc_test(NAME [SOURCES file...] [DEPS target...] [LABELS label] [TIMEOUT seconds] [COST seconds] [PARTS n]
#   [DEFINITIONS definition...] [ENVIRONMENT variable=value...] [RUNS target...] [FIXTURES fixture...] [OWN_PROGRAM]):
# one ctest entry, or NAME.1 to NAME.n, which have a part of the tests each and may run side by side. SOURCES defaults
# to NAME.cc; the tests are those of NAME.cc, others help. RUNS are programs that it starts. It is a program of its own,
# tests/NAME, or with LLMC_UNITY one of all tests with the same label, tests/LABEL_tests, which takes --tests_of=NAME;
# with OWN_PROGRAM always tests/NAME, and all tests of its sources. Target tests_LABEL builds all tests of one label.
function(llmc_test name)
  cmake_parse_arguments(ARG "OWN_PROGRAM" "TIMEOUT;COST;LABELS;PARTS" "SOURCES;DEPS;DEFINITIONS;ENVIRONMENT;RUNS;FIXTURES" ${ARGN})
  if(NOT ARG_SOURCES)
    set(ARG_SOURCES ${name}.cc)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  if(NOT ARG_COST)
    set(ARG_COST ${ARG_TIMEOUT})
  endif()
  llmc_test_program(${name} ${ARG_LABELS} ${ARG_OWN_PROGRAM})
  target_sources(${program} PRIVATE ${ARG_SOURCES})
  target_link_libraries(${program} PRIVATE ${ARG_DEPS})
  target_compile_definitions(${program} PRIVATE ${ARG_DEFINITIONS})
  if(ARG_RUNS)
    add_dependencies(${program} ${ARG_RUNS})
  endif()
  if(NOT ARG_PARTS)
    set(ARG_PARTS 1)
  endif()
  foreach(part RANGE 1 ${ARG_PARTS})
    set(entry ${name})
    set(shard "")
    if(ARG_PARTS GREATER 1)
      math(EXPR index "${part} - 1")
      set(entry ${name}.${part})
      set(shard GTEST_TOTAL_SHARDS=${ARG_PARTS} GTEST_SHARD_INDEX=${index})
    endif()
    add_test(NAME ${entry} COMMAND ${program} ${arguments} WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
    # COST: what may take longest starts first.
    set_tests_properties(${entry} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} COST ${ARG_COST}
      ENVIRONMENT "${ARG_ENVIRONMENT};${shard}" FIXTURES_REQUIRED "${ARG_FIXTURES}")
  endforeach()
endfunction()

# Sets `program` to the target that holds the tests of NAME, which may be there already, and `arguments` to what makes it
# run those alone.
function(llmc_test_program name label own)
  if(LLMC_UNITY AND NOT own)
    set(program ${label}_tests)
    set(arguments --tests_of=${name} PARENT_SCOPE)
  else()
    set(program ${name})
    set(arguments "" PARENT_SCOPE)
  endif()
  set(program ${program} PARENT_SCOPE)
  if(TARGET ${program})
    return()
  endif()
  add_executable(${program} ${PROJECT_SOURCE_DIR}/tests/main.cc)
  set_source_files_properties(${PROJECT_SOURCE_DIR}/tests/main.cc PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(${program} PRIVATE llmc_options llmc_test_data GTest::gmock GTest::gtest)
  target_compile_definitions(${program} PRIVATE LLMC_TEST_DATA="${PROJECT_SOURCE_DIR}/tests/data")
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/tests)
  llmc_unity(${program})
  if(label IN_LIST LLMC_TESTS_NOT_IN_ALL)
    set_target_properties(${program} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
  if(NOT TARGET tests_${label})
    add_custom_target(tests_${label})
  endif()
  add_dependencies(tests_${label} ${program})
endfunction()

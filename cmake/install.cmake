# `cmake --install build`: the command, and the runtime for find_package(llmc) with the targets llmc::runtime, and
# llmc::device, which runs plans on GPUs only: without the language's parser and evaluator; and llmc::chat, chat templates.
include(CMakePackageConfigHelpers)

add_library(llmc::runtime ALIAS llmc_runtime_host)
set_target_properties(llmc_runtime_host PROPERTIES EXPORT_NAME runtime)
add_library(llmc::device ALIAS llmc_runtime)
set_target_properties(llmc_runtime PROPERTIES EXPORT_NAME device)
add_library(llmc::chat ALIAS llmc_runtime_chat)
set_target_properties(llmc_runtime_chat PROPERTIES EXPORT_NAME chat)
set(llmc_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/llmc)

install(TARGETS llmc RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(TARGETS llmc_base llmc_files llmc_cubins llmc_runtime_host llmc_runtime llmc_runtime_text llmc_runtime_chat llmc_plan_proto llmc_ir llmc_absl oniguruma
  EXPORT llmc ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(EXPORT llmc NAMESPACE llmc:: FILE llmcTargets.cmake DESTINATION ${llmc_cmake_dir})
foreach(dir base files cubins kernels/layout runtime runtime/device runtime/engine runtime/plan runtime/text runtime/chat)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${dir}/*.h)
  install(FILES ${headers} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/llmc/${dir})
endforeach()
install(FILES ${PROJECT_BINARY_DIR}/generated/runtime/plan/plan.pb.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/llmc/runtime/plan)

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/llmcConfig.cmake.in ${PROJECT_BINARY_DIR}/llmcConfig.cmake
  INSTALL_DESTINATION ${llmc_cmake_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/llmcConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/llmcConfig.cmake ${PROJECT_BINARY_DIR}/llmcConfigVersion.cmake
  DESTINATION ${llmc_cmake_dir})

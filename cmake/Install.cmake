# cmake --install and find_package(faultline).

if(NOT built_rooms)
  return()
endif()
include(CMakePackageConfigHelpers)
set(include_root ${CMAKE_INSTALL_INCLUDEDIR}/faultline-${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
set(package_root ${CMAKE_INSTALL_LIBDIR}/cmake/faultline)

add_library(faultline_all INTERFACE)
add_library(faultline::faultline ALIAS faultline_all)
set_target_properties(faultline_all PROPERTIES EXPORT_NAME faultline)
set(library_targets faultline_all)
foreach(room IN LISTS built_rooms)
  target_link_libraries(faultline_all INTERFACE faultline::${room})
  list(APPEND library_targets faultline_${room})
  # Unlike install(DIRECTORY), this leaves no empty folders.
  file(GLOB_RECURSE headers CONFIGURE_DEPENDS RELATIVE ${PROJECT_SOURCE_DIR}
    ${PROJECT_SOURCE_DIR}/${room}/*.h ${PROJECT_SOURCE_DIR}/${room}/*.def)
  foreach(header IN LISTS headers)
    get_filename_component(folder ${header} DIRECTORY)
    install(FILES ${PROJECT_SOURCE_DIR}/${header} DESTINATION ${include_root}/${folder})
  endforeach()
endforeach()
install(FILES ${generated_dir}/version.h DESTINATION ${include_root})
install(TARGETS ${library_targets} EXPORT faultline ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET faultline)
  install(TARGETS faultline RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()

install(EXPORT faultline NAMESPACE faultline:: FILE faultline-targets.cmake DESTINATION ${package_root})
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/faultline-config.cmake.in
  ${PROJECT_BINARY_DIR}/faultline-config.cmake INSTALL_DESTINATION ${package_root})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/faultline-config-version.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES
  ${PROJECT_BINARY_DIR}/faultline-config.cmake
  ${PROJECT_BINARY_DIR}/faultline-config-version.cmake
  ${PROJECT_SOURCE_DIR}/cmake/FaultlineDependencies.cmake
  DESTINATION ${package_root})

# Installs headers, libraries, the binary and a package file, so that find_package(kadence) works. Included last.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)
set(modules base device ops state prefix model engine)
set(targets kadence_options kadence_ops_kda kadence_ops_nn)
foreach(m IN LISTS modules)
  list(APPEND targets kadence_${m})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${m} DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kadence FILES_MATCHING PATTERN "*.h"
          PATTERN "testing" EXCLUDE PATTERN "cuda" EXCLUDE PATTERN "cpu" EXCLUDE PATTERN "reference" EXCLUDE PATTERN "*_impl.h" EXCLUDE PATTERN "*-inl.h" EXCLUDE)
endforeach()
install(TARGETS ${targets} EXPORT kadenceTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(TARGETS kadence RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(EXPORT kadenceTargets NAMESPACE kadence:: DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kadence)
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/kadenceConfig.cmake.in ${PROJECT_BINARY_DIR}/kadenceConfig.cmake
                              INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kadence)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/kadenceConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/kadenceConfig.cmake ${PROJECT_BINARY_DIR}/kadenceConfigVersion.cmake
        DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/kadence)

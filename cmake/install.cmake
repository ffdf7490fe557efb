# SPDX-License-Identifier: Apache-2.0
# What `make install` puts where: headers, libraries, the command, its manual page and completions, a CMake package and a
# pkg-config file. Both of the latter find the prefix from their own place, so that an installed tree can be moved.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(PITH_CMAKE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/pith)

set_target_properties(pith_shared PROPERTIES EXPORT_NAME pith)
set_target_properties(pith_headers PROPERTIES EXPORT_NAME headers)
install(TARGETS pith_shared pith_static pith_headers EXPORT pithTargets)
install(TARGETS pith_cli)
if(TARGET pith_cuda)
  install(PROGRAMS ${PITH_CUDA_MODULE} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pith)
endif()
install(DIRECTORY include/pith DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
if(TARGET pith_manual)
  install(FILES ${PITH_MANUAL_DIR}/pith.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
  install(FILES ${PITH_MANUAL_DIR}/pith DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
  install(FILES ${PITH_MANUAL_DIR}/_pith DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)
  install(FILES ${PITH_MANUAL_DIR}/pith.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)
endif()
install(EXPORT pithTargets NAMESPACE pith:: DESTINATION ${PITH_CMAKE_DIR})

configure_package_config_file(cmake/pithConfig.cmake.in ${CMAKE_BINARY_DIR}/pithConfig.cmake
                              INSTALL_DESTINATION ${PITH_CMAKE_DIR})
write_basic_package_version_file(${CMAKE_BINARY_DIR}/pithConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/pithConfig.cmake ${CMAKE_BINARY_DIR}/pithConfigVersion.cmake
        DESTINATION ${PITH_CMAKE_DIR})

file(RELATIVE_PATH PITH_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" PITH_PC_PREFIX "${PITH_PC_PREFIX}")
configure_file(cmake/pith.pc.in ${CMAKE_BINARY_DIR}/pith.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/pith.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

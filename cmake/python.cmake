# SPDX-License-Identifier: Apache-2.0
# What the Python package carries: the library, the command, the transport modules and, if it is built, the CUDA module, in one folder, where
# each finds the others (src/base/module_file.c), and the C headers. pyproject.toml builds the target pith_python and installs the
# component python.
add_custom_target(pith_python DEPENDS pith_shared pith_cli ${PITH_MODULES})

# The headers, for pith.get_include(). A wheel has no links, so the library has one name: the one that programs which are linked with it
# look for at run time.
install(DIRECTORY include/pith DESTINATION include COMPONENT python EXCLUDE_FROM_ALL)
install(FILES $<TARGET_FILE:pith_shared> DESTINATION _native RENAME $<TARGET_SONAME_FILE_NAME:pith_shared> COMPONENT python
        EXCLUDE_FROM_ALL)
foreach(target pith_cli ${PITH_MODULES})
  install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION _native COMPONENT python EXCLUDE_FROM_ALL)
endforeach()
if(TARGET pith_cuda)
  add_dependencies(pith_python pith_cuda)
  install(PROGRAMS ${PITH_CUDA_MODULE} DESTINATION _native COMPONENT python EXCLUDE_FROM_ALL)
endif()
if(PITH_MANUAL_DIR AND DEFINED SKBUILD_DATA_DIR) # scikit-build-core's: what goes beside the interpreter
  add_dependencies(pith_python pith_manual)
  install(FILES ${PITH_MANUAL_DIR}/pith.1 DESTINATION ${SKBUILD_DATA_DIR}/share/man/man1 COMPONENT python EXCLUDE_FROM_ALL)
endif()

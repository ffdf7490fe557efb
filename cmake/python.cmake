# What the Python package carries: the library, the command, the transport modules and the CUDA module if it is built, in one folder, where each finds the others
# (src/base/module_file.c). pyproject.toml builds the target pith_python and installs the component python.
add_custom_target(pith_python DEPENDS pith_shared pith_cli ${PITH_MODULES})

# A wheel has no links, so the library has one name.
install(FILES $<TARGET_FILE:pith_shared> DESTINATION _native RENAME libpith.so COMPONENT python EXCLUDE_FROM_ALL)
foreach(target pith_cli ${PITH_MODULES})
  install(PROGRAMS $<TARGET_FILE:${target}> DESTINATION _native COMPONENT python EXCLUDE_FROM_ALL)
endforeach()
if(TARGET pith_cuda)
  add_dependencies(pith_python pith_cuda)
  install(PROGRAMS ${PITH_CUDA_MODULE} DESTINATION _native COMPONENT python EXCLUDE_FROM_ALL)
endif()

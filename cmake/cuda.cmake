# The CUDA module: built if nvcc is installed, opened at run time (src/engine/cuda.c). It sees src/ for the formats and does not
# link to the library; CUDA's runtime is inside it, so that machines need the driver alone.
option(PITH_CUDA "Build the CUDA module if nvcc is found; takes some minutes" OFF)
set(PITH_CUDA_ARCHITECTURES "80;90;100;120" CACHE STRING
    "Compute capabilities to build code for; \"90\" alone builds fastest. Minor versions above one run its code; all others compile PTX at first use")
set(PITH_CUDA_PTX "75" CACHE STRING "The oldest compute capability, whose PTX serves older and future devices")

find_program(PITH_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
mark_as_advanced(PITH_NVCC)

# Of the architectures wanted, those this nvcc knows: new ones come and old ones go with its versions.
function(pith_cuda_flags flags names)
  execute_process(COMMAND ${PITH_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REPLACE "\n" ";" known "${known}")
  set(found "")
  foreach(wanted ${PITH_CUDA_ARCHITECTURES})
    if("sm_${wanted}" IN_LIST known)
      list(APPEND found -gencode arch=compute_${wanted},code=sm_${wanted})
      list(APPEND list sm_${wanted})
    endif()
  endforeach()
  list(APPEND found -gencode arch=compute_${PITH_CUDA_PTX},code=compute_${PITH_CUDA_PTX} -Xfatbin -compress-all)
  list(JOIN list " " list)
  set(${flags} "${found}" PARENT_SCOPE)
  set(${names} "${list}" PARENT_SCOPE)
endfunction()

if(NOT PITH_CUDA)
  message(STATUS "CUDA module: not built (-DPITH_CUDA=ON or `make cuda` builds it)")
elseif(NOT PITH_NVCC)
  message(STATUS "No CUDA compiler (nvcc): the CUDA module is not built")
else()
  pith_cuda_flags(PITH_CUDA_FLAGS PITH_CUDA_NAMES)
  file(GLOB PITH_CUDA_SOURCES CONFIGURE_DEPENDS cuda/*.cu)
  file(GLOB PITH_CUDA_HEADERS CONFIGURE_DEPENDS cuda/*.cuh)
  set(PITH_CUDA_OBJECTS "")
  foreach(source ${PITH_CUDA_SOURCES}) # by hand: CMake's own CUDA language insists on a C++ compiler of its own
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${PITH_NVCC} ${PITH_CUDA_FLAGS} -std=c++17 -O3 -fmad=false -I${PROJECT_SOURCE_DIR}/src
              -I${PROJECT_SOURCE_DIR}/include -ccbin ${CMAKE_C_COMPILER} -Xcompiler -fPIC,-fvisibility=hidden,-Wall
              -c ${source} -o ${object}
      DEPENDS ${source} ${PITH_CUDA_HEADERS} ${PROJECT_SOURCE_DIR}/src/kernel/formats.h
      COMMENT "nvcc ${name} (${PITH_CUDA_NAMES})" VERBATIM)
    list(APPEND PITH_CUDA_OBJECTS ${object})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)
  set(PITH_CUDA_MODULE ${CMAKE_BINARY_DIR}/libpith_cuda.so)
  add_custom_command(OUTPUT ${PITH_CUDA_MODULE}
    COMMAND ${PITH_NVCC} ${PITH_CUDA_FLAGS} -ccbin ${CMAKE_C_COMPILER} -shared -o ${PITH_CUDA_MODULE} ${PITH_CUDA_OBJECTS}
    DEPENDS ${PITH_CUDA_OBJECTS} COMMENT "nvcc libpith_cuda.so" VERBATIM)
  add_custom_target(pith_cuda ALL DEPENDS ${PITH_CUDA_MODULE})
  install(FILES ${PITH_CUDA_MODULE} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pith)
  message(STATUS "CUDA module: ${PITH_CUDA_NAMES} (${PITH_NVCC})")
endif()

# Tests and benchmark open the driver at run time: they compile everywhere, and say why they are skipped where no GPU is. In the
# build folder's root, beside the module.
if(PITH_TESTS)
  add_executable(cuda_test tests/cuda/cuda_test.c tests/cuda/lowrank_test.c tests/cuda/mean_test.c tests/cuda/planning_test.c
                 tests/cuda/whole_test.c tests/test.c)
  add_executable(cuda_bench tests/cuda/cuda_bench.c)
  add_executable(nccl_test tests/cuda/nccl_test.c) # one process for each rank: tests/cuda/run.sh FOLDER nccl device
  add_executable(device_test tests/cuda/device_test.c)
  foreach(program cuda_test cuda_bench nccl_test device_test)
    target_include_directories(${program} PRIVATE tests src)
    target_link_libraries(${program} PRIVATE pith_static)
    set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  endforeach()
endif()

# SPDX-License-Identifier: Apache-2.0
# The CUDA module, libpith_cuda.so: the kernels and CUDA's runtime in one file, opened at run time (src/device/cuda.c). It does not link to
# the library, and needs libc alone: host code has no exceptions, so that no C++ library is asked for. One line of the configuration
# says what is built, or why it is not.
set(PITH_CUDA OFF CACHE STRING "The CUDA module: ON (an error where nvcc is missing), AUTO (where nvcc works; the Python package does) or OFF")
set_property(CACHE PITH_CUDA PROPERTY STRINGS OFF AUTO ON)
set(PITH_CUDA_ARCHITECTURES native CACHE STRING
    "Compute capabilities to build for: native (that of this machine's GPU), all (a release), or a list such as \"80;90\"")
set(PITH_CUDA_FLAGS "" CACHE STRING "More flags for nvcc, such as -lineinfo")
set(PITH_CUDA_RELEASE 80 90 100 120) # what "all" is; minor versions above one run its code
set(PITH_CUDA_RELEASE_PTX 75)        # and all other devices from this one on compile it at first use
set(PITH_CUDA_USUAL 80)              # "native" on a machine without a GPU: later devices compile its PTX at first use

find_program(PITH_NVCC nvcc HINTS ENV CUDA_HOME ENV CUDA_PATH /usr/local/cuda PATH_SUFFIXES bin)
find_program(PITH_NVIDIA_SMI nvidia-smi)
mark_as_advanced(PITH_NVCC PITH_NVIDIA_SMI PITH_CUDA_FLAGS)

# The compute capabilities of the GPUs here, such as "80;90"; nothing if there is none.
function(pith_cuda_devices found)
  set(capabilities "")
  if(PITH_NVIDIA_SMI)
    execute_process(COMMAND ${PITH_NVIDIA_SMI} --query-gpu=compute_cap --format=csv,noheader OUTPUT_VARIABLE said
                    RESULT_VARIABLE failed ERROR_QUIET)
    if(NOT failed)
      string(REGEX MATCHALL "[0-9]+\\.[0-9]" capabilities "${said}")
      string(REPLACE "." "" capabilities "${capabilities}")
      list(REMOVE_DUPLICATES capabilities)
    endif()
  endif()
  set(${found} "${capabilities}" PARENT_SCOPE)
endfunction()

# Sets `flags` for nvcc and `text`, what they mean in words; `problem` where an architecture is wanted that this nvcc does not know.
function(pith_cuda_targets flags text problem)
  execute_process(COMMAND ${PITH_NVCC} --list-gpu-code OUTPUT_VARIABLE known ERROR_QUIET)
  string(REGEX MATCHALL "sm_[0-9]+[af]?" known "${known}")
  set(wanted ${PITH_CUDA_ARCHITECTURES})
  set(ptx "")
  set(why "")
  if(wanted STREQUAL native)
    pith_cuda_devices(wanted)
    foreach(number ${wanted})
      if(NOT "sm_${number}" IN_LIST known)
        set(why ", for a GPU that nvcc does not know (sm_${number})")
        set(wanted "")
      endif()
    endforeach()
    if(NOT wanted)
      set(wanted ${PITH_CUDA_USUAL})
    endif()
  elseif(wanted STREQUAL all)
    set(wanted "")
    foreach(number ${PITH_CUDA_RELEASE})
      if("sm_${number}" IN_LIST known) # new ones come and old ones go with the versions of nvcc
        list(APPEND wanted ${number})
      endif()
    endforeach()
    set(ptx ${PITH_CUDA_RELEASE_PTX})
  endif()
  set(found "")
  set(codes "")
  foreach(number ${wanted})
    if(NOT "sm_${number}" IN_LIST known)
      list(JOIN known " " known)
      set(${problem} "nvcc does not know sm_${number} (PITH_CUDA_ARCHITECTURES), but ${known}" PARENT_SCOPE)
      return()
    endif()
    list(APPEND found -gencode arch=compute_${number},code=sm_${number})
    list(APPEND codes sm_${number})
  endforeach()
  if(NOT ptx) # of the newest: made on the way to its code
    list(SORT wanted COMPARE NATURAL)
    list(GET wanted -1 ptx)
  endif()
  list(APPEND found -gencode arch=compute_${ptx},code=compute_${ptx})
  list(JOIN codes ", " codes)
  set(${flags} ${found} PARENT_SCOPE)
  set(${text} "${codes} and PTX ${ptx}${why}" PARENT_SCOPE)
  set(${problem} "" PARENT_SCOPE)
endfunction()

# From version 13 on, nvcc launches kernels through static variables, whose guards are in the C++ library; the macro has it launch as before.
set(PITH_CUDA_COMPILE -std=c++17 -O3 -fmad=false -ccbin ${CMAKE_C_COMPILER}
    -Xcompiler -fPIC,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-Wall,-D__NV_LEGACY_LAUNCH)

# Whether nvcc and the compiler behind it work: a C compiler may come without C++, or be too new. Sets `problem` to what they say.
function(pith_cuda_try problem)
  set(try ${CMAKE_BINARY_DIR}/CMakeFiles/pith_cuda_try.cu)
  file(WRITE ${try} "__global__ void kernel(int *x) { *x = 1; }\n")
  execute_process(COMMAND ${PITH_NVCC} ${PITH_CUDA_COMPILE} -c ${try} -o ${try}.o RESULT_VARIABLE failed
                  OUTPUT_VARIABLE said ERROR_VARIABLE said)
  set(${problem} "" PARENT_SCOPE)
  if(failed)
    string(STRIP "${said}" said)
    string(REGEX MATCH "[^\n]*(error|fatal)[^\n]*" line "${said}")
    if(NOT line)
      string(REGEX REPLACE "\n.*" "" line "${said}")
    endif()
    set(${problem} "${PITH_NVCC} with ${CMAKE_C_COMPILER} does not work: ${line}" PARENT_SCOPE)
  endif()
endfunction()

function(pith_add_cuda flags)
  file(GLOB sources CONFIGURE_DEPENDS cuda/*.cu)
  file(GLOB headers CONFIGURE_DEPENDS cuda/*.cuh cuda/*.h)
  set(objects "")
  foreach(source ${sources}) # by hand: CMake's own CUDA language insists on a C++ compiler of its own
    get_filename_component(name ${source} NAME)
    set(object ${CMAKE_BINARY_DIR}/cuda/${name}.o)
    add_custom_command(OUTPUT ${object}
      COMMAND ${PITH_NVCC} ${flags} ${PITH_CUDA_COMPILE} --threads 4 -Xfatbin -compress-all ${PITH_CUDA_FLAGS}
              -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include -c ${source} -o ${object}
      DEPENDS ${source} ${headers} ${PROJECT_SOURCE_DIR}/src/kernel/formats.h COMMENT "nvcc ${name}" VERBATIM)
    list(APPEND objects ${object})
  endforeach()
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/cuda)

  # What is undefined is an error here, and what is exported is the entry alone: other copies of CUDA's runtime in the process are not ours.
  add_custom_command(OUTPUT ${PITH_CUDA_MODULE}
    COMMAND ${PITH_NVCC} ${flags} -ccbin ${CMAKE_C_COMPILER} -cudart static -shared -Xlinker --exclude-libs=ALL,-z,defs -o ${PITH_CUDA_MODULE}
            ${objects}
    COMMAND open_cuda_module ${PITH_CUDA_MODULE}
    DEPENDS ${objects} open_cuda_module COMMENT "nvcc libpith_cuda.so" VERBATIM)
  add_custom_target(pith_cuda ALL DEPENDS ${PITH_CUDA_MODULE})

  # The build ends by opening the module as the library would, which needs no GPU.
  add_executable(open_cuda_module EXCLUDE_FROM_ALL cuda/open_module.c)
  target_include_directories(open_cuda_module PRIVATE src include)
  target_link_libraries(open_cuda_module PRIVATE ${CMAKE_DL_LIBS})
endfunction()

set(PITH_CUDA_MODULE ${CMAKE_BINARY_DIR}/libpith_cuda.so)
set(problem "")
if(NOT PITH_CUDA)
  message(STATUS "CUDA module: not built (PITH_CUDA=ON or `make cuda` builds it)")
else()
  if(NOT PITH_NVCC)
    set(problem "there is no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
  else()
    pith_cuda_try(problem)
    if(NOT problem)
      pith_cuda_targets(PITH_CUDA_TARGETS PITH_CUDA_TEXT problem)
    endif()
  endif()
  if(NOT problem)
    pith_add_cuda("${PITH_CUDA_TARGETS}")
    message(STATUS "CUDA module: ${PITH_CUDA_TEXT}, by ${PITH_NVCC}")
  elseif(PITH_CUDA STREQUAL AUTO)
    message(STATUS "CUDA module: not built: ${problem}")
  else()
    message(FATAL_ERROR "CUDA module: ${problem}")
  endif()
endif()

# Tests and benchmark open the driver at run time: they compile everywhere, and say why they are skipped where no GPU is. In the
# build folder's root, beside the module.
if(PITH_TESTS)
  add_executable(cuda_test tests/cuda/cuda_test.c tests/cuda/lossless_test.c tests/cuda/lowrank_test.c tests/cuda/mean_test.c
                 tests/cuda/reduce_test.c tests/cuda/statistics_test.c tests/cuda/update_test.c tests/cuda/whole_test.c
                 tests/test.c)
  add_executable(cuda_bench tests/cuda/cuda_bench.c)
  add_executable(nccl_test tests/cuda/nccl_test.c) # one process for each rank: tests/cuda/run.sh FOLDER nccl device
  add_executable(device_test tests/cuda/device_test.c)
  foreach(program cuda_test cuda_bench nccl_test device_test)
    target_include_directories(${program} PRIVATE tests src)
    target_link_libraries(${program} PRIVATE pith_static)
    set_target_properties(${program} PROPERTIES ENABLE_EXPORTS ON RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  endforeach()
endif()

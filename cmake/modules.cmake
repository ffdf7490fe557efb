# Transport modules: each is built if what it stands on is installed, and opened by name at run time (src/transport/module.c).
# They see src/ for the contract and do not link to the library.
include(GNUInstallDirs)
set_source_files_properties(src/transport/module.c PROPERTIES COMPILE_DEFINITIONS
                            PITH_MODULE_DIR="${CMAKE_INSTALL_FULL_LIBDIR}/pith")

find_package(MPI QUIET COMPONENTS C)
if(MPI_C_FOUND)
  add_library(pith_transport_mpi MODULE modules/mpi.c)
  target_include_directories(pith_transport_mpi PRIVATE src include)
  target_include_directories(pith_transport_mpi SYSTEM PRIVATE ${MPI_C_INCLUDE_DIRS})
  target_link_libraries(pith_transport_mpi PRIVATE MPI::MPI_C Threads::Threads)
  set_target_properties(pith_transport_mpi PROPERTIES PREFIX "" LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
  install(TARGETS pith_transport_mpi LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/pith)
else()
  message(STATUS "No MPI (mpicc, mpi.h): the mpi transport is not built")
endif()

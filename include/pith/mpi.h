/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A Pith comm from an MPI communicator. Not part of pith.h: include it in programs that use MPI, after <mpi.h> or by
 * itself. The function is in this header and is compiled with the program's own MPI, so it works with every MPI and
 * libpith needs none.
 *
 *   MPI_Init(&argc, &argv);
 *   pith_comm *comm;
 *   pith_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm);
 *   pith_allreduce(comm, …);
 *   pith_comm_destroy(comm);
 *   MPI_Finalize();
 *
 * MPI is used only to send rank 0's address to all ranks. Data is sent over Pith's own transports, or over MPI with the
 * transport "mpi", which needs MPI_Init_thread() with MPI_THREAD_MULTIPLE.
 */
#ifndef PITH_MPI_H
#define PITH_MPI_H

#include <mpi.h>
#include <pith/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Creates a comm with the ranks of `mpi`, in its order. All of them call it together. `config` may be NULL; its rank,
 * ranks, host, port and id are not used. The MPI communicator stays the caller's and is not needed afterwards.
 * PITH_ERR_SYSTEM if MPI fails, PITH_ERR_PEER on all other ranks if rank 0 cannot open a port, and the errors of
 * pith_comm_create().
 */
static inline pith_status pith_comm_create_mpi(MPI_Comm mpi, const pith_config *config, pith_comm **comm) {
  struct {
    int status; /* rank 0's: without it the others would wait for an id that never comes */
    pith_unique_id id;
  } news = {PITH_OK, {{0}}};
  pith_config filled = PITH_CONFIG_INIT;
  pith_status status = PITH_OK;
  if (config) {
    filled = *config;
  }
  if (MPI_Comm_rank(mpi, &filled.rank) != MPI_SUCCESS || MPI_Comm_size(mpi, &filled.ranks) != MPI_SUCCESS) {
    return PITH_ERR_SYSTEM;
  }
  if (filled.rank == 0) {
    status = pith_unique_id_create(&filled, &news.id);
    news.status = (int)status;
  }
  if (MPI_Bcast(&news, (int)sizeof news, MPI_BYTE, 0, mpi) != MPI_SUCCESS) {
    return PITH_ERR_SYSTEM;
  }
  if (news.status != PITH_OK) {
    return filled.rank == 0 ? status : PITH_ERR_PEER;
  }
  filled.host = NULL;
  filled.port = 0;
  filled.id = &news.id;
  return pith_comm_create(&filled, comm);
}

#ifdef __cplusplus
}
#endif

#endif

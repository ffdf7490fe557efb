/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding and opening modules of transports (base/module_file.h says where). The first one found is the one: a broken
 * module is reported, not passed over.
 */
#include "transport/module.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/module_file.h"

/* ---- Where it is ------------------------------------------------------------------------------------------------- */

/* There is a module for each kind of MPI, and only one kind can be right: that of the program if it uses one itself,
 * else that of the launcher. Open MPI's mpirun says who it is; what sets PMI variables only speaks the language of
 * MPICH. */
static int wants_mpich(void) {
  if (dlsym(RTLD_DEFAULT, "MPI_Init")) {
    return dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") == NULL;
  }
  return !getenv("OMPI_COMM_WORLD_RANK") && getenv("PMI_RANK");
}

/* The kind that is not wanted comes last: srun can start either. */
static int find_some_mpi(char path[PATH_MAX]) {
  static const char mpich[] = "pith_transport_mpi_mpich.so", openmpi[] = "pith_transport_mpi_openmpi.so";
  int want_mpich = wants_mpich();
  const char *const wanted[] = {want_mpich ? mpich : openmpi, "pith_transport_mpi.so", NULL};
  const char *const other[] = {want_mpich ? openmpi : mpich, NULL};
  return pith__find_module(wanted, path) || pith__find_module(other, path);
}

/* ---- Opening it -------------------------------------------------------------------------------------------------- */

static pith_status missing(const char *file, const char *needs) {
  char places[512];
  pith__module_places(places, sizeof places);
  return pith_fail(PITH_ERR_UNSUPPORTED,
                   "no %s: it is built where %s and its headers are installed, and looked for in %s", file, needs,
                   places);
}

pith_status pith__module_open(const char *file, const char *what, const char *needs, const char *entry,
                              char path[PATH_MAX], void *function) {
  const char *const names[] = {file, NULL};
  return pith__find_module(names, path) ? pith__open_module(path, what, "", entry, function) : missing(file, needs);
}

static pith_status open_transport(const char *name, char path[PATH_MAX], pith_transport_entry_fn *entry) {
  char file[NAME_MAX], what[NAME_MAX];
  snprintf(file, sizeof file, "pith_transport_%s.so", name);
  snprintf(what, sizeof what, "%s transport", name);
  if (strcmp(name, "mpi") == 0) {
    return find_some_mpi(path) ? pith__open_module(path, what, "", PITH_TRANSPORT_ENTRY, entry) : missing(file, name);
  }
  return pith__module_open(file, what, name, PITH_TRANSPORT_ENTRY, path, entry);
}

pith_status pith__transport_open(const char *name, const pith_transport_ops **ops) {
  static const pith_transport_host host = {.fail = pith_fail};
  char path[PATH_MAX];
  pith_transport_entry_fn entry;
  PITH_TRY(open_transport(name, path, &entry));
  const pith_transport_module *module = entry(&host);
  PITH_REQUIRE(module && module->abi == PITH_TRANSPORT_ABI && module->ops_size == sizeof **ops && module->ops,
               PITH_ERR_PLUGIN, "%s is of another version of Pith: it has transport ABI %u, this library %u", path,
               module ? module->abi : 0, PITH_TRANSPORT_ABI);
  *ops = module->ops;
  return PITH_OK;
}

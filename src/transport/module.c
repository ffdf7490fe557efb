/*
 * Finding and opening transport modules (base/module_file.h says where). The first one found is the one: a broken
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

static pith_status find_module(const char *name, char path[PATH_MAX]) {
  char file[NAME_MAX], places[512];
  snprintf(file, sizeof file, "pith_transport_%s.so", name);
  int found = strcmp(name, "mpi") == 0 ? find_some_mpi(path) : pith__find_module((const char *[]){file, NULL}, path);
  pith__module_places(places, sizeof places);
  PITH_REQUIRE(found, PITH_ERR_UNSUPPORTED,
               "no %s: it is built where %s and its headers are installed, and looked for in %s", file, name, places);
  return PITH_OK;
}

/* ---- What is in it ----------------------------------------------------------------------------------------------- */

static pith_status read_module(void *handle, const char *path, const pith_transport_ops **ops) {
  static const pith_transport_host host = {.fail = pith_fail};
  pith_transport_entry_fn entry;
  void *symbol = dlsym(handle, PITH_TRANSPORT_ENTRY);
  PITH_REQUIRE(symbol, PITH_ERR_PLUGIN, "%s is not a transport: it does not export %s()", path, PITH_TRANSPORT_ENTRY);
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast between the two kinds of pointers */
  const pith_transport_module *module = entry(&host);
  PITH_REQUIRE(module && module->abi == PITH_TRANSPORT_ABI && module->ops_size == sizeof **ops && module->ops,
               PITH_ERR_PLUGIN, "%s is of another version of Pith: it has transport ABI %u, this library %u", path,
               module ? module->abi : 0, PITH_TRANSPORT_ABI);
  *ops = module->ops;
  return PITH_OK;
}

pith_status pith__transport_open(const char *name, const pith_transport_ops **ops) {
  char path[PATH_MAX];
  PITH_TRY(find_module(name, path));
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* a second time the same one */
  PITH_REQUIRE(handle, PITH_ERR_UNSUPPORTED, "cannot open the %s transport: %s", name, dlerror());
  return read_module(handle, path, ops);
}

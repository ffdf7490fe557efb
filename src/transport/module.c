/*
 * Finding and opening transport modules. They are looked for in the folders of PITH_MODULE_PATH, then beside whatever holds
 * this code (libpith.so, or a program that carries the library in itself) and in ../lib/pith from there, then where `make
 * install` puts them. The first one found is the one: a broken module is reported, not passed over.
 */
#include "transport/module.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef PITH_MODULE_DIR
#define PITH_MODULE_DIR "/usr/local/lib/pith"
#endif

/* ---- Where it is ------------------------------------------------------------------------------------------------- */

static int is_in(const char *folder, size_t size, const char *below, const char *name, char path[PATH_MAX]) {
  int length = snprintf(path, PATH_MAX, "%.*s%s/pith_transport_%s.so", (int)size, folder, below, name);
  return size > 0 && size < PATH_MAX && length < PATH_MAX && access(path, R_OK) == 0;
}

static int is_in_list(const char *folders, const char *name, char path[PATH_MAX]) {
  while (folders && *folders) {
    size_t size = strcspn(folders, ":");
    if (is_in(folders, size, "", name, path)) {
      return 1;
    }
    folders += size + (folders[size] == ':');
  }
  return 0;
}

static int is_beside(const char *file, const char *name, char path[PATH_MAX]) {
  const char *slash = strrchr(file, '/');
  size_t size = slash ? (size_t)(slash - file) : 0;
  return is_in(file, size, "", name, path) || is_in(file, size, "/pith", name, path) ||
         is_in(file, size, "/../lib/pith", name, path);
}

static int is_beside_us(const char *name, char path[PATH_MAX]) {
  static const char here; /* an address inside this library */
  Dl_info info;
  char program[PATH_MAX];
  if (dladdr(&here, &info) && info.dli_fname && is_beside(info.dli_fname, name, path)) {
    return 1;
  }
  ssize_t size =
      readlink("/proc/self/exe", program, sizeof program - 1); /* dladdr knows a program by its argv[0] only */
  if (size <= 0) {
    return 0;
  }
  program[size] = 0;
  return is_beside(program, name, path);
}

/* The first place that has a module of one of these names; NULL ends them. */
static int is_anywhere(const char *const *names, char path[PATH_MAX]) {
  for (int place = 0; place < 3; place++) {
    for (const char *const *name = names; *name; name++) {
      if (place == 0   ? is_in_list(getenv("PITH_MODULE_PATH"), *name, path)
          : place == 1 ? is_beside_us(*name, path)
                       : is_in_list(PITH_MODULE_DIR, *name, path)) {
        return 1;
      }
    }
  }
  return 0;
}

/* There is a module for each kind of MPI, and only one kind can be right: that of the program if it uses one itself, else that
 * of the launcher. Open MPI's mpirun says who it is; what sets PMI variables only speaks the language of MPICH. */
static int wants_mpich(void) {
  if (dlsym(RTLD_DEFAULT, "MPI_Init")) {
    return dlsym(RTLD_DEFAULT, "ompi_mpi_comm_world") == NULL;
  }
  return !getenv("OMPI_COMM_WORLD_RANK") && getenv("PMI_RANK");
}

/* The kind that is not wanted comes last: srun can start either. */
static int is_some_mpi_anywhere(char path[PATH_MAX]) {
  int mpich = wants_mpich();
  const char *const wanted[] = {mpich ? "mpi_mpich" : "mpi_openmpi", "mpi", NULL};
  const char *const other[] = {mpich ? "mpi_openmpi" : "mpi_mpich", NULL};
  return is_anywhere(wanted, path) || is_anywhere(other, path);
}

static pith_status find_module(const char *name, char path[PATH_MAX]) {
  const char *folders = getenv("PITH_MODULE_PATH");
  const char *const names[] = {name, NULL};
  int found = strcmp(name, "mpi") == 0 ? is_some_mpi_anywhere(path) : is_anywhere(names, path);
  PITH_REQUIRE(
      found, PITH_ERR_UNSUPPORTED,
      "no pith_transport_%s.so: it is built where %s and its headers are installed, and looked for in PITH_MODULE_PATH "
      "(%s), beside this library and in %s",
      name, name, folders && *folders ? folders : "not set", PITH_MODULE_DIR);
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

/* SPDX-License-Identifier: Apache-2.0 */
#include "base/module_file.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef PITH_MODULE_DIR
#define PITH_MODULE_DIR "/usr/local/lib/pith"
#endif

static int is_in(const char *folder, size_t size, const char *below, const char *name, char path[PATH_MAX]) {
  int length = snprintf(path, PATH_MAX, "%.*s%s/%s", (int)size, folder, below, name);
  return size > 0 && size < PATH_MAX && length < PATH_MAX && access(path, F_OK) == 0;
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

int pith__find_module(const char *const *names, char path[PATH_MAX]) {
  for (int place = 0; place < 3; place++) {
    for (const char *const *name = names; *name; name++) {
      if (place == 0   ? is_in_list(secure_getenv("PITH_MODULE_PATH"), *name, path)
          : place == 1 ? is_beside_us(*name, path)
                       : is_in_list(PITH_MODULE_DIR, *name, path)) {
        return 1;
      }
    }
  }
  return 0;
}

pith_status pith__open_module(const char *path, const char *what, const char *advice, const char *entry,
                              void *function) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE); /* a second time the same one */
  PITH_REQUIRE(handle, PITH_ERR_UNSUPPORTED, "cannot open the %s: %s%s", what, dlerror(), advice);
  void *symbol = dlsym(handle, entry);
  PITH_REQUIRE(symbol, PITH_ERR_PLUGIN, "%s is not the %s: it does not export %s()", path, what, entry);
  memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast between the two kinds of pointers */
  return PITH_OK;
}

void pith__module_places(char *text, int size) {
  const char *folders = secure_getenv("PITH_MODULE_PATH");
  snprintf(text, (size_t)size, "PITH_MODULE_PATH (%s), beside this library or in %s",
           folders && *folders ? folders : "not set", PITH_MODULE_DIR);
}

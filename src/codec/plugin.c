/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs from shared objects, and from the program itself. A plug-in is never unloaded: its tables, and the codecs made
 * from them, point into it. The same file loaded twice is the same handle, which the list of handles tells.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/struct_size.h"
#include "codec/registry.h"

typedef struct pith_loaded {
  void *handle;
  struct pith_loaded *next;
} pith_loaded;

static pith_loaded *loaded; /* under the registry's lock */

/* ---- Where it is ------------------------------------------------------------------------------------------------- */

static int is_plain_name(const char *name) {
  return *name && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(name);
}

/* pith_NAME.so in a folder of the given length; whether it is there. */
static int is_in_folder(const char *folder, size_t size, const char *name, char path[PATH_MAX]) {
  int length = snprintf(path, PATH_MAX, "%.*s/pith_%s.so", (int)size, folder, name);
  return size > 0 && size < PATH_MAX && length < PATH_MAX && access(path, F_OK) == 0;
}

static pith_status find_by_name(const char *name, char path[PATH_MAX]) {
  const char *folders = secure_getenv("PITH_PLUGIN_PATH");
  PITH_REQUIRE(is_plain_name(name), PITH_ERR_ARGUMENT,
               "\"%s\" is neither the name of a plug-in (a-z, 0-9, _) nor a path; a path has a '/', as in ./%s", name,
               name);
  PITH_REQUIRE(folders && *folders, PITH_ERR_PLUGIN,
               "plug-in %s not found: PITH_PLUGIN_PATH is not set; it names the folders to look in", name);
  for (const char *folder = folders;; folder++) {
    size_t size = strcspn(folder, ":");
    if (is_in_folder(folder, size, name, path)) {
      return PITH_OK;
    }
    folder += size;
    if (!*folder) {
      break;
    }
  }
  return pith_fail(PITH_ERR_PLUGIN, "plug-in %s not found: no pith_%s.so in PITH_PLUGIN_PATH (%s)", name, name,
                   folders);
}

static pith_status find_file(const char *name, char path[PATH_MAX]) {
  if (!strchr(name, '/')) {
    return find_by_name(name, path);
  }
  int length = snprintf(path, PATH_MAX, "%s", name);
  PITH_REQUIRE(length < PATH_MAX, PITH_ERR_ARGUMENT, "the path of the plug-in is longer than %d characters", PATH_MAX);
  return PITH_OK;
}

/* ---- What is in it ----------------------------------------------------------------------------------------------- */

static pith_status read_plugin(const pith_plugin *given, const char *path, pith_plugin *plugin) {
  PITH_REQUIRE(PITH_STRUCT_READ(pith_plugin, given, plugin) == PITH_OK, PITH_ERR_PLUGIN,
               "%s was built for another version of Pith, or before 0.2: %s", path, pith_error());
  PITH_REQUIRE(plugin->abi == PITH_PLUGIN_ABI, PITH_ERR_PLUGIN,
               "%s has plug-in ABI %u, this library %u; build it with this library's header", path, plugin->abi,
               PITH_PLUGIN_ABI);
  PITH_REQUIRE(plugin->name && *plugin->name && plugin->version, PITH_ERR_PLUGIN, "%s has no name or version", path);
  PITH_REQUIRE((plugin->codecs && plugin->codec_count) || (plugin->transforms && plugin->transform_count) ||
                   (plugin->memories && plugin->memory_count),
               PITH_ERR_PLUGIN, "%s (%s) has no codecs, transforms or memories", path, plugin->name);
  return PITH_OK;
}

static pith_status read_entry(void *handle, const char *path, pith_plugin *plugin) {
  pith_plugin_entry_fn entry;
  void *symbol = dlsym(handle, PITH_PLUGIN_ENTRY);
  PITH_REQUIRE(symbol, PITH_ERR_PLUGIN, "%s is not a plug-in: it does not export %s()", path, PITH_PLUGIN_ENTRY);
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast between the two kinds of pointers */
  const pith_plugin *given = entry();
  PITH_REQUIRE(given, PITH_ERR_PLUGIN, "%s: %s() returned NULL", path, PITH_PLUGIN_ENTRY);
  return read_plugin(given, path, plugin);
}

static int is_loaded(const void *handle) {
  for (const pith_loaded *p = loaded; p; p = p->next) {
    if (p->handle == handle) {
      return 1;
    }
  }
  return 0;
}

static pith_status register_handle(void *handle, const char *path) {
  pith_plugin plugin = {.size = sizeof plugin};
  PITH_TRY(read_entry(handle, path, &plugin));
  pith_loaded *node = malloc(sizeof *node);
  PITH_REQUIRE(node, PITH_ERR_MEMORY, "no memory to load %s", path);
  pith_status status = pith__registry_add(&plugin, path);
  if (status != PITH_OK) {
    free(node);
    return pith_fail(status, "%s: %s", path, pith_error());
  }
  *node = (pith_loaded){handle, loaded};
  loaded = node;
  PITH_LOG_INFO("plug-in %s %s: %zu codecs, %zu transforms, %zu memories from %s", plugin.name, plugin.version,
                plugin.codec_count, plugin.transform_count, plugin.memory_count, path);
  return PITH_OK;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static pith_status load_file(const char *path) {
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  PITH_REQUIRE(handle, PITH_ERR_PLUGIN, "cannot load the plug-in: %s", dlerror());
  if (is_loaded(handle)) {
    dlclose(handle); /* gives back the second reference only */
    return PITH_OK;
  }
  pith_status status = register_handle(handle, path);
  if (status != PITH_OK) {
    dlclose(handle);
  }
  return status;
}

pith_status pith_plugin_load(const char *name) {
  PITH_REQUIRE(name && *name, PITH_ERR_ARGUMENT, "pith_plugin_load: name is NULL or empty");
  char path[PATH_MAX];
  PITH_TRY(find_file(name, path));
  pith__registry_lock();
  pith_status status = load_file(path);
  pith__registry_unlock();
  return status;
}

pith_status pith_plugin_add(const pith_plugin *given) {
  PITH_REQUIRE(given, PITH_ERR_ARGUMENT, "pith_plugin_add: plugin is NULL");
  pith_plugin plugin = {.size = sizeof plugin};
  PITH_TRY(read_plugin(given, "the program's plug-in", &plugin));
  return pith__registry_add(&plugin, plugin.name);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where shared objects that belong to the library are: transports and the CUDA module. All are looked for in the same
 * places, and the first file found is the one: if it cannot be opened, that is reported, and no other is tried in its
 * place.
 */
#ifndef PITH_BASE_MODULE_FILE_H
#define PITH_BASE_MODULE_FILE_H

#include <limits.h>

#include "base/status.h"

/* Sets `path` to the first file of one of these names (NULL ends them) in the folders of PITH_MODULE_PATH, then beside
 * whatever holds this code (libpith.so, or a program with the library in itself), in pith/ and ../lib/pith from there,
 * then where `make install` puts them. Returns 0 if there is none. */
int pith__find_module(const char *const *names, char path[PATH_MAX]);

/* Opens a file for as long as the process lives, and sets `function` (a pointer to a function pointer) to its entry.
 * For errors, `what` says what it is, and `advice` ends the sentence if it cannot be opened. */
pith_status pith__open_module(const char *path, const char *what, const char *advice, const char *entry,
                              void *function);

/* These places in words, for an error; at most `size` bytes. */
void pith__module_places(char *text, int size);

#endif

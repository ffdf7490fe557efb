/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports in shared objects, opened at run time, so that the library itself links to libc alone. Such a module is
 * built together with the library and shares its contract (transport.h); it does not link to it, and reaches it through
 * the host.
 */
#ifndef PITH_TRANSPORT_MODULE_H
#define PITH_TRANSPORT_MODULE_H

#include <limits.h>

#include "transport/transport.h"

#define PITH_TRANSPORT_ABI 4u
#define PITH_TRANSPORT_ENTRY "pith_transport_module_entry"

typedef struct pith_transport_host { /* what a module may call */
  pith_status (*fail)(pith_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));
} pith_transport_host;

typedef struct pith_transport_module {
  uint32_t abi;      /* PITH_TRANSPORT_ABI; of all fields the first, for ever */
  uint32_t ops_size; /* sizeof(pith_transport_ops) */
  const pith_transport_ops *ops;
} pith_transport_module;

/* What a module exports as PITH_TRANSPORT_ENTRY. The host lives as long as the process. */
typedef const pith_transport_module *(*pith_transport_entry_fn)(const pith_transport_host *host);

/* Opens the module `file`, sets `path` to where it was found and `function` (a pointer to a function pointer) to its
 * entry. For errors, `what` says what it is, and `needs` on which library it is built. */
pith_status pith__module_open(const char *file, const char *what, const char *needs, const char *entry,
                              char path[PATH_MAX], void *function);

/* Opens pith_transport_NAME.so; modules stay open until the process ends. If there is none, the error says where it was
 * looked for. */
pith_status pith__transport_open(const char *name, const pith_transport_ops **ops);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Opening the module for TLS, and the names of its modes. */
#include "transport/tls.h"

#include <string.h>

#include "transport/module.h"
#include "transport/sockets.h"

static const char *const modes[] = {[PITH_TLS_OFF] = "off", [PITH_TLS_PSK] = "psk", [PITH_TLS_CERT] = "cert"};
enum { MODES = sizeof modes / sizeof *modes };

const char *pith__tls_mode_name(pith_tls_mode mode) { return (unsigned)mode < MODES ? modes[mode] : "?"; }

pith_status pith__tls_mode_parse(const char *text, pith_tls_mode *mode) {
  for (int i = 0; i < MODES; i++) {
    if (strcmp(text, modes[i]) == 0) {
      *mode = (pith_tls_mode)i;
      return PITH_OK;
    }
  }
  return pith_fail(PITH_ERR_ARGUMENT,
                   "PITH_TLS=%s is unknown: psk (a key from PITH_SECRET), cert (certificates) or off", text);
}

pith_status pith__tls_find(const pith_tls_ops **ops) {
  static const pith_tls_host host = {.fail = pith_fail, .read = pith__socket_read, .write = pith__socket_write};
  char path[PATH_MAX];
  pith_tls_entry_fn entry;
  PITH_TRY(pith__module_open("pith_tls.so", "TLS module", "OpenSSL 3", PITH_TLS_ENTRY, path, &entry));
  const pith_tls_module *module = entry(&host);
  PITH_REQUIRE(module && module->abi == PITH_TLS_ABI && module->ops_size == sizeof **ops && module->ops,
               PITH_ERR_PLUGIN, "%s is of another version of Pith: it has TLS ABI %u, this library %u", path,
               module ? module->abi : 0, PITH_TLS_ABI);
  *ops = module->ops;
  return PITH_OK;
}

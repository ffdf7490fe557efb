/* SPDX-License-Identifier: Apache-2.0 */
/* The table of variables, and what can be said of their values without starting anything. */
#include "cli/variables.h"

#include <pith/pith.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* clang-format off */
static const cli_variable variables[] = {
    {"PITH_ALGO",
     "how to allreduce, where it suits: sra, hierarchical, ring, tree, gather, ranges, linear, grid; unset: by cost"},
    {"PITH_COMMAND", "program that the Python package's pith command starts; unset: the one it was installed with"},
    {"PITH_CONNECTIONS", "of tcp to each peer; unset: one"},
    {"PITH_CPU", "instruction set of the kernels: scalar, avx2 or avx512; unset: the best there is"},
    {"PITH_CUDA_CARRIER",
     "how messages of GPUs travel over a comm: ipc from GPU to GPU of one host, staged through pinned memory; unset: ipc "
     "where all ranks can; with /nccl behind it by NCCL between hosts that sum first"},
    {"PITH_DEBUG", "messages: WARN, INFO or TRACE; unset: none"},
    {"PITH_DEBUG_FILE", "file for them, %h is the host and %p the process; unset: standard error"},
    {"PITH_EAGER",
     "groups of up to so many ranks connect all with each other at the start, larger ones on demand; unset: 16"},
    {"PITH_HOSTID", "ranks with the same one share a host; unset: the machine; run and lab set it"},
    {"PITH_IFNAME", "network interface between hosts; unset: the one that reaches the others; lab sets it"},
    {"PITH_INSIDE", "spec for the inside of hosts, where an allreduce is hierarchical; unset: none"},
    {"PITH_JAX_CARRIER",
     "how messages of pith.jax travel from GPUs: auto, nccl, or comm through pinned memory; unset: auto"},
    {"PITH_JAX_PART_BYTES",
     "bytes of gradients that pith.jax sends together while others are computed; 0: all; unset: 8 MiB, GPUs 32"},
    {"PITH_KEEP_MEMORY",
     "0: pith.torch leaves the allocator of CPU training alone; unset: it keeps what a step frees for the next"},
    {"PITH_LIBRARY", "libpith.so for the Python package; unset: the one it was installed with"},
    {"PITH_LIVENESS", "seconds without an answer of a peer's host after which it counts as gone (tcp); unset: 15"},
    {"PITH_METHODS",
     "modules, or files with .py, that `import pith` imports for the methods in them, separated by commas; unset: none"},
    {"PITH_MINIMAL_SIZE", "tensors under this many values stay uncompressed unless a rule names them; unset: 1024"},
    {"PITH_MODULE_PATH", "folders with modules (mpi, ucx, tls), separated by colons; unset: beside the library"},
    {"PITH_PLUGIN_PATH", "folders with plug-ins, separated by colons"},
    {"PITH_PLUGINS", "plug-ins to load, separated by commas: NAME is pith_NAME.so in those folders"},
    {"PITH_PORT", "port of the rendezvous at rank 0; unset: MASTER_PORT, or under torchrun one made of it"},
    {"PITH_PROFILE",
     "file for the statistics of adaptive specs, written by rank 0 at every plan, for pith plan; unset: none"},
    {"PITH_PYTHON",
     "interpreter that pith doctor asks about torch; unset: the package's, the virtual environment's, or python3"},
    {"PITH_SECRET", "ranks without it are refused; unset: every rank is welcome; its value is never shown"},
    {"PITH_SEED", "of the torch backend's codecs with random numbers; unset: 0"},
    {"PITH_SPEC", "how the torch backend compresses float sums; unset: not at all"},
    {"PITH_THREADS", "of each rank that encode and decode large tensors; unset: 1"},
    {"PITH_TIMEOUT", "seconds without progress after which an operation fails; unset: 300"},
    {"PITH_TLS", "encrypts tcp links: psk by a key from PITH_SECRET, cert by certificates; off or unset: in clear"},
    {"PITH_TLS_CA", "PITH_TLS=cert: file with the certificate of the authority that all ranks trust, in PEM"},
    {"PITH_TLS_CERT", "PITH_TLS=cert: file with this rank's certificate, in PEM"},
    {"PITH_TLS_KEY", "PITH_TLS=cert: file with the key of that certificate, in PEM, without a passphrase"},
    {"PITH_TRACE", "file for a Chrome trace of each rank; %r is the rank, %h the host, %p the process; unset: none"},
    {"PITH_TRANSPORT", "auto, shm, tcp, mpi, ucx or inproc; unset: auto, shm within a host and tcp between hosts"},
};
/* clang-format on */
enum { VARIABLE_COUNT = sizeof variables / sizeof *variables };

const cli_variable *cli_variable_get(size_t index) { return index < VARIABLE_COUNT ? &variables[index] : NULL; }

const char *cli_variable_value(const cli_variable *variable) {
  const char *value = getenv(variable->name);
  return value && !strcmp(variable->name, "PITH_SECRET") ? "(set)" : value;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static int is_number(const char *text) {
  char *end;
  double number = strtod(text, &end);
  return end != text && !*end && number >= 0;
}

static int is_word_of(const char *words, const char *text) {
  size_t length = strlen(text);
  for (; *words; words += strspn(words, "|")) {
    size_t word = strcspn(words, "|");
    if (word == length && !strncasecmp(words, text, word)) {
      return 1;
    }
    words += word;
  }
  return 0;
}

static int is_codec(const char *text) {
  pith_codec *codec = NULL;
  int good = pith_codec_create(text, &codec) == PITH_OK;
  pith_codec_destroy(codec);
  return good;
}

static int is_rules(const char *text) {
  pith_rules *rules = NULL;
  int good = pith_adapter_is(text) ? pith_adapter_check(text) == PITH_OK : pith_rules_create(text, &rules) == PITH_OK;
  pith_rules_destroy(rules);
  return good;
}

static int is_minimal_size(const char *text) {
  size_t values;
  return (void)text, pith_minimal_size(&values) == PITH_OK;
}

static int is_transport(const char *text) { return !strcmp(text, "auto") || pith_transport_probe(text) == PITH_OK; }

static int is_tls(const char *text) { return !strcmp(text, "off") || pith_tls_probe(NULL, NULL) == PITH_OK; }

/* What a value must be: one of these words, or what the function takes. It leaves its reason in pith_error(). */
static const struct {
  const char *name, *words;
  int (*accepts)(const char *text);
  const char *expected;
} kinds[] = {
    {"PITH_ALGO", "auto|sra|hierarchical|ring|tree|gather|ranges|linear|grid", NULL, NULL},
    {"PITH_CONNECTIONS", NULL, is_number, "a number"},
    {"PITH_CUDA_CARRIER", "auto|ipc|staged|auto/nccl|ipc/nccl|staged/nccl", NULL, NULL},
    {"PITH_DEBUG", "warn|info|trace", NULL, NULL},
    {"PITH_EAGER", NULL, is_number, "a number"},
    {"PITH_INSIDE", NULL, is_codec, NULL},
    {"PITH_JAX_CARRIER", "auto|nccl|comm", NULL, NULL},
    {"PITH_JAX_PART_BYTES", NULL, is_number, "a number"},
    {"PITH_LIVENESS", NULL, is_number, "a number"},
    {"PITH_MINIMAL_SIZE", NULL, is_minimal_size, NULL},
    {"PITH_PORT", NULL, is_number, "a number"},
    {"PITH_SEED", NULL, is_number, "a number"},
    {"PITH_SPEC", NULL, is_rules, NULL},
    {"PITH_THREADS", NULL, is_number, "a number"},
    {"PITH_TIMEOUT", NULL, is_number, "a number"},
    {"PITH_TLS", "psk|cert|off", is_tls, NULL},
    {"PITH_TRANSPORT", NULL, is_transport, NULL},
};

int cli_variable_check(const cli_variable *variable, char *text, size_t size) {
  const char *value = getenv(variable->name);
  for (size_t i = 0; value && *value && i < sizeof kinds / sizeof *kinds; i++) {
    if (strcmp(kinds[i].name, variable->name) != 0) {
      continue;
    }
    if (kinds[i].words && !is_word_of(kinds[i].words, value)) {
      snprintf(text, size, "%s=%s cannot be obeyed: expected %s", variable->name, value, kinds[i].words);
      return 0;
    }
    if (kinds[i].accepts && !kinds[i].accepts(value)) {
      snprintf(text, size, "%s=%s cannot be obeyed: %s%s", variable->name, value, kinds[i].expected ? "expected " : "",
               kinds[i].expected ? kinds[i].expected : pith_error());
      return 0;
    }
  }
  return 1;
}

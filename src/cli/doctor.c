/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith doctor`: what this machine can do, which settings are in force, and what is missing. It says only what it has
 * looked at. A setting that cannot be obeyed is a finding, and findings make the exit code 1.
 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <pith/carrier.h>
#include <pith/cuda.h>
#include <pith/pith.h>

#include "cli/base/json.h"
#include "cli/base/machine.h"
#include "cli/base/nearest.h"
#include "cli/base/options.h"
#include "cli/base/page.h"
#include "cli/commands.h"
#include "cli/interpreter.h"
#include "cli/launch/network.h"
#include "cli/methods.h"
#include "cli/variables.h"

#if defined(__clang__)
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

extern char **environ;

enum { FINDINGS_MAX = 32, FINDING_SIZE = 1024, TEXT_SIZE = 64 };

typedef struct findings {
  size_t count;
  char text[FINDINGS_MAX][FINDING_SIZE];
} findings;

/* What was looked at. */
typedef struct report {
  cli_machine machine;
  int has_python, without_python;
  cli_python python;
  int can_run_kernels, has_nccl, has_ipc;
  char kernels[FINDING_SIZE], nccl[FINDING_SIZE]; /* the device or NCCL's version; or why there is none */
  char ipc[FINDING_SIZE];                         /* what there is for messages from GPU to GPU, or why not */
  findings found;
} report;

static char *next_finding(findings *f) { return f->text[f->count < FINDINGS_MAX - 1 ? f->count++ : f->count]; }

/* ---- Examinations ------------------------------------------------------------------------------------------------ */

static int cpu_has(pith_isa isa) {
#if defined(__x86_64__)
  return isa == PITH_ISA_AVX512 ? __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
                                : isa == PITH_ISA_SCALAR || __builtin_cpu_supports("avx2");
#else
  return isa == PITH_ISA_SCALAR;
#endif
}

static const char *isa_state(pith_isa isa) {
  if (isa == pith_isa_current()) {
    return "in use";
  }
  if (pith_isa_available(isa)) {
    return "available";
  }
  return cpu_has(isa) ? "not built into this library" : "this CPU does not have it";
}

static const char *gpu_state(const cli_machine *machine) {
  if (machine->gpu_device) {
    return machine->gpu_library ? "NVIDIA device and driver found"
                                : "NVIDIA device found, but no driver library libcuda.so.1";
  }
  return machine->gpu_library ? "driver library found, but no device /dev/nvidia0" : "none found";
}

/* Whether Pith's kernels run there: the device in words, or why not. */
static void look_at_gpu(report *r) {
  const char *device = NULL;
  int version = 0;
  r->can_run_kernels = pith_cuda_probe(&device) == PITH_OK;
  snprintf(r->kernels, sizeof r->kernels, "%s", r->can_run_kernels ? device : pith_error());
  r->has_nccl = pith_nccl_probe(&version) == PITH_OK;
  if (r->has_nccl) {
    snprintf(r->nccl, sizeof r->nccl, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  } else {
    snprintf(r->nccl, sizeof r->nccl, "%s", pith_error());
  }
  const char *how = NULL;
  r->has_ipc = r->can_run_kernels && pith_cuda_ipc_probe(&how) == PITH_OK;
  snprintf(r->ipc, sizeof r->ipc, "%s", r->has_ipc ? how : r->can_run_kernels ? pith_error() : "no kernels can run");
}

/* Whether an entry of the environment, "NAME=value", is of that name. */
static int is_named(const char *entry, const char *name) {
  size_t length = strlen(name);
  return !strncmp(entry, name, length) && entry[length] == '=';
}

static void examine_cpu_wish(findings *f) {
  const char *wanted = getenv("PITH_CPU");
  if (wanted && *wanted && strcasecmp(wanted, pith_isa_name(pith_isa_current())) != 0) {
    snprintf(next_finding(f), FINDING_SIZE, "PITH_CPU=%s cannot be obeyed: %s is in use", wanted,
             pith_isa_name(pith_isa_current()));
  }
}

/* Variables that Pith does not read. Values are not printed, since they may be secrets. PITH_TEST_… are settings of the
 * project's own tests. */
static void examine_variable(const char *entry, findings *f) {
  char name[TEXT_SIZE];
  const char *nearest = NULL;
  const cli_variable *variable;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
  for (size_t i = 0; (variable = cli_variable_get(i)); i++) {
    if (is_named(entry, variable->name)) {
      char text[FINDING_SIZE];
      if (!cli_variable_check(variable, text, sizeof text)) {
        memcpy(next_finding(f), text, sizeof text);
      }
      return;
    }
    cli_nearest(name, variable->name, &nearest);
  }
  snprintf(next_finding(f), FINDING_SIZE, "%s is set, but nothing reads it%s%s%s", name,
           nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static void examine_plugins(findings *f) {
  const char *names = getenv("PITH_PLUGINS");
  while (names && *names) {
    char name[FINDING_SIZE / 2];
    size_t length = strcspn(names, ",");
    snprintf(name, sizeof name, "%.*s", (int)length, names);
    if (length && pith_plugin_load(name) != PITH_OK) {
      snprintf(next_finding(f), FINDING_SIZE, "PITH_PLUGINS: %.400s", pith_error());
    }
    names += length + (names[length] == ',');
  }
}

/* A GPU that training could use, and Pith could not. */
static void examine_gpu(report *r) {
  int is_wanted = r->machine.gpu_device || atoi(r->python.torch_devices) > 0;
  if (is_wanted && !r->can_run_kernels) {
    snprintf(next_finding(&r->found), FINDING_SIZE, "this machine has a GPU, and Pith cannot use it: %.900s",
             r->kernels);
  }
}

static void examine_python(report *r) {
  const cli_python *p = &r->python;
  findings *f = &r->found;
  if (*p->problem) {
    snprintf(next_finding(f), FINDING_SIZE, "%.400s: %.400s", p->path, p->problem);
  }
  if (*p->torch_problem) {
    snprintf(next_finding(f), FINDING_SIZE, "torch is installed in %.300s, but cannot be imported: %.500s", p->path,
             p->torch_problem);
  }
  if (*p->pith_problem) {
    snprintf(next_finding(f), FINDING_SIZE, "pith.torch cannot be imported: %.500s", p->pith_problem);
  }
}

static void examine(report *r) {
  findings *f = &r->found;
  examine_cpu_wish(f);
  for (char **entry = environ; *entry; entry++) {
    if (!strncmp(*entry, "PITH_", 5) && strncmp(*entry + 5, "TEST_", 5) != 0) {
      examine_variable(*entry, f);
    }
  }
  examine_plugins(f);
  examine_gpu(r);
  examine_python(r);
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

enum { LABEL = 12 };

/* "label  text", in as many lines as the text needs. */
static void print_field(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void print_field(const char *label, const char *format, ...) {
  char first[TEXT_SIZE], rest[TEXT_SIZE], text[2 * FINDING_SIZE];
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  snprintf(first, sizeof first, "%-*s", LABEL, label);
  snprintf(rest, sizeof rest, "%*s", LABEL, "");
  cli_paragraph(stdout, first, rest, text);
}

static void print_memory(const cli_machine *machine) {
  const double gibi = 0x1p-30;
  char caches[4 * TEXT_SIZE] = "", text[TEXT_SIZE];
  print_field("memory", "%.1f GiB, %.1f GiB available", (double)machine->memory * gibi,
              (double)machine->available_memory * gibi);
  for (size_t level = 0; level < 4; level++) {
    size_t used = strlen(caches);
    if (machine->cache[level]) {
      snprintf(caches + used, sizeof caches - used, "L%zu %s ", level + 1, cli_size_print(machine->cache[level], text));
    }
  }
  print_field("caches", "%s", caches);
}

static void print_gpu(const report *r) {
  print_field("gpu", "%s", gpu_state(&r->machine));
  print_field("", "kernels %s%s", r->can_run_kernels ? "can run: " : "cannot run: ", r->kernels);
  print_field("", "%s%s", r->has_nccl ? "NCCL " : "", r->nccl);
  print_field("", "messages from GPU to GPU (ipc) %s: %s", r->has_ipc ? "are possible" : "are not possible", r->ipc);
}

static void print_python(const report *r) {
  const cli_python *p = &r->python;
  if (!r->has_python) {
    print_field("python", "%s", r->without_python ? "not asked (--no-python)" : "there is no python3 in PATH");
    return;
  }
  print_field("python", "%s, %s", *p->version ? p->version : "?", p->path);
  if (*p->torch) {
    print_field("torch", "%s, %s%s%s%s%s", p->torch, *p->torch_cuda ? "CUDA " : "without CUDA: a build for CPUs",
                p->torch_cuda, *p->torch_nccl ? ", NCCL " : "", p->torch_nccl,
                *p->torch_cuda && !atoi(p->torch_devices) ? "; it finds no GPU" : "");
  } else {
    print_field("torch", "%s", *p->torch_problem ? "cannot be imported" : "not installed in this Python");
  }
  if (*p->pith_problem) {
    print_field("pith.torch", "cannot be imported: %s", p->pith_problem);
  } else if (!*p->pith) {
    print_field("pith.torch", "the package pith is not installed in this Python: pip install '.[torch]'");
  } else if (!*p->torch) {
    print_field("pith.torch", "package %s; needs torch", p->pith);
  } else {
    print_field("pith.torch", "can be imported, version %s", p->pith);
  }
}

static const char *const transports[] = {"shm", "tcp", "mpi", "ucx", "inproc"};
enum { TRANSPORT_COUNT = sizeof transports / sizeof *transports };

static void print_transports(void) {
  for (int t = 0; t < TRANSPORT_COUNT; t++) {
    pith_status status = pith_transport_probe(transports[t]);
    char first[TEXT_SIZE], rest[TEXT_SIZE];
    snprintf(first, sizeof first, "%-*s%-8s", LABEL, t ? "" : "transports", transports[t]);
    snprintf(rest, sizeof rest, "%*s", (int)strlen(first), "");
    cli_paragraph(stdout, first, rest, status == PITH_OK ? "can run" : pith_error());
  }
}

static void write_transports(cli_json *json) {
  cli_json_array(json, "transports");
  for (int t = 0; t < TRANSPORT_COUNT; t++) {
    pith_status status = pith_transport_probe(transports[t]);
    cli_json_object(json, NULL);
    cli_json_string(json, "name", transports[t]);
    cli_json_bool(json, "available", status == PITH_OK);
    cli_json_string(json, "reason", status == PITH_OK ? NULL : pith_error());
    cli_json_object_end(json);
  }
  cli_json_array_end(json);
}

/* Whether tcp links could be encrypted; whether they will be is PITH_TLS's to say. */
static int probe_tls(const char **version) {
  pith_config config = PITH_CONFIG_INIT;
  config.tls = "off";
  return pith_tls_probe(&config, version) == PITH_OK;
}

static void print_tls(void) {
  const char *version = NULL;
  if (probe_tls(&version)) {
    print_field("encryption", "of tcp links (PITH_TLS): TLS 1.3 by %s", version);
  } else {
    print_field("encryption", "of tcp links (PITH_TLS) cannot be had: %s", pith_error());
  }
}

static void write_tls(cli_json *json) {
  const char *version = NULL;
  int works = probe_tls(&version);
  cli_json_object(json, "tls");
  cli_json_bool(json, "available", works);
  cli_json_string(json, "library", works ? version : NULL);
  cli_json_string(json, "reason", works ? NULL : pith_error());
  cli_json_object_end(json);
}

static void print_lab(void) {
  char reason[CLI_REASON_SIZE];
  int own_user = 0;
  if (cli_network_probe(reason, &own_user)) {
    print_field("lab", "pith lab can run: namespaces and links can be made%s, ip and tc (iproute2) are installed",
                own_user ? " in a user namespace" : "");
  } else {
    print_field("lab", "pith lab cannot run: %s", reason);
  }
}

static void print_machine(const report *r) {
  const cli_machine *machine = &r->machine;
  print_field("version", "%s", pith_version());
  print_field("compiler", "%s", COMPILER);
  print_field("system", "%s", machine->system);
  print_field("cpu", "%s", machine->cpu);
  print_field("cores", "%zu, %zu usable by this process", machine->cores, machine->usable_cores);
  print_memory(machine);
  print_gpu(r);
  print_python(r);
  print_transports();
  print_tls();
  print_lab();
}

static void print_plugins(void) {
  pith_method method = PITH_METHOD_INIT;
  size_t found = 0;
  printf("\nplug-ins\n");
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (cli_method_is_foreign(&method)) {
      printf("  %-18s %s\n", method.name, method.origin);
      found++;
    }
  }
  if (!found) {
    printf("  none loaded\n");
  }
}

/* Those that are set, or all of them with what they mean. */
static void print_variables(int all) {
  const cli_variable *variable;
  size_t shown = 0;
  char first[TEXT_SIZE];
  printf("\nenvironment\n");
  for (size_t i = 0; (variable = cli_variable_get(i)); i++) {
    const char *value = cli_variable_value(variable);
    if (value || all) {
      printf("  %-18s %s\n", variable->name, value ? value : "(unset)");
      shown++;
    }
    if (all) {
      snprintf(first, sizeof first, "  %-18s ", "");
      cli_paragraph(stdout, first, first, variable->meaning);
    }
  }
  if (!shown) {
    printf("  no variable PITH_… is set; --variables lists them all\n");
  }
}

static void print_report(const report *r, int all_variables) {
  print_machine(r);
  printf("\nkernels\n");
  for (int isa = 0; isa < PITH_ISA_COUNT; isa++) {
    printf("  %-18s %s\n", pith_isa_name((pith_isa)isa), isa_state((pith_isa)isa));
  }
  print_variables(all_variables);
  print_plugins();
  printf("\n%s\n", r->found.count ? "findings" : "no findings");
  for (size_t i = 0; i < r->found.count; i++) {
    cli_paragraph(stdout, "  ", "    ", r->found.text[i]);
  }
}

/* ---- For programs ------------------------------------------------------------------------------------------------ */

static void write_lab(cli_json *json) {
  char reason[CLI_REASON_SIZE];
  int own_user = 0, works = cli_network_probe(reason, &own_user);
  cli_json_object(json, "lab");
  cli_json_bool(json, "available", works);
  cli_json_string(json, "reason", works ? NULL : reason);
  cli_json_bool(json, "user_namespace", own_user);
  cli_json_object_end(json);
}

static void write_gpu(cli_json *json, const report *r) {
  cli_json_string(json, "gpu", gpu_state(&r->machine));
  cli_json_object(json, "gpu_kernels");
  cli_json_bool(json, "available", r->can_run_kernels);
  cli_json_string(json, "device", r->can_run_kernels ? r->kernels : NULL);
  cli_json_string(json, "reason", r->can_run_kernels ? NULL : r->kernels);
  cli_json_object_end(json);
  cli_json_object(json, "nccl");
  cli_json_string(json, "version", r->has_nccl ? r->nccl : NULL);
  cli_json_string(json, "reason", r->has_nccl ? NULL : r->nccl);
  cli_json_object_end(json);
  cli_json_object(json, "ipc");
  cli_json_bool(json, "available", r->has_ipc);
  cli_json_string(json, r->has_ipc ? "found" : "reason", r->ipc);
  cli_json_object_end(json);
}

static void write_text(cli_json *json, const char *key, const char *text) {
  cli_json_string(json, key, *text ? text : NULL);
}

static void write_python(cli_json *json, const report *r) {
  const cli_python *p = &r->python;
  cli_json_object(json, "python");
  write_text(json, "path", p->path);
  write_text(json, "version", p->version);
  write_text(json, "problem", p->problem);
  write_text(json, "torch", p->torch);
  write_text(json, "torch_problem", p->torch_problem);
  write_text(json, "torch_cuda", p->torch_cuda);
  write_text(json, "torch_nccl", p->torch_nccl);
  write_text(json, "torch_devices", p->torch_devices);
  write_text(json, "pith", p->pith);
  write_text(json, "pith_torch_problem", p->pith_problem);
  cli_json_object_end(json);
}

static void write_machine(cli_json *json, const report *r) {
  const cli_machine *machine = &r->machine;
  cli_json_string(json, "version", pith_version());
  cli_json_string(json, "compiler", COMPILER);
  cli_json_string(json, "system", machine->system);
  cli_json_string(json, "cpu", machine->cpu);
  cli_json_count(json, "cores", machine->cores);
  cli_json_count(json, "usable_cores", machine->usable_cores);
  cli_json_count(json, "memory_bytes", machine->memory);
  cli_json_count(json, "available_memory_bytes", machine->available_memory);
  cli_json_array(json, "cache_bytes");
  for (size_t level = 0; level < 4; level++) {
    cli_json_count(json, NULL, machine->cache[level]);
  }
  cli_json_array_end(json);
  write_gpu(json, r);
  write_python(json, r);
  write_transports(json);
  write_tls(json);
  write_lab(json);
  cli_json_array(json, "frameworks");
  cli_json_array_end(json);
}

static void write_kernels(cli_json *json) {
  cli_json_array(json, "kernels");
  for (int isa = 0; isa < PITH_ISA_COUNT; isa++) {
    cli_json_object(json, NULL);
    cli_json_string(json, "name", pith_isa_name((pith_isa)isa));
    cli_json_bool(json, "available", pith_isa_available((pith_isa)isa));
    cli_json_string(json, "state", isa_state((pith_isa)isa));
    cli_json_object_end(json);
  }
  cli_json_array_end(json);
}

static void write_variables(cli_json *json) {
  cli_json_array(json, "environment");
  const cli_variable *variable;
  for (size_t i = 0; (variable = cli_variable_get(i)); i++) {
    cli_json_object(json, NULL);
    cli_json_string(json, "name", variable->name);
    cli_json_string(json, "value", cli_variable_value(variable));
    cli_json_string(json, "meaning", variable->meaning);
    cli_json_object_end(json);
  }
  cli_json_array_end(json);
}

static void write_plugins(cli_json *json) {
  pith_method method = PITH_METHOD_INIT;
  cli_json_array(json, "plugins");
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (cli_method_is_foreign(&method)) {
      cli_json_object(json, NULL);
      cli_json_string(json, "codec", method.name);
      cli_json_string(json, "origin", method.origin);
      cli_json_object_end(json);
    }
  }
  cli_json_array_end(json);
}

static void write_report(const report *r) {
  cli_json json = {.file = stdout};
  cli_json_object(&json, NULL);
  write_machine(&json, r);
  write_kernels(&json);
  write_variables(&json);
  write_plugins(&json);
  cli_json_array(&json, "findings");
  for (size_t i = 0; i < r->found.count; i++) {
    cli_json_string(&json, NULL, r->found.text[i]);
  }
  cli_json_array_end(&json);
  cli_json_object_end(&json);
}

int cli_doctor(int argc, char **argv) {
  int json = 0, all_variables = 0, without_python = 0;
  const cli_option options[] = {
      {"--variables", CLI_FLAG, &all_variables, NULL, "all environment variables that Pith reads, and their meaning"},
      {"--wide", CLI_FLAG, &all_variables, NULL, "the same as --variables"},
      {"--no-python", CLI_FLAG, &without_python, NULL, "do not ask Python about torch, which takes some seconds"},
      {"--json", CLI_FLAG, &json, NULL, "print JSON"},
      {.name = NULL}};
  const cli_usage usage = {
      "doctor", NULL,
      "Shows what this machine can do, which settings are in force, and what is missing. Anything that keeps Pith "
      "from doing what the settings ask for is a finding. With findings the exit code is 1.",
      options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, NULL);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  report *r = calloc(1, sizeof *r);
  if (!r) {
    return cli_fail(CLI_FAILED, "no memory");
  }
  cli_machine_look(&r->machine);
  look_at_gpu(r);
  r->without_python = without_python;
  r->has_python = !without_python && cli_python_ask(&r->python);
  examine(r);
  if (json) {
    write_report(r);
  } else {
    print_report(r, all_variables);
  }
  int code = r->found.count ? CLI_FAILED : CLI_OK;
  free(r);
  return code;
}

/*
 * `pith doctor`: what this machine can do, which settings are in force, and why not more. It says only what it has
 * looked at. A setting that cannot be obeyed is a finding, and findings make the exit code 1.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <pith/cuda.h>
#include <pith/nccl.h>
#include <pith/pith.h>

#include "cli/cli.h"
#include "cli/json.h"
#include "cli/machine.h"
#include "cli/methods.h"
#include "cli/nearest.h"
#include "cli/network.h"
#include "cli/options.h"

#if defined(__clang__)
#define COMPILER __VERSION__
#else
#define COMPILER "gcc " __VERSION__
#endif

extern char **environ;

/* Every variable that the library reads. */
static const struct {
  const char *name, *meaning;
} variables[] = {
    {"PITH_ALGO", "how to allreduce, where it suits the codec: sra, hierarchical, ring, tree, gather, ranges, linear; unset: by cost"},
    {"PITH_COMMAND", "program that the Python package's pith command starts; unset: the one it was installed with"},
    {"PITH_CONNECTIONS", "of tcp to each peer; unset: one"},
    {"PITH_CPU", "instruction set of the kernels: scalar, avx2 or avx512; unset: the best there is"},
    {"PITH_DEBUG", "messages: WARN, INFO or TRACE; unset: none"},
    {"PITH_DEBUG_FILE", "file for them, %h is the host and %p the process; unset: standard error"},
    {"PITH_HOSTID", "ranks with the same one share a host; unset: the machine; run and lab set it"},
    {"PITH_IFNAME", "network interface between hosts; unset: the one that reaches the others; lab sets it"},
    {"PITH_INSIDE", "spec for the inside of hosts, where an allreduce is hierarchical; unset: none"},
    {"PITH_KEEP_MEMORY", "0: pith.torch leaves the allocator of CPU training alone; unset: it keeps what a step frees for the next"},
    {"PITH_LIBRARY", "libpith.so for the Python package; unset: the one it was installed with"},
    {"PITH_MODULE_PATH", "folders with transport modules (mpi, ucx), separated by colons; unset: beside the library"},
    {"PITH_PLUGIN_PATH", "folders with plug-ins, separated by colons"},
    {"PITH_PLUGINS", "plug-ins to load, separated by commas: NAME is pith_NAME.so in those folders"},
    {"PITH_PORT", "where ranks meet; unset: MASTER_PORT, or under torchrun one made of it"},
    {"PITH_PROFILE", "file for the statistics of adaptive specs, written by rank 0 at every plan, for pith plan; unset: none"},
    {"PITH_SECRET", "ranks without it are refused; unset: every rank is welcome; its value is never shown"},
    {"PITH_SEED", "of the torch backend's codecs with random numbers; unset: 0"},
    {"PITH_SPEC", "how the torch backend compresses float sums; unset: not at all"},
    {"PITH_THREADS", "of each rank that encode and decode large tensors; unset: 1"},
    {"PITH_TIMEOUT", "seconds without progress after which an operation fails; unset: 300"},
    {"PITH_TRACE", "file for a Chrome trace of each rank; %r is the rank, %h the host, %p the process; unset: none"},
    {"PITH_TRANSPORT", "auto, shm, tcp, mpi, ucx or inproc; unset: auto, shm within a host and tcp between hosts"},
};
enum { VARIABLE_COUNT = sizeof variables / sizeof *variables };

enum { FINDINGS_MAX = 16, FINDING_SIZE = 512, TEXT_SIZE = 64 };

typedef struct findings {
  size_t count;
  char text[FINDINGS_MAX][FINDING_SIZE];
} findings;

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
static int gpu_kernels(const char **text) {
  int can_run = pith_cuda_probe(text) == PITH_OK;
  if (!can_run) {
    *text = pith_error();
  }
  return can_run;
}

/* NCCL's version, or why there is none. */
static int nccl_version(char text[CLI_REASON_SIZE]) {
  int version;
  if (pith_nccl_probe(&version) != PITH_OK) {
    snprintf(text, CLI_REASON_SIZE, "%s", pith_error());
    return 0;
  }
  snprintf(text, CLI_REASON_SIZE, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  return 1;
}

static void print_gpu(const cli_machine *machine) {
  const char *text;
  int can_run = gpu_kernels(&text);
  printf("gpu         %s\n", gpu_state(machine));
  printf("            kernels %s%s\n", can_run ? "can run: " : "cannot run: ", text);
  char nccl[CLI_REASON_SIZE];
  printf("            %s%s\n", nccl_version(nccl) ? "NCCL " : "", nccl);
}

/* The value as it may be shown. */
static const char *value_of(const char *name) {
  const char *value = getenv(name);
  return value && !strcmp(name, "PITH_SECRET") ? "(set)" : value;
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

/* Variables nobody reads; the value stays unsaid, it may be a secret. */
static void examine_variable(const char *entry, findings *f) {
  char name[TEXT_SIZE];
  const char *nearest = NULL;
  snprintf(name, sizeof name, "%.*s", (int)strcspn(entry, "="), entry);
  for (size_t i = 0; i < VARIABLE_COUNT; i++) {
    if (is_named(entry, variables[i].name)) {
      return;
    }
    cli_nearest(name, variables[i].name, &nearest);
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

static void examine(findings *f) {
  examine_cpu_wish(f);
  for (char **entry = environ; *entry; entry++) {
    if (!strncmp(*entry, "PITH_", 5)) {
      examine_variable(*entry, f);
    }
  }
  examine_plugins(f);
}

/* ---- For people -------------------------------------------------------------------------------------------------- */

static void print_memory(const cli_machine *machine) {
  const double gibi = 0x1p-30;
  printf("memory      %.1f GiB, %.1f GiB available\n", (double)machine->memory * gibi,
         (double)machine->available_memory * gibi);
  printf("caches     ");
  for (size_t level = 0; level < 4; level++) {
    char text[TEXT_SIZE];
    if (machine->cache[level]) {
      printf(" L%zu %s", level + 1, cli_size_print(machine->cache[level], text));
    }
  }
  putchar('\n');
}

static const char *const transports[] = {"shm", "tcp", "mpi", "ucx", "inproc"};
enum { TRANSPORT_COUNT = sizeof transports / sizeof *transports };

static void print_transports(void) {
  for (int t = 0; t < TRANSPORT_COUNT; t++) {
    pith_status status = pith_transport_probe(transports[t]);
    printf("%-11s %-7s %s\n", t ? "" : "transports", transports[t], status == PITH_OK ? "can run" : pith_error());
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

static void print_lab(void) {
  char reason[CLI_REASON_SIZE];
  if (cli_network_probe(reason)) {
    printf("lab         pith lab can run: namespaces and links can be made, ip and tc (iproute2) are installed\n");
  } else {
    printf("lab         pith lab cannot run: %s\n", reason);
  }
}

static void print_machine(const cli_machine *machine) {
  printf("version     %s\n", pith_version());
  printf("compiler    %s\n", COMPILER);
  printf("system      %s\n", machine->system);
  printf("cpu         %s\n", machine->cpu);
  printf("cores       %zu, %zu usable by this process\n", machine->cores, machine->usable_cores);
  print_memory(machine);
  print_gpu(machine);
  print_transports();
  print_lab();
  printf("frameworks  not in this version: the C library and this command\n");
}

static void print_plugins(void) {
  pith_method method;
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

static void print_report(const cli_machine *machine, const findings *f) {
  print_machine(machine);
  printf("\nkernels\n");
  for (int isa = 0; isa < PITH_ISA_COUNT; isa++) {
    printf("  %-18s %s\n", pith_isa_name((pith_isa)isa), isa_state((pith_isa)isa));
  }
  printf("\nenvironment\n");
  for (size_t i = 0; i < VARIABLE_COUNT; i++) {
    const char *value = value_of(variables[i].name);
    printf("  %-18s %s\n  %-18s %s\n", variables[i].name, value ? value : "(unset)", "", variables[i].meaning);
  }
  print_plugins();
  printf("\n%s\n", f->count ? "findings" : "no findings");
  for (size_t i = 0; i < f->count; i++) {
    printf("  %s\n", f->text[i]);
  }
}

/* ---- For programs ------------------------------------------------------------------------------------------------ */

static void write_lab(cli_json *json) {
  char reason[CLI_REASON_SIZE];
  int works = cli_network_probe(reason);
  cli_json_object(json, "lab");
  cli_json_bool(json, "available", works);
  cli_json_string(json, "reason", works ? NULL : reason);
  cli_json_object_end(json);
}

static void write_gpu(cli_json *json, const cli_machine *machine) {
  const char *text;
  int can_run = gpu_kernels(&text);
  cli_json_string(json, "gpu", gpu_state(machine));
  cli_json_object(json, "gpu_kernels");
  cli_json_bool(json, "available", can_run);
  cli_json_string(json, "device", can_run ? text : NULL);
  cli_json_string(json, "reason", can_run ? NULL : text);
  cli_json_object_end(json);
  char nccl[CLI_REASON_SIZE];
  int is_there = nccl_version(nccl);
  cli_json_object(json, "nccl");
  cli_json_string(json, "version", is_there ? nccl : NULL);
  cli_json_string(json, "reason", is_there ? NULL : nccl);
  cli_json_object_end(json);
}

static void write_machine(cli_json *json, const cli_machine *machine) {
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
  write_gpu(json, machine);
  write_transports(json);
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
  for (size_t i = 0; i < VARIABLE_COUNT; i++) {
    cli_json_object(json, NULL);
    cli_json_string(json, "name", variables[i].name);
    cli_json_string(json, "value", value_of(variables[i].name));
    cli_json_string(json, "meaning", variables[i].meaning);
    cli_json_object_end(json);
  }
  cli_json_array_end(json);
}

static void write_plugins(cli_json *json) {
  pith_method method;
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

static void write_report(const cli_machine *machine, const findings *f) {
  cli_json json = {.file = stdout};
  cli_json_object(&json, NULL);
  write_machine(&json, machine);
  write_kernels(&json);
  write_variables(&json);
  write_plugins(&json);
  cli_json_array(&json, "findings");
  for (size_t i = 0; i < f->count; i++) {
    cli_json_string(&json, NULL, f->text[i]);
  }
  cli_json_array_end(&json);
  cli_json_object_end(&json);
}

int cli_doctor(int argc, char **argv) {
  int json = 0;
  const cli_option options[] = {{"--json", CLI_FLAG, &json, NULL, "print JSON"}, {.name = NULL}};
  const cli_usage usage = {"doctor", NULL, "What this machine can do, which settings are in force, and why not more.",
                           options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, NULL);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  cli_machine machine;
  findings f = {.count = 0};
  cli_machine_look(&machine);
  examine(&f);
  if (json) {
    write_report(&machine, &f);
  } else {
    print_report(&machine, &f);
  }
  return f.count ? CLI_FAILED : CLI_OK;
}

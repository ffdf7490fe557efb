/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes the seeds of the fuzz corpora: for each spec a few valid inputs, from which mutations and fuzzers start.
 *
 *   make_corpus FOLDER        writes FOLDER/quantize/…, FOLDER/sparse/…, …
 *
 * Run it again when a payload format, a message, a handshake or a checkpoint changes, or a method is added, and commit
 * what it writes. Inputs named finding-… are not its own: they broke something once.
 */
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "comm/comm.h"
#include "fuzz/checkpoint.h"
#include "fuzz/frame_operations.h"
#include "fuzz/fuzz.h"
#include "fuzz/make_handshakes.h"
#include "transport/tcp.h"

static const char *folder_root;
static unsigned written;

static float wave(size_t i) { return ((float)(i * 2654435761u % 1000) - 500.0f) / (float)(1 + i % 7 * 40); }

static void write_file(const char *target, const void *head, size_t head_size, const void *body, size_t body_size) {
  char path[512];
  snprintf(path, sizeof path, "%s/%s", folder_root, target);
  mkdir(path, 0777);
  snprintf(path, sizeof path, "%s/%s/%04u", folder_root, target, written++);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(head, 1, head_size, file) != head_size || fwrite(body, 1, body_size, file) != body_size ||
      fclose(file)) {
    perror(path);
    exit(1);
  }
}

void fuzz_write_input(const char *target, const void *head, size_t head_size, const void *body, size_t body_size) {
  write_file(target, head, head_size, body, body_size);
}

static pith_out payload_of(const char *spec, size_t n, pith_state **state) {
  pith_codec *codec;
  float *x = malloc((n + 1) * sizeof *x);
  pith_ctx ctx = PITH_CTX_INIT;
  for (size_t i = 0; i < n; i++) {
    x[i] = wave(i);
  }
  FUZZ_REQUIRE(pith_codec_create(spec, &codec) == PITH_OK && pith_state_create(codec, n, 0, state) == PITH_OK);
  pith_out out = {malloc(pith_codec_bound(codec, n) + 1), pith_codec_bound(codec, n), 0};
  FUZZ_REQUIRE(pith_encode(codec, *state, (pith_cspan){x, n, PITH_F32}, &out, &ctx) == PITH_OK);
  pith_codec_destroy(codec);
  free(x);
  return out;
}

/* The specs of each target, in its order: the number of a spec is the first byte of an input. */
static const char *const quantize_specs[] = {
#include "fuzz/specs_quantize.inc"
};
static const char *const sparse_specs[] = {
#include "fuzz/specs_sparse.inc"
};
static const char *const lowrank_specs[] = {
#include "fuzz/specs_lowrank.inc"
};
static const char *const encode_specs[] = {
#include "fuzz/specs_encode.inc"
};
static const char *const state_specs[] = {
#include "fuzz/specs_state.inc"
};

static void write_payloads(const char *target, const char *const *specs, size_t count, size_t n) {
  for (size_t i = 0; i < count; i++) {
    pith_state *state;
    pith_out out = payload_of(specs[i], n, &state);
    uint8_t head[4] = {(uint8_t)i, (uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(written % 8)};
    write_file(target, head, sizeof head, out.data, out.size);
    pith_state_destroy(state);
    free(out.data);
  }
}

static void write_states(size_t n) {
  for (size_t i = 0; i < FUZZ_COUNT(state_specs); i++) {
    pith_state *state;
    free(payload_of(state_specs[i], n, &state).data);
    pith_out out = {malloc(pith_state_save_size(state)), pith_state_save_size(state), 0};
    FUZZ_REQUIRE(pith_state_save(state, &out) == PITH_OK);
    uint8_t head[4] = {(uint8_t)i, (uint8_t)n, (uint8_t)(n >> 8), 0};
    write_file("state", head, sizeof head, out.data, out.size);
    pith_state_destroy(state);
    free(out.data);
  }
}

static void write_values(size_t n) {
  for (size_t i = 0; i < FUZZ_COUNT(encode_specs); i++) {
    float x[512];
    pith_codec *codec;
    FUZZ_REQUIRE(pith_codec_create(encode_specs[i], &codec) == PITH_OK);
    pith_codec_destroy(codec);
    for (size_t j = 0; j < n; j++) {
      x[j] = j == 5 && i % 3 == 0 ? 1.0f / 0.0f : wave(j + i);
    }
    uint8_t head[4] = {(uint8_t)i, 0, 0, (uint8_t)(written % 32)};
    write_file("encode", head, sizeof head, x, n * sizeof *x);
  }
}

static void write_texts(const char *target, const char *const *texts, size_t count) {
  for (size_t i = 0; i < count; i++) {
    write_file(target, texts[i], strlen(texts[i]), "", 0);
  }
}

/* Plans and statistics, good and almost good. */
static const char *const plan_texts[] = {
    "{\n  \"pith_plan\": 1,\n  \"note\": \"made by hand\",\n  \"default\": \"none\",\n  \"layers\": [\n"
    "    {\"name\": \"embed.weight\", \"spec\": \"ef/topk:0.01\", \"shape\": [50257, 768]},\n"
    "    {\"name\": \"fc1.weight\", \"spec\": \"q:4\", \"shape\": [512, 784], \"bytes\": 207000, \"share\": 0.25}\n  "
    "]\n}\n",
    "{\"pith_plan\": 1, \"method\": \"lgreco\", \"objective\": \"time\", \"reference\": \"q:4\", \"budget\": 1.5e-3, "
    "\"layers\": []}",
    "{\"pith_plan\":1,\"note\":\"\\u00e9\\ud83d\\ude00\\n\\\"\\\\\",\"layers\":[{\"name\":\"a\",\"spec\":\"q\"}]}",
    "{\"pith_plan\": 1, \"layers\": [{\"name\": \"a\", \"spec\": \"q\"}, {\"name\": \"a\", \"spec\": \"q\"}]}",
    "{\"pith_statistics\": 1, \"candidates\": [\"q:2\", \"q:4\", \"ef/topk:0.01\", \"powersgd:2\", \"none\"], "
    "\"layers\": [\n"
    "{\"name\": \"a\", \"shape\": [64, 64], \"samples\": 2, \"skipped\": 1, \"norm\": 8, \"top\": 1, "
    "\"bytes\": [2300, 4400, 400, 2048, 32768], \"errors\": [3, 0.5, 6, 5, 0]},\n"
    "{\"name\": \"b\", \"shape\": [128, 64], \"samples\": 2, \"norm\": 80, \"top\": 10, "
    "\"bytes\": [4600, 8800, 800, 3072, 65536], \"errors\": [20, 4, 60, 50.5, 0]},\n"
    "{\"name\": \"c\", \"shape\": [64], \"samples\": 0, \"skipped\": 0}]}",
    "{\"pith_statistics\": 1, \"candidates\": [\"q:2\"], \"layers\": [{\"name\": \"a\", \"shape\": [64, 64], "
    "\"samples\": 0}]}",
};

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static void write_checkpoint(uint8_t number, const uint8_t *bytes, size_t size) {
  write_file("checkpoint", &number, 1, bytes, size);
  number |= 128; /* the same with a checksum that is made right */
  write_file("checkpoint", &number, 1, bytes, size);
}

/* A reducer, fresh and after two steps. */
static void write_reducer(uint8_t number) {
  pith_reducer *reducer = fuzz_make_reducer(number);
  for (int step = 0; step < 3; step++) {
    float values[3][24];
    pith_out out = {malloc(pith_reducer_save_size(reducer)), pith_reducer_save_size(reducer), 0};
    FUZZ_REQUIRE(pith_reducer_save(reducer, &out) == PITH_OK);
    if (step != 1) {
      write_checkpoint(number, out.data, out.size);
    }
    free(out.data);
    for (size_t l = 0; l < 3; l++) {
      for (size_t i = 0; i < 24; i++) {
        values[l][i] = wave(24 * l + i);
      }
      FUZZ_REQUIRE(pith_reducer_start(reducer, l, values[l]) == PITH_OK);
    }
    FUZZ_REQUIRE(pith_reducer_finish(reducer) == PITH_OK);
  }
}

/* Shards, fresh and after a gather and a reduce-scatter. */
static void write_shards(void) {
  pith_reducer *reducer = fuzz_make_shards();
  for (int step = 0; step < 2; step++) {
    float values[48], all[48];
    pith_out out = {malloc(pith_reducer_save_size(reducer)), pith_reducer_save_size(reducer), 0};
    FUZZ_REQUIRE(pith_reducer_save(reducer, &out) == PITH_OK);
    write_checkpoint(FUZZ_CHECKPOINT_SHARDS, out.data, out.size);
    free(out.data);
    for (size_t i = 0; i < 48; i++) {
      values[i] = wave(i);
    }
    FUZZ_REQUIRE(pith_reducer_all_gather(reducer, (size_t[]){0}, 1, (pith_cspan){values, 24, PITH_F32},
                                         (pith_span){all, 24, PITH_F32}) == PITH_OK);
    FUZZ_REQUIRE(pith_reducer_reduce_scatter(reducer, (size_t[]){1, 2}, 2, (pith_cspan){values, 48, PITH_F32},
                                             (pith_span){all, 48, PITH_F32}, PITH_MEAN) == PITH_OK);
  }
  pith_reducer_destroy(reducer);
}

static void write_adapter(uint8_t number) {
  pith_adapter *adapter = fuzz_make_adapter(number);
  pith_out out = {malloc(pith_adapter_save_size(adapter)), pith_adapter_save_size(adapter), 0};
  FUZZ_REQUIRE(pith_adapter_save(adapter, &out) == PITH_OK);
  write_checkpoint(number, out.data, out.size);
  pith_adapter_destroy(adapter);
  free(out.data);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

/* A transport that keeps what rank 1 sends. */
static struct {
  pith_transport base;
  pith_transport *inner;
  uint8_t bytes[4096];
  size_t size;
} sent;

static pith_status send_and_keep(pith_transport *t, int peer, const struct iovec *pieces, int count, size_t *taken) {
  (void)t;
  PITH_TRY(sent.inner->ops->send(sent.inner, peer, pieces, count, taken));
  size_t left = *taken;
  for (int i = 0; i < count && left > 0; i++) {
    size_t n = pieces[i].iov_len < left ? pieces[i].iov_len : left;
    FUZZ_REQUIRE(sent.size + n <= sizeof sent.bytes);
    memcpy(sent.bytes + sent.size, pieces[i].iov_base, n);
    sent.size += n, left -= n;
  }
  return PITH_OK;
}

static pith_status receive_inner(pith_transport *t, int peer, void *buffer, size_t size, size_t *got) {
  (void)t;
  return sent.inner->ops->receive(sent.inner, peer, buffer, size, got);
}

typedef struct speaker {
  int rank, port;
  unsigned operation;
} speaker;

static void *speak(void *argument) {
  static const pith_transport_ops ops = {.name = "kept", .send = send_and_keep, .receive = receive_inner};
  const speaker *me = argument;
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  config.rank = me->rank, config.ranks = 2, config.transport = "inproc", config.port = me->port;
  FUZZ_REQUIRE(pith_comm_create(&config, &comm) == PITH_OK);
  if (me->rank == 1) {
    sent.base.ops = &ops;
    sent.inner = comm->link[0]->transport;
    comm->link[0]->transport = &sent.base;
  }
  FUZZ_REQUIRE(fuzz_frame_run(comm, me->operation) == PITH_OK);
  if (me->rank == 1) { /* without the goodbye */
    comm->link[0]->transport = sent.inner;
  }
  pith_comm_destroy(comm);
  return NULL;
}

/* What rank 1 says in each operation. Notices are written by hand. */
static void write_frames(void) {
  for (unsigned operation = 0; operation < FUZZ_FRAME_OPERATIONS; operation++) {
    pthread_t other;
    int port = 23000 + (int)(getpid() % 1000);
    speaker ranks[2] = {{0, port, operation}, {1, port, operation}};
    sent.size = 0;
    FUZZ_REQUIRE(pthread_create(&other, NULL, speak, &ranks[1]) == 0);
    speak(&ranks[0]);
    pthread_join(other, NULL);
    static const uint8_t flags[] = {0, FUZZ_FRAME_SEALED, FUZZ_FRAME_SEALED | FUZZ_FRAME_CHECKED};
    for (size_t i = 0; i < sizeof flags; i++) {
      uint8_t head[3] = {(uint8_t)operation, (uint8_t)(5 * i), flags[i]};
      write_file("frame", head, sizeof head, sent.bytes, sent.size);
    }
  }
  for (int kind = PITH_FRAME_ABORT; kind <= PITH_FRAME_SPEC; kind++) {
    uint8_t head[3] = {4, 0, FUZZ_FRAME_SEALED}, message[sizeof(pith_frame) + 5] = {0};
    pith_frame frame = {.kind = (uint16_t)kind, .operation = PITH_OP_ALLREDUCE, .sequence = 1, .length = 5};
    memcpy(message, &frame, sizeof frame);
    memcpy(message + sizeof frame, "q:4\x01!", 5);
    write_file("frame", head, sizeof head, message, sizeof message);
  }
}

/* ---- Addresses and ids ------------------------------------------------------------------------------------------- */

static void write_addresses(void) {
  static const char *const texts[] = {"10.0.0.1", "fd00::1", "127.0.0.1", "::1"};
  tcp_place place = {.token = 99, .connections = 2};
  for (size_t i = 0; i < FUZZ_COUNT(texts); i++) {
    pith_address address;
    FUZZ_REQUIRE(pith__sockaddr_parse(texts[i], 0, &place.at[place.count++]));
    pith__tcp_address_encode(&place, 12345, &address);
    write_file("address", &address.size, sizeof address.size, address.data, address.size);
  }
}

static void write_ids(void) {
  for (int with_secret = 0; with_secret < 2; with_secret++) {
    pith_config config = PITH_CONFIG_INIT;
    pith_unique_id id;
    config.interface = "127.0.0.1", config.secret = with_secret ? NULL : "known";
    FUZZ_REQUIRE(pith_unique_id_create(&config, &id) == PITH_OK);
    for (uint8_t is_sealed = 0; is_sealed < 2; is_sealed++) {
      write_file("id", &is_sealed, 1, id.bytes, sizeof id.bytes);
    }
  }
}

static const char *const launch_texts[] = {
    "RANK=1\nWORLD_SIZE=4\nLOCAL_RANK=1\nLOCAL_WORLD_SIZE=2\nMASTER_ADDR=10.0.0.1\nMASTER_PORT=29500\n"
    "TORCHELASTIC_RUN_ID=x",
    "OMPI_COMM_WORLD_RANK=0\nOMPI_COMM_WORLD_SIZE=2\nOMPI_COMM_WORLD_LOCAL_RANK=0\nOMPI_COMM_WORLD_LOCAL_SIZE=2\n"
    "PMIX_NAMESPACE=12",
    "PMI_RANK=3\nPMI_SIZE=4\nMPI_LOCALRANKID=1\nMPI_LOCALNRANKS=2\nPITH_PORT=1",
    "PMIX_RANK=1\nSLURM_NTASKS=2\nSLURM_STEP_TASKS_PER_NODE=2(x3),1",
    "SLURM_PROCID=5\nSLURM_NTASKS=8\nSLURM_NODEID=1\nSLURM_STEP_NODELIST=gpu[03-07,12],login\n"
    "SLURM_STEP_TASKS_PER_NODE=2(x3),1\nSLURM_JOB_ID=77\nSLURM_STEP_ID=1\nSLURM_LOCALID=1",
    "gpu[03-07,12],login",
    "2(x3),1",
    "RANK=-1\nWORLD_SIZE=99999999999",
};

int main(int argc, char **argv) {
  static const char *const spec_texts[] = {"q",
                                           "q:4",
                                           "q:4,bucket=256,round=stochastic",
                                           "ef/topk:0.01,values=fp16",
                                           "ef/hadamard/q:2",
                                           "ef/powersgd:4",
                                           "dgc:0.001,momentum=0.5",
                                           "signum:0.9",
                                           "terngrad",
                                           "onebit",
                                           "eden:4,block=64",
                                           "hadamard:64/sign,scale=unbiased,bucket=64",
                                           "ef:0.5/randomk:0.1,unbiased=1",
                                           "q:9",
                                           "topk:1e-3",
                                           "topk:0x1p-4",
                                           "momentum/sign",
                                           "ef//q",
                                           "q:4,",
                                           "/q",
                                           "q:4,bucket=",
                                           "inceptionn:1e-30",
                                           "dgc/topk:0.01",
                                           "none"};
  static const char *const rule_texts[] = {"*.bias=none;*norm*=none;embed*=ef/topk:0.01;*=q:4\nembed.weight",
                                           "q:4",
                                           "q:4,bucket=64",
                                           "a*b?c=fp16; *=none ;",
                                           "dense/kernel=q:2;*=bf16\ndense/kernel",
                                           "=q",
                                           ";",
                                           "*a*a*a*a*a*a*b=q:1;*=none\naaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                           "x=q:4=2",
                                           "*=unknown"};
  if (argc != 2) {
    fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  folder_root = argv[1];
  mkdir(folder_root, 0777);
  write_payloads("quantize", quantize_specs, FUZZ_COUNT(quantize_specs), 130);
  write_payloads("quantize", quantize_specs, FUZZ_COUNT(quantize_specs), 700);
  write_payloads("sparse", sparse_specs, FUZZ_COUNT(sparse_specs), 90);
  write_payloads("sparse", sparse_specs, FUZZ_COUNT(sparse_specs), 1500);
  write_payloads("lowrank", lowrank_specs, FUZZ_COUNT(lowrank_specs), 60);
  write_payloads("lowrank", lowrank_specs, FUZZ_COUNT(lowrank_specs), 900);
  write_states(40);
  write_states(300);
  write_values(150);
  write_values(3);
  write_texts("spec", spec_texts, FUZZ_COUNT(spec_texts));
  write_texts("rules", rule_texts, FUZZ_COUNT(rule_texts));
  write_texts("plan", plan_texts, FUZZ_COUNT(plan_texts));
  write_reducer(FUZZ_CHECKPOINT_FIXED);
  write_reducer(FUZZ_CHECKPOINT_ADAPTIVE);
  write_adapter(FUZZ_CHECKPOINT_LGRECO);
  write_adapter(FUZZ_CHECKPOINT_AUTO);
  write_frames();
  write_addresses();
  write_ids();
  write_texts("launch", launch_texts, FUZZ_COUNT(launch_texts));
  fuzz_make_handshakes();
  write_shards();
  return 0;
}

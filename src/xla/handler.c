/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions that XLA calls in place of an allreduce, for memory of the host and of a CUDA device. They read the
 * call frame, and leave the step to programs.c. That for CUDA differs in two places: it takes XLA's stream from the
 * frame, and its reducer has options.cuda.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "xla/programs.h"
#include "xla/xla_abi.h"

#define HAS(object, type, field) ((object)->size >= offsetof(type, field) + sizeof((object)->field))

/* ---- Versions ---------------------------------------------------------------------------------------------------- */

/* 1 + major · 2¹⁶ + minor of the interface that asked last; 0: none has. */
static atomic_uint version_seen;

static int is_known(const xla_api *api) {
  return HAS(api, xla_api, error_create) && api->version.major == XLA_MAJOR && api->version.minor >= XLA_MINOR_FIRST;
}

static pith_status fail_version(int major, int minor) {
  return pith_fail(
      PITH_ERR_UNSUPPORTED,
      "this jaxlib calls foreign functions by version %d.%d of XLA's interface, and Pith %s knows %d.%d to "
      "%d.%d, and later ones that XLA keeps compatible with these: install another jaxlib or Pith",
      major, minor, pith_version(), XLA_MAJOR, XLA_MINOR_FIRST, XLA_MAJOR, XLA_MINOR_LAST);
}

pith_status pith_xla_version(int *major, int *minor) {
  unsigned seen = atomic_load(&version_seen);
  PITH_REQUIRE(major && minor, PITH_ERR_ARGUMENT, "pith_xla_version: major and minor must not be NULL");
  PITH_REQUIRE(seen, PITH_ERR_STATE, "no handler of Pith has been registered with XLA");
  int found[2] = {(int)((seen - 1) >> 16), (int)((seen - 1) & 0xffff)};
  if (found[0] != XLA_MAJOR || found[1] < XLA_MINOR_FIRST) {
    return fail_version(found[0], found[1]);
  }
  *major = found[0];
  *minor = found[1];
  return PITH_OK;
}

/* Answers what XLA asks when a handler is registered: by which version of the interface it is to be called. XLA decides
 * whether it still does. Version 0.1 does not say which it is. */
static void answer_metadata(const xla_frame *frame, const xla_metadata_extension *extension) {
  const xla_api *api = frame->api;
  xla_metadata *metadata = extension->metadata;
  if ((api && !HAS(api, xla_api, version)) || extension->base.size < sizeof *extension ||
      !HAS(metadata, xla_metadata, traits)) {
    return;
  }
  int major = api ? api->version.major : XLA_MAJOR, minor = api ? api->version.minor : XLA_MINOR_FIRST;
  atomic_store(&version_seen, 1 + ((unsigned)major << 16 | (unsigned)minor));
  metadata->version.size = sizeof metadata->version;
  metadata->version.extensions = NULL;
  metadata->version.major = XLA_MAJOR;
  metadata->version.minor = minor < XLA_MINOR_LAST ? minor : XLA_MINOR_LAST;
  metadata->traits = 0;
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static int code_of(pith_status status) {
  switch (status) {
    case PITH_ERR_ARGUMENT:
    case PITH_ERR_SPEC:
    case PITH_ERR_RANGE:
    case PITH_ERR_MISMATCH:
      return XLA_INVALID_ARGUMENT;
    case PITH_ERR_PEER:
      return XLA_UNAVAILABLE;
    case PITH_ERR_TIMEOUT:
      return XLA_DEADLINE_EXCEEDED;
    case PITH_ERR_MEMORY:
      return XLA_RESOURCE_EXHAUSTED;
    case PITH_ERR_STATE:
      return XLA_FAILED_PRECONDITION;
    case PITH_ERR_ABORTED:
      return XLA_ABORTED;
    case PITH_ERR_INTERRUPTED:
      return XLA_CANCELLED;
    case PITH_ERR_UNSUPPORTED:
      return XLA_UNIMPLEMENTED;
    default:
      return XLA_INTERNAL;
  }
}

static xla_error *error_of(const xla_frame *frame, pith_status status) {
  char text[1024];
  snprintf(text, sizeof text, "pith: %s", pith_error());
  xla_error_request request = {.size = sizeof request, .message = text, .code = code_of(status)};
  return frame->api->error_create(&request);
}

/* ---- The frame --------------------------------------------------------------------------------------------------- */

static int is_named(const xla_bytes *name, const char *text) {
  return name->size == strlen(text) && memcmp(name->data, text, name->size) == 0;
}

/* The item of an attribute; NULL: there is none. */
static pith_status find_attribute(const xla_attributes *attributes, const char *name, int kind, const void **item) {
  *item = NULL;
  for (int64_t i = 0; i < attributes->count; i++) {
    if (is_named(attributes->names[i], name)) {
      PITH_REQUIRE(attributes->kinds[i] == kind, PITH_ERR_ARGUMENT,
                   "the attribute %s of the foreign call is of kind %d", name, attributes->kinds[i]);
      *item = attributes->items[i];
    }
  }
  return PITH_OK;
}

static pith_status read_number(const xla_attributes *attributes, const char *name, int is_needed, int64_t *number) {
  const void *item = NULL;
  PITH_TRY(find_attribute(attributes, name, XLA_KIND_SCALAR, &item));
  const xla_scalar *scalar = item;
  PITH_REQUIRE(scalar || !is_needed, PITH_ERR_ARGUMENT, "the foreign call has no attribute %s", name);
  PITH_REQUIRE(!scalar || scalar->type == XLA_S64, PITH_ERR_ARGUMENT, "the attribute %s of the foreign call is no s64",
               name);
  if (scalar) {
    memcpy(number, scalar->value, sizeof *number);
  }
  return PITH_OK;
}

static pith_status read_numbers(const xla_attributes *attributes, const char *name, xla_array *numbers) {
  const void *item = NULL;
  PITH_TRY(find_attribute(attributes, name, XLA_KIND_ARRAY, &item));
  if (item) {
    *numbers = *(const xla_array *)item;
    PITH_REQUIRE(numbers->type == XLA_S64, PITH_ERR_ARGUMENT, "the attribute %s of the foreign call has no s64", name);
  }
  return PITH_OK;
}

static size_t type_size(int type) {
  switch (type) {
    case XLA_U8:
      return 1;
    case XLA_F16:
    case XLA_BF16:
      return 2;
    case XLA_U32:
    case XLA_F32:
      return 4;
    case XLA_F64:
      return 8;
    default:
      return 0;
  }
}

static pith_status buffer_at(const xla_list *list, int64_t index, xla_buffer **buffer, size_t *bytes) {
  xla_buffer *found = list->items[index];
  PITH_REQUIRE(list->kinds[index] == XLA_KIND_BUFFER && HAS(found, xla_buffer, dims), PITH_ERR_ARGUMENT,
               "operand %lld of the foreign call is no buffer", (long long)index);
  *bytes = type_size(found->type);
  PITH_REQUIRE(*bytes, PITH_ERR_ARGUMENT,
               "operand %lld of the foreign call has XLA's type %d, which Pith does not take", (long long)index,
               found->type);
  for (int64_t d = 0; d < found->rank; d++) {
    *bytes *= (size_t)found->dims[d];
  }
  *buffer = found;
  return PITH_OK;
}

/* Results have the buffers of their arguments, unless somebody else needs those as they were: then XLA has made copies,
 * or leaves them to the step. Arguments without a result only order calls. */
static pith_status read_operands(const xla_frame *frame, pith_xla_operand *operands, size_t count) {
  for (size_t i = 0; i < count; i++) {
    xla_buffer *from = NULL, *to = NULL;
    size_t bytes = 0;
    PITH_TRY(buffer_at(&frame->arguments, (int64_t)i, &from, &bytes));
    PITH_TRY(buffer_at(&frame->results, (int64_t)i, &to, &operands[i].bytes));
    PITH_REQUIRE(bytes == operands[i].bytes, PITH_ERR_ARGUMENT,
                 "operand %zu of the foreign call has %zu bytes, and its result %zu", i, bytes, operands[i].bytes);
    operands[i].from = from->data;
    operands[i].to = to->data;
  }
  return PITH_OK;
}

/* 0 where XLA does not say. */
static int ordinal_of(const xla_frame *frame) {
  const xla_api *api = frame->api;
  xla_ordinal_request request = {.size = sizeof request, .context = frame->context};
  if (!HAS(api, xla_api, device_ordinal)) {
    return 0;
  }
  xla_error *error = api->device_ordinal(&request);
  if (error) {
    xla_error_destroy_request gone = {.size = sizeof gone, .error = error};
    api->error_destroy(&gone);
    return 0;
  }
  return request.ordinal;
}

static pith_status find_stream(const xla_frame *frame, void **stream) {
  const xla_api *api = frame->api;
  xla_stream_request request = {.size = sizeof request, .context = frame->context};
  PITH_REQUIRE(HAS(api, xla_api, stream), PITH_ERR_UNSUPPORTED, "this XLA gives no streams to foreign calls");
  xla_error *error = api->stream(&request);
  if (error) {
    xla_error_message_request message = {.size = sizeof message, .error = error};
    xla_error_destroy_request gone = {.size = sizeof gone, .error = error};
    api->error_message(&message);
    pith_status status =
        pith_fail(PITH_ERR_SYSTEM, "XLA has no stream for the call: %s", message.message ? message.message : "");
    api->error_destroy(&gone);
    return status;
  }
  *stream = request.stream;
  return PITH_OK;
}

/* Without the attribute part it is a whole step. */
static pith_status read_call(const xla_frame *frame, pith_xla_call *call) {
  int64_t key = 0;
  PITH_TRY(read_number(&frame->attributes, "key", 1, &key));
  PITH_TRY(read_number(&frame->attributes, "part", 0, &call->part));
  PITH_TRY(read_number(&frame->attributes, "site", 0, &call->site));
  call->key = (uint64_t)key;
  PITH_TRY(read_numbers(&frame->attributes, "layers", &call->layers));
  PITH_TRY(read_numbers(&frame->attributes, "order", &call->order));
  call->ordinal = ordinal_of(frame);
  return call->cuda ? find_stream(frame, &call->stream) : PITH_OK;
}

static pith_status run(const xla_frame *frame, const pith_xla_call *call, pith_xla_program *program) {
  PITH_REQUIRE(frame->results.count > 0 && frame->arguments.count >= frame->results.count, PITH_ERR_ARGUMENT,
               "the foreign call has %lld arguments and %lld results", (long long)frame->arguments.count,
               (long long)frame->results.count);
  size_t count = (size_t)frame->results.count;
  PITH_FREED pith_xla_operand *operands = calloc(count, sizeof *operands);
  PITH_REQUIRE(operands, PITH_ERR_MEMORY, "no memory for a foreign call");
  PITH_TRY(read_operands(frame, operands, count));
  return pith__xla_step(program, call, operands, count);
}

static pith_status call_by(const xla_frame *frame, int cuda) {
  pith_xla_program *program = NULL;
  pith_xla_call call = {.part = PITH_XLA_WHOLE, .cuda = cuda};
  PITH_REQUIRE(HAS(frame, xla_frame, attributes), PITH_ERR_UNSUPPORTED,
               "the call frame of XLA has %zu bytes, and at least %zu are known", frame->size,
               offsetof(xla_frame, attributes) + sizeof frame->attributes);
  PITH_REQUIRE(frame->stage == XLA_STAGE_EXECUTE, PITH_ERR_UNSUPPORTED,
               "the handler was called in stage %d of XLA, and works in stage %d", frame->stage, XLA_STAGE_EXECUTE);
  PITH_TRY(read_call(frame, &call));
  PITH_TRY(pith__xla_enter(&call, &program));
  pith_status status = run(frame, &call, program);
  pith__xla_leave(program, &call, status);
  return status;
}

static xla_error *handle(const xla_frame *frame, int cuda) {
  for (const xla_extension *e = frame->extensions; e; e = e->next) {
    if (e->type == XLA_EXTENSION_METADATA) {
      answer_metadata(frame, (const xla_metadata_extension *)(const void *)e);
      return NULL;
    }
  }
  pith_status status =
      is_known(frame->api) ? call_by(frame, cuda) : fail_version(frame->api->version.major, frame->api->version.minor);
  if (status != PITH_OK && !HAS(frame->api, xla_api, error_create)) {
    fprintf(stderr, "pith: %s\n", pith_error()); /* no error could be returned, and no result may be */
    abort();
  }
  return status == PITH_OK ? NULL : error_of(frame, status);
}

void *pith_xla_allreduce_host(void *frame) { return handle(frame, 0); }

void *pith_xla_allreduce_cuda(void *frame) { return handle(frame, 1); }

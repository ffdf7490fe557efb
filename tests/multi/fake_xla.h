/* SPDX-License-Identifier: Apache-2.0 */
/* An XLA of our own, for tests of the handlers: errors, device and stream, and call frames. */
#ifndef PITH_TESTS_FAKE_XLA_H
#define PITH_TESTS_FAKE_XLA_H

#include <pith/xla.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"
#include "xla/xla_abi.h"

enum { BUFFERS_MOST = 16, ATTRIBUTES_MOST = 5 };

typedef struct fake_error {
  char text[1024];
  int code;
} fake_error;

static xla_error *create_error(xla_error_request *request) {
  fake_error *error = calloc(1, sizeof *error);
  CHECK_EQ(request->size, sizeof *request);
  snprintf(error->text, sizeof error->text, "%s", request->message);
  error->code = request->code;
  return (xla_error *)(void *)error;
}

static _Thread_local int32_t ordinal_now;

static xla_error *get_ordinal(xla_ordinal_request *request) {
  request->ordinal = ordinal_now;
  return NULL;
}

/* Another one for each call. */
static xla_error *get_stream(xla_stream_request *request) {
  static _Thread_local char streams[2];
  static _Thread_local unsigned calls;
  CHECK_EQ(request->size, sizeof *request);
  request->stream = &streams[calls++ % 2];
  return NULL;
}

static xla_api make_api(int major, int minor) {
  return (xla_api){.size = sizeof(xla_api),
                   .version = {.size = sizeof(xla_version), .major = major, .minor = minor},
                   .error_create = create_error,
                   .stream = get_stream,
                   .device_ordinal = get_ordinal};
}

typedef struct fake_call {
  xla_api api;
  xla_frame frame;
  xla_buffer buffer[BUFFERS_MOST];
  int64_t dims[BUFFERS_MOST];
  int kinds[BUFFERS_MOST];
  void *items[BUFFERS_MOST];
  int64_t key, part, site;
  xla_scalar scalar[3];
  xla_array array[2];
  xla_bytes name[ATTRIBUTES_MOST], *names[ATTRIBUTES_MOST];
  int attribute_kinds[ATTRIBUTES_MOST];
  void *attributes[ATTRIBUTES_MOST];
} fake_call;

static void add_attribute(fake_call *c, const char *name, int kind, void *item) {
  int64_t i = c->frame.attributes.count++;
  c->name[i] = (xla_bytes){name, strlen(name)};
  c->names[i] = &c->name[i];
  c->attribute_kinds[i] = kind;
  c->attributes[i] = item;
}

/* A call whose results have the buffers of its arguments. */
static void begin_call(fake_call *c, int64_t key) {
  memset(c, 0, sizeof *c);
  c->api = make_api(0, 3);
  c->key = key;
  xla_list list = {.size = sizeof list, .kinds = c->kinds, .items = c->items};
  c->frame = (xla_frame){.size = sizeof c->frame, .api = &c->api, .stage = XLA_STAGE_EXECUTE};
  c->frame.arguments = c->frame.results = list;
  c->frame.attributes = (xla_attributes){sizeof(xla_attributes), NULL, 0, c->attribute_kinds, c->names, c->attributes};
  c->scalar[0] = (xla_scalar){XLA_S64, &c->key};
  add_attribute(c, "key", XLA_KIND_SCALAR, &c->scalar[0]);
}

/* The call is a part of a step: it starts these layers, or finishes. `order` in part 0. */
static inline void set_part(fake_call *c, int64_t part, int64_t *layers, size_t count, int64_t *order, size_t all) {
  c->part = part;
  c->scalar[1] = (xla_scalar){XLA_S64, &c->part};
  c->array[0] = (xla_array){XLA_S64, count, layers};
  c->array[1] = (xla_array){XLA_S64, all, order};
  add_attribute(c, "part", XLA_KIND_SCALAR, &c->scalar[1]);
  if (layers) {
    add_attribute(c, "layers", XLA_KIND_ARRAY, &c->array[0]);
  }
  if (order) {
    c->scalar[2] = (xla_scalar){XLA_S64, &c->site};
    add_attribute(c, "order", XLA_KIND_ARRAY, &c->array[1]);
    add_attribute(c, "site", XLA_KIND_SCALAR, &c->scalar[2]);
  }
}

static void add_buffer(fake_call *c, int type, void *data, int64_t n) {
  int64_t i = c->frame.arguments.count++;
  c->frame.results.count++;
  c->dims[i] = n;
  c->kinds[i] = XLA_KIND_BUFFER;
  c->buffer[i] = (xla_buffer){sizeof(xla_buffer), NULL, type, data, 1, &c->dims[i]};
  c->items[i] = &c->buffer[i];
}

/* Makes the call; gives the error's code, 0 for none. */
static int make_call_by(void *(*handler)(void *), fake_call *c, const char *part) {
  fake_error *error = handler(&c->frame);
  int code = error ? error->code : 0;
  if (error && part && !strstr(error->text, part)) {
    test_fail(__FILE__, __LINE__, "\"%s\" is not in: %s", part, error->text);
  }
  free(error);
  return code;
}

#endif

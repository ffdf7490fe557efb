/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The binary interface between XLA and functions that compiled programs call (XLA's "FFI", C interface 0.1 to 0.3, as
 * jaxlib 0.4.38 to 0.10 have it): the structs and numbers that the handler uses, and no others. XLA promises that they
 * stay as they are within a major version, and that structs grow at their end only; each begins with its size.
 *
 * They are declared here and not included from jaxlib, so that the library is built without it and works with each.
 */
#ifndef PITH_XLA_XLA_ABI_H
#define PITH_XLA_XLA_ABI_H

#include <stddef.h>
#include <stdint.h>

enum { XLA_MAJOR = 0, XLA_MINOR_FIRST = 1, XLA_MINOR_LAST = 3 }; /* versions of the interface that are known */

enum { XLA_EXTENSION_METADATA = 1 };
enum { XLA_STAGE_EXECUTE = 3 };
enum { XLA_KIND_BUFFER = 1 };                     /* of arguments and results */
enum { XLA_KIND_ARRAY = 1, XLA_KIND_SCALAR = 3 }; /* of attributes */
enum { XLA_S64 = 5, XLA_U8 = 6, XLA_U32 = 8, XLA_F16 = 10, XLA_F32 = 11, XLA_F64 = 12, XLA_BF16 = 16 };

/* Codes of errors. */
enum {
  XLA_CANCELLED = 1,
  XLA_INVALID_ARGUMENT = 3,
  XLA_DEADLINE_EXCEEDED = 4,
  XLA_RESOURCE_EXHAUSTED = 8,
  XLA_FAILED_PRECONDITION = 9,
  XLA_ABORTED = 10,
  XLA_UNIMPLEMENTED = 12,
  XLA_INTERNAL = 13,
  XLA_UNAVAILABLE = 14
};

typedef struct xla_error xla_error;
typedef struct xla_context xla_context;

typedef struct xla_extension {
  size_t size;
  int type;
  struct xla_extension *next;
} xla_extension;

typedef struct xla_version {
  size_t size;
  xla_extension *extensions;
  int major, minor;
} xla_version;

/* What XLA asks a handler for when it is registered. */
typedef struct xla_metadata {
  size_t size;
  xla_version version;
  uint32_t traits;
} xla_metadata;

typedef struct xla_metadata_extension {
  xla_extension base;
  xla_metadata *metadata;
} xla_metadata_extension;

typedef struct xla_error_request {
  size_t size;
  xla_extension *extensions;
  const char *message;
  int code;
} xla_error_request;

typedef struct xla_error_message_request {
  size_t size;
  xla_extension *extensions;
  xla_error *error;
  const char *message; /* out */
} xla_error_message_request;

typedef struct xla_error_destroy_request {
  size_t size;
  xla_extension *extensions;
  xla_error *error;
} xla_error_destroy_request;

typedef struct xla_stream_request {
  size_t size;
  xla_extension *extensions;
  xla_context *context;
  void *stream; /* out: a CUstream */
} xla_stream_request;

typedef struct xla_ordinal_request {
  size_t size;
  xla_extension *extensions;
  xla_context *context;
  int32_t ordinal; /* out */
} xla_ordinal_request;

/* What XLA offers. Functions that the handler does not call stand for their place. */
typedef struct xla_api {
  size_t size;
  xla_extension *extensions;
  xla_version version;
  const void *internal;
  xla_error *(*error_create)(xla_error_request *request);
  void (*error_message)(xla_error_message_request *request);
  void (*error_destroy)(xla_error_destroy_request *request);
  void (*handler_register)(void);
  xla_error *(*stream)(xla_stream_request *request);
  void (*others[12])(void);
  xla_error *(*device_ordinal)(xla_ordinal_request *request);
} xla_api;

typedef struct xla_buffer {
  size_t size;
  xla_extension *extensions;
  int type;
  void *data;
  int64_t rank;
  int64_t *dims;
} xla_buffer;

/* Arguments and results. */
typedef struct xla_list {
  size_t size;
  xla_extension *extensions;
  int64_t count;
  int *kinds;
  void **items;
} xla_list;

typedef struct xla_bytes {
  const char *data;
  size_t size;
} xla_bytes;

typedef struct xla_scalar {
  int type;
  void *value;
} xla_scalar;

typedef struct xla_array {
  int type;
  size_t size;
  void *data;
} xla_array;

typedef struct xla_attributes {
  size_t size;
  xla_extension *extensions;
  int64_t count;
  int *kinds;
  xla_bytes **names;
  void **items;
} xla_attributes;

typedef struct xla_frame {
  size_t size;
  xla_extension *extensions;
  const xla_api *api;
  xla_context *context;
  int stage;
  xla_list arguments, results;
  xla_attributes attributes;
} xla_frame;

#endif

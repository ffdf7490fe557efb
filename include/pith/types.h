/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The basic types of Pith's interface: status codes, tensors, byte buffers, and the description of a layer. Part of the
 * public API; pith.h includes it.
 *
 * Structs that can grow. Most structs begin with `size`, which the program sets to sizeof(struct); every such struct
 * has an initializer PITH_…_INIT that does so. A later version may add fields at the end, and programs and plug-ins
 * that were built with an older header keep working:
 *  - A struct that the program fills may have the size of any version since 0.2. Fields that it lacks get their
 *    default. A struct from a newer header is accepted if all fields that this library does not know are zero;
 *    otherwise the call fails with PITH_ERR_ARGUMENT.
 *  - In a struct that the library fills, only the first `size` bytes are written. Fields that the library does not know
 *    keep their values.
 *  - In an array of such structs every element has the same `size`, which is also the distance in bytes from one
 *    element to the next.
 *  - A struct that can grow never contains another one by value.
 * Structs without `size` (pith_span, pith_cspan, pith_bytes, pith_out, pith_value, pith_unique_id) never change.
 */
#ifndef PITH_TYPES_H
#define PITH_TYPES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define PITH_API __attribute__((visibility("default")))
#else
#define PITH_API
#endif

/* The version of the loaded library, such as "0.2.0". It may differ from the version of the header, PITH_VERSION_*. */
PITH_API const char *pith_version(void);

/* ---- Status ------------------------------------------------------------------------------------------------------ */

/* Values are frozen, since they are passed between processes and languages. X(name, value, text) */
#define PITH_STATUS_LIST(X)                          \
  X(OK, 0, "success")                                \
  X(ERR_ARGUMENT, 1, "invalid argument")             \
  X(ERR_SPEC, 2, "invalid spec")                     \
  X(ERR_RANGE, 3, "value out of range")              \
  X(ERR_UNSUPPORTED, 4, "parts do not fit together") \
  X(ERR_BUFFER, 5, "buffer too small")               \
  X(ERR_CORRUPT, 6, "corrupt payload")               \
  X(ERR_MEMORY, 7, "out of memory")                  \
  X(ERR_STATE, 8, "state does not fit")              \
  X(ERR_PLUGIN, 9, "plug-in cannot be used")         \
  X(ERR_SYSTEM, 10, "system call failed")            \
  X(ERR_PEER, 11, "a rank failed")                   \
  X(ERR_TIMEOUT, 12, "timed out")                    \
  X(ERR_MISMATCH, 13, "ranks disagree")              \
  X(ERR_ABORTED, 14, "aborted")                      \
  X(ERR_INTERRUPTED, 15, "interrupted")

/* What a call that can fail returns. */
typedef enum pith_status {
#define PITH_STATUS_ENUM(name, value, text) PITH_##name = value,
  PITH_STATUS_LIST(PITH_STATUS_ENUM)
#undef PITH_STATUS_ENUM
} pith_status;

/* The status in words. Never NULL, for any value. */
PITH_API const char *pith_status_string(pith_status status);

/* The message of this thread's last failed call: what went wrong, where, and what to do. Valid until the next failed
 * call of this thread. */
PITH_API const char *pith_error(void);

/* For plug-ins and carriers. Sets the message that pith_error() returns in this thread, and returns `status`. */
PITH_API pith_status pith_fail(pith_status status, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* ---- Tensors and bytes ------------------------------------------------------------------------------------------- */

/* The type of a tensor's values. Values are frozen: they are sent between ranks. */
typedef enum pith_dtype {
  PITH_F32 = 0,
  PITH_F16 = 1,
  PITH_BF16 = 2,
  PITH_I8 = 3,
  PITH_I16 = 4,
  PITH_I32 = 5,
  PITH_F64 = 6,
  PITH_I64 = 7,
  PITH_U8 = 8,
} pith_dtype;

PITH_API size_t pith_dtype_size(pith_dtype dtype);      /* bytes of one value; 0 for an unknown type */
PITH_API const char *pith_dtype_name(pith_dtype dtype); /* "f32", …; "?" for an unknown type */

/* n values in memory, aligned for one value. */
typedef struct pith_span {
  void *data;
  size_t n;
  pith_dtype dtype;
} pith_span;

/* The same, read only. */
typedef struct pith_cspan {
  const void *data;
  size_t n;
  pith_dtype dtype;
} pith_cspan;

/* Bytes to read, such as a payload. */
typedef struct pith_bytes {
  const void *data;
  size_t size;
} pith_bytes;

/* A buffer to fill. The caller sets data and capacity; a call that succeeds sets size to the bytes it wrote. */
typedef struct pith_out {
  void *data;
  size_t capacity;
  size_t size;
} pith_out;

/* How a collective combines the values of several ranks into one. */
typedef enum pith_reduce_op {
  PITH_SUM = 0,
  PITH_MAX = 1,
  PITH_MIN = 2,
  PITH_PROD = 3,
  PITH_MEAN = 4, /* floats only */
  PITH_BAND = 5, /* integers only, like the two below */
  PITH_BOR = 6,
  PITH_BXOR = 7,
} pith_reduce_op;

/* A layer of a model, as programs describe it to reducers, profiles, adapters and plans. Calls that take a pith_layer
 * copy its name and shape. */
typedef struct pith_layer {
  size_t size;         /* sizeof(pith_layer) */
  const char *name;    /* unique in the model */
  const size_t *shape; /* `dimensions` numbers; their product is the number of values */
  size_t dimensions;
  pith_dtype dtype;  /* type of the gradient: f32, f16 or bf16. Profiles, adapters and plans do not use it */
  const char *exact; /* reducers: NULL lets the rules decide. A text says why this layer is never compressed, whatever
                        the rules say; its gradient may then also be f64 */
} pith_layer;

#define PITH_LAYER_INIT {.size = sizeof(pith_layer)}

#ifdef __cplusplus
}
#endif
#endif

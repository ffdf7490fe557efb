/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of other sizes than this library's own: those of programs and plug-ins built with another header. */
#include "base/struct_size.h"

#define SIZE_MOST 65536 /* a larger value is uninitialized memory, not the size of a struct */

static pith_status check_size(size_t size, size_t first, const char *type) {
  PITH_REQUIRE(size >= first && size <= SIZE_MOST && size % sizeof(size_t) == 0, PITH_ERR_ARGUMENT,
               "%s.size is %zu, which no version of the struct has had: set it to sizeof(%s)", type, size, type);
  return PITH_OK;
}

/* Whether the fields that we do not know are unused. */
static int is_zero(const char *bytes, size_t size) {
  for (size_t i = 0; i < size; i++) {
    if (bytes[i]) {
      return 0;
    }
  }
  return 1;
}

pith_status pith__struct_read_other(void *full, size_t full_size, const void *given, size_t first, const char *type) {
  size_t size = *(const size_t *)given;
  PITH_TRY(check_size(size, first, type));
  size_t known = size < full_size ? size : full_size;
  PITH_REQUIRE(is_zero((const char *)given + known, size - known), PITH_ERR_ARGUMENT,
               "%s has %zu bytes, of which libpith %s knows the first %zu, and others are not zero: this program was "
               "built for a newer version and uses something that this one does not have",
               type, size, pith_version(), full_size);
  memcpy(full, given, known);
  *(size_t *)full = full_size;
  return PITH_OK;
}

pith_status pith__element_read(void *full, size_t full_size, const void *array, size_t index, size_t first,
                               const char *type) {
  size_t stride = *(const size_t *)array;
  PITH_TRY(check_size(stride, first, type));
  const char *element = (const char *)array + index * stride;
  size_t size = *(const size_t *)(const void *)element;
  PITH_REQUIRE(size == stride, PITH_ERR_ARGUMENT,
               "%s.size is %zu in element %zu of an array and %zu in its first: set it to sizeof(%s) in all of them",
               type, size, index, stride, type);
  return pith__struct_read(full, full_size, element, first, type);
}

pith_status pith__struct_write(void *to, const void *full, size_t full_size, size_t first, const char *type) {
  size_t size = *(const size_t *)to;
  PITH_TRY(check_size(size, first, type));
  size_t known = size < full_size ? size : full_size;
  memcpy((char *)to + sizeof size, (const char *)full + sizeof size, known - sizeof size);
  return PITH_OK;
}

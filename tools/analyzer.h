/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For clang's analyzer alone (tools/check-code): pith_fail() gives back the status it gets. Without knowing this, the
 * analyzer takes every failure for a possible success, and warns of outputs that were not set.
 */
#include <pith/plugin.h>

#define pith_fail(status, ...) (pith_fail((status), __VA_ARGS__), (status))

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A system of sockets in memory, for fuzz targets whose parsers read from sockets. The linker sends the library's calls
 * here (--wrap, CMakeLists.txt), and every byte that a peer says comes from the input. Nothing sleeps: poll() takes the
 * next record of the input, and once there is none, time jumps to the end of the wait.
 *
 * The input is one byte of flags, then records:
 *
 *   connection 1, flags 1, size 2, then the bytes
 *
 * Connections are numbered in the order in which they came or were made. A record for the next number is somebody who
 * connects. Random numbers are always the same, so that an exchange that was recorded once is right again.
 */
#ifndef PITH_TESTS_FAKE_SOCKETS_H
#define PITH_TESTS_FAKE_SOCKETS_H

#include "fuzz/fuzz.h"

enum { FAKE_TRUSTS = 1 }; /* flags of an input: every proof counts as right */

enum { /* flags of a record */
       FAKE_CLOSES = 1,
       FAKE_BRINGS_DESCRIPTOR = 2,
       FAKE_OTHER_USER = 4,
       FAKE_FAILS = 8
}; /* the connection is reset */

enum { FAKE_RECORD_HEAD = 4 };

/* Begins a world with that input; everything the library opens from now on is of it. */
void fake_begin(fuzz_input in);

/* Ends it: a descriptor that is still open is a finding. */
void fake_end(void);

#endif

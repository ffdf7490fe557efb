/* SPDX-License-Identifier: Apache-2.0 */
/* Asks whether a wait should end. */
#include "base/interrupt.h"

#include <sys/syscall.h>
#include <unistd.h>

static _Thread_local int is_asking;

int pith__interrupt_is_possible(const pith_interrupt *interrupt) {
  return interrupt->ask && !is_asking && getpid() == (pid_t)syscall(SYS_gettid);
}

int pith__interrupt_ask(const pith_interrupt *interrupt) {
  if (!pith__interrupt_is_possible(interrupt)) {
    return 0;
  }
  is_asking = 1;
  int answer = interrupt->ask(interrupt->context);
  is_asking = 0;
  return answer;
}

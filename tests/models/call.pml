/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ranks that may call each other at the same time (tcp.h, shm_link.h): a link is made on demand, each may want it,
 * and both must end with the same connection. Rank 1 is the higher one.
 *
 * A connection begins when both sides have said hello and the caller has believed the listener. Then the caller sends
 * its proof, and the listener judges: it confirms, or drops the connection. A listener may lose a connection before it
 * has judged it (strangers take its place, an address was given up): the caller calls again.
 *
 * Checked over all interleavings: no rank has a link while the other has one over another connection, or has dropped
 * that connection; and where a rank wants a link both have one in the end.
 *
 * Variants that must be found wrong:
 *   -DNO_CONFIRMATION   a caller takes its connection for the link once it has sent its proof
 *   -DNO_ORDER          a listener confirms whatever it has sent itself
 *   -DNO_YIELD          the lower rank, too, insists on a call of its own
 */
#define CALLS 3  /* of each rank, ever */
#define LOSSES 1 /* of all connections */
#define CONNECTIONS 6 /* of both */
#define NONE 6

bool wants[2];
byte calls[2];
byte call[2] = NONE; /* the rank's own, which is under way */
byte link[2] = NONE;
bool has_proof[CONNECTIONS], is_judged[CONNECTIONS], is_confirmed[CONNECTIONS];
bool is_refused[CONNECTIONS];  /* by the listener */
bool is_given_up[CONNECTIONS]; /* by the caller */
byte losses;

#define CALLER(c) ((c) / CALLS)
#define OTHER(me) (1 - (me))
#define LAST(me) (OTHER(me) * CALLS + calls[OTHER(me)] - 1) /* call of the other */

#ifdef NO_ORDER
#define INSISTS(me) false
#endif
#ifdef NO_YIELD
#define INSISTS(me) (call[me] != NONE && has_proof[call[me]])
#endif
#ifndef INSISTS
#define INSISTS(me) (me == 1 && call[me] != NONE && has_proof[call[me]])
#endif

inline take(me, c) {
  link[me] = c;
  assert(link[OTHER(me)] == NONE || link[OTHER(me)] == c);
  assert(CALLER(c) == me || !is_given_up[c])
}

inline judge(me, c) {
  is_judged[c] = true;
  if
  :: link[me] != NONE || INSISTS(me) -> is_refused[c] = true /* whether it was given up is not known here yet */
  :: else ->
    is_confirmed[c] = true;
    if
    :: call[me] != NONE -> is_given_up[call[me]] = true; call[me] = NONE
    :: else
    fi;
    take(me, c)
  fi
}

proctype rank(byte me) {
  byte c;
end:
  do
  :: atomic { wants[me] && link[me] == NONE && call[me] == NONE && calls[me] < CALLS ->
       call[me] = me * CALLS + calls[me];
       calls[me]++ }
  :: atomic { call[me] != NONE && !has_proof[call[me]] && !is_refused[call[me]] ->
       has_proof[call[me]] = true;
#ifdef NO_CONFIRMATION
       take(me, call[me]);
       call[me] = NONE
#endif
     }
  :: atomic { call[me] != NONE && is_confirmed[call[me]] -> c = call[me]; call[me] = NONE; take(me, c) }
  :: atomic { call[me] != NONE && is_refused[call[me]] -> call[me] = NONE }
  :: atomic { calls[OTHER(me)] > 0 && has_proof[LAST(me)] && !is_judged[LAST(me)] -> c = LAST(me); judge(me, c) }
  :: atomic { calls[OTHER(me)] > 0 && losses < LOSSES && !is_judged[LAST(me)] ->
       losses++;
       is_judged[LAST(me)] = true;
       is_refused[LAST(me)] = true }
  od
}

init {
  atomic {
    if
    :: wants[0] = true
    :: wants[1] = true
    :: wants[0] = true; wants[1] = true
    fi;
    run rank(0);
    run rank(1)
  }
  timeout -> assert(link[0] != NONE && link[0] == link[1])
}

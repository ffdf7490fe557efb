/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rendezvous: src/transport/rendezvous_wire.h has the messages, rendezvous_server.c and rendezvous_client.c the two
 * sides. Rank 0 and two clients share a secret; a stranger lacks it. The stranger hears everything that is said, may
 * connect, say what it has heard or nonsense with any challenge of its choice, and close. It has also heard an earlier
 * rendezvous of the same ranks with the same secret.
 *
 * Cryptography is ideal: a proof is its term, and nobody can make one without the secret. A proof covers a role, the
 * other side's challenge, what is said, and the speaker's own challenge. The stranger can use proofs that were said,
 * and has rank 0 answer challenges that it chooses: a refusal is proven to whoever asked.
 *
 * Checked over all interleavings:
 *   - rank 0 accepts rank r only for a hello that client r said to that very challenge: the stranger never joins;
 *   - a client takes only a table that rank 0 made for it: the stranger is never believed;
 *   - rank 0 ends the job for no disagreement, and all three have the table in the end, though the stranger takes
 *     all connections and clients have to connect again: the stranger never ends the job, and nobody waits for ever.
 *
 * With -DRELAY the stranger sits at an address that the first client tries, and passes on what it likes. It can keep
 * the client from rank 0 then, as everyone who holds its address can; only the first two laws remain, and that all end.
 *
 * Variants that must be found wrong:
 *   -DNO_ROLE        proofs do not cover the role: a refusal is said again as a hello, and ends the job
 *   -DNO_CHALLENGE   proofs do not cover the challenge: a hello of the earlier rendezvous lets the stranger join
 *   -DRELAY -DNO_REPLY_CHALLENGE   replies do not cover the client's challenge: it believes the earlier table
 */
#define CLIENTS 2
#ifndef STRANGER_ACTS
#define STRANGER_ACTS 2 /* beside connecting */
#endif
#ifdef RELAY
#define STRANGER_CONNECTIONS 1
#else
#define STRANGER_CONNECTIONS 2
#endif
#define CONNECTIONS 6 /* of all, ever; the challenge of connection c is c */
#define PLACES 3      /* of open connections: one more than there are clients */

/* Other challenges than those of connections: those of clients, and of the earlier rendezvous. */
#define OF_CLIENT(g) (CONNECTIONS + (g))
#define EARLIER_SERVER (CONNECTIONS + CLIENTS + 1)
#define EARLIER_CLIENT (EARLIER_SERVER + 1)
#define CHALLENGES (EARLIER_CLIENT + 1)
#define NONE 0

/* What is said: client g's hello is g. */
#define REFUSAL (CLIENTS + 1)
#define TABLE (REFUSAL + 1)
#define NONSENSE (TABLE + 1)
#define CONTENTS (NONSENSE + 1)

mtype = { HELLO, REPLY, UNPROVEN };

/* What, and the speaker's own challenge; of the proof the role and the challenge it answers. It covers the other two as
 * well: a message that was changed is UNPROVEN. */
#define MESSAGE byte, byte, mtype, byte
chan up[CONNECTIONS] = [1] of { MESSAGE };
chan down[CONNECTIONS] = [1] of { MESSAGE };
chan incoming = [CONNECTIONS] of { byte };
bool open_here[CONNECTIONS], open_there[CONNECTIONS]; /* on rank 0's side, and on the other */
byte connections;
bool has_first_come;
bool is_listening = true;

/* What the stranger has heard: proofs of replies by challenge and content, of hellos by challenge and client. */
#define HEARD_REPLY(challenge, what) heard_replies[(challenge) * CONTENTS + (what)]
#define HEARD_HELLO(challenge, client) heard_hellos[(challenge) * CONTENTS + (client)]
bool heard_replies[CHALLENGES * CONTENTS], heard_hellos[CHALLENGES * CONTENTS];

/* What really happened, to compare with. */
bool said_hello[CONNECTIONS * (CLIENTS + 1)]; /* client g to the challenge of c */
bool made_table[CLIENTS + 1];                 /* by rank 0, for client g's challenge */
bool has_table[CLIENTS + 1];                  /* client g, and in place 0 rank 0 */
byte ended; /* ranks */

#ifdef NO_ROLE
#define ROLE_IS(role, wanted) (role != UNPROVEN)
#else
#define ROLE_IS(role, wanted) (role == wanted)
#endif

/* ---- Rank 0 ---- */

byte connection_of[CLIENTS + 1]; /* connection + 1 of each client; 0: missing */
bool has_hello[CONNECTIONS];

inline reply_to(c, what, challenge) {
  d_step {
    HEARD_REPLY(challenge, what) = true;
    if
    :: open_there[c] && len(down[c]) == 0 -> down[c] ! what, NONE, REPLY, challenge
    :: else
    fi
  }
}

inline leave(connection) {
  open_here[connection] = false;
  if /* what was not read is lost */
  :: len(up[connection]) > 0 -> up[connection] ? _, _, _, _
  :: else
  fi
}

#ifdef NO_CHALLENGE
#define CHALLENGE_IS(wanted) true
#else
#define CHALLENGE_IS(wanted) (challenge == wanted)
#endif
#define HAS_MESSAGE(c) (open_here[c] && !has_hello[c] && len(up[c]) > 0)

proctype server() {
  byte c, i, at, what, own, challenge, open_count;
  mtype role;
  do
  :: connection_of[1] && connection_of[2] -> break
  :: d_step { !(connection_of[1] && connection_of[2]) && len(incoming) > 0 -> /* greet() */
      incoming ? c;
      i = 0; open_count = 0; at = CONNECTIONS;
      do
      :: i < CONNECTIONS ->
        if
        :: open_here[i] -> open_count++;
          if
          :: !has_hello[i] && at == CONNECTIONS -> at = i /* they come in the order of their numbers */
          :: else
          fi
        :: else
        fi;
        i++
      :: else -> break
      od;
      if
      :: open_count == PLACES && at < CONNECTIONS -> leave(at) /* the one that is silent longest is dropped */
      :: else
      fi;
      if
      :: open_count == PLACES && at == CONNECTIONS -> skip /* all have said hello: no place */
      :: else -> open_here[c] = true
      fi;
      i = 0; open_count = 0; at = 0; c = 0
    }
  :: atomic { !(connection_of[1] && connection_of[2]) && (HAS_MESSAGE(0) || HAS_MESSAGE(1) || HAS_MESSAGE(2) ||
      HAS_MESSAGE(3) || HAS_MESSAGE(4) || HAS_MESSAGE(5)) -> /* read_hello() */
      if
      :: HAS_MESSAGE(0) -> c = 0
      :: HAS_MESSAGE(1) -> c = 1
      :: HAS_MESSAGE(2) -> c = 2
      :: HAS_MESSAGE(3) -> c = 3
      :: HAS_MESSAGE(4) -> c = 4
      :: HAS_MESSAGE(5) -> c = 5
      fi;
      up[c] ? what, own, role, challenge;
      if
      :: ROLE_IS(role, HELLO) && CHALLENGE_IS(c) ->
        assert(what == 1 || what == 2);                /* else it ends the job for a disagreement */
        assert(said_hello[c * (CLIENTS + 1) + what]);   /* the stranger never joins */
        if
        :: connection_of[what] && open_there[connection_of[what] - 1] -> /* two say they are this rank */
#ifdef RELAY
          goto over /* the job ends: a relay can have that */
#else
          assert(false)
#endif
        :: else
        fi;
        connection_of[what] = c + 1;
        has_hello[c] = true
      :: else -> /* reject(): the answer is proven for the challenge of whoever asked */
        reply_to(c, REFUSAL, own);
        leave(c)
      fi;
      what = 0; own = 0; role = 0; challenge = 0; c = 0 /* fewer states */
    }
  :: timeout -> break /* nothing moves any more: the time is over */
  od;
over:
  atomic {
    is_listening = false;
    i = 1;
    do
    :: i <= CLIENTS && connection_of[1] && connection_of[2] -> made_table[i] = true;
      reply_to(connection_of[i] - 1, TABLE, OF_CLIENT(i)); i++
    :: else -> break
    od;
    has_table[0] = connection_of[1] && connection_of[2];
    i = 0;
    do
    :: i < CONNECTIONS -> open_here[i] = open_here[i] && has_hello[i]; i++
    :: else -> break
    od;
    ended++
  }
}

/* ---- Clients ---- */

/* A connection that rank 0 does not keep. */
#define IS_LEFT(c) (!open_here[c] && (!is_listening || !is_waiting(c)))
#define is_waiting(c) (incoming ?? [eval(c)])

inline connect_to(c) {
  d_step {
    c = connections;
    connections++;
    open_there[c] = true;
    incoming ! c
  }
}

inline say_hello(c, g) {
  d_step {
    said_hello[c * (CLIENTS + 1) + g] = true;
    HEARD_HELLO(c, g) = true;
    up[c] ! g, OF_CLIENT(g), HELLO, c
  }
}

#define IS_REPLY_RIGHT(g) (ROLE_IS(role, REPLY) && REPLY_CHALLENGE_IS(OF_CLIENT(g)))
#ifdef NO_REPLY_CHALLENGE
#define REPLY_CHALLENGE_IS(wanted) true
#else
#define REPLY_CHALLENGE_IS(wanted) (challenge == wanted)
#endif

/* Where the stranger sits in rank 0's place: what it says there, and the challenge it gave. */
chan false_server = [1] of { MESSAGE };
byte false_challenge = NONE;
bool is_client_there, is_false_closed;

proctype client(byte g) {
  byte c, what, own, challenge;
  mtype role;
#ifdef RELAY
  if
  :: g == 1 -> /* the first address is the stranger's */
    is_client_there = true;
    if
    :: false_challenge != NONE ->
      atomic {
        if
        :: false_challenge - 1 < CONNECTIONS -> said_hello[(false_challenge - 1) * (CLIENTS + 1) + g] = true
        :: else
        fi;
        HEARD_HELLO(false_challenge - 1, g) = true
      }
      if
      :: false_server ? what, own, role, challenge ->
        if
        :: what == TABLE && IS_REPLY_RIGHT(g) -> assert(made_table[g]); has_table[g] = true; goto over
        :: else
        fi
      :: is_false_closed
      :: timeout
      fi
    :: is_false_closed
    :: timeout
    fi
  :: else
  fi;
#endif
#ifndef RELAY
  g == 1 || has_first_come; /* clients are alike: the first one to come is called 1 */
#endif
  do
  :: atomic { is_listening && connections < CONNECTIONS -> connect_to(c); has_first_come = true }
    if
    :: atomic { open_here[c] -> say_hello(c, g) }
    :: IS_LEFT(c) -> goto left
    fi;
    if
    :: atomic { down[c] ? what, own, role, challenge ->
      if
      :: what == TABLE && IS_REPLY_RIGHT(g) ->
        assert(made_table[g]); /* the stranger is never believed */
        has_table[g] = true
      :: else /* rejected: final */
      fi;
      what = 0; own = 0; role = 0; challenge = 0;
      goto over }
    :: len(down[c]) == 0 && IS_LEFT(c) && !has_hello[c] -> skip
    :: timeout -> goto over
    fi;
left:
    atomic { open_there[c] = false; c = 0 }
  :: else -> break
  od;
over:
  ended++
}

/* ---- The stranger ---- */

proctype stranger() {
  byte mine[STRANGER_CONNECTIONS], count, acts, c, what, challenge, own;
  do
  :: atomic { count < STRANGER_CONNECTIONS && connections + CLIENTS < CONNECTIONS && is_listening ->
    connect_to(c); mine[count] = c; count++; c = 0 }
  :: atomic { acts < STRANGER_ACTS && count > 0 ->
      if
      :: c = mine[0]
      :: count > 1 -> c = mine[STRANGER_CONNECTIONS - 1]
      fi;
      acts++;
      if
      :: !open_here[c] || len(up[c]) > 0 -> skip
      :: open_here[c] && len(up[c]) == 0 ->
        if /* a challenge to be answered: one that it will be asked itself, or a client's */
        :: own = mine[0]
        :: count > 1 -> own = mine[STRANGER_CONNECTIONS - 1]
        :: own = OF_CLIENT(1)
        fi;
        if
        :: up[c] ! NONSENSE, own, UNPROVEN, NONE
        :: select(challenge : 0 .. CHALLENGES - 1); select(what : 1 .. CLIENTS);
          if
          :: HEARD_HELLO(challenge, what) -> up[c] ! what, OF_CLIENT(what), HELLO, challenge
          :: else
          fi
        :: select(challenge : 0 .. CHALLENGES - 1); select(what : REFUSAL .. TABLE);
          if
          :: HEARD_REPLY(challenge, what) -> up[c] ! what, NONE, REPLY, challenge
          :: else
          fi
        fi
      fi;
      own = 0; challenge = 0; what = 0; c = 0
    }
  :: atomic { acts < STRANGER_ACTS && count > 0 -> open_there[mine[count - 1]] = false; acts++ }
#ifdef RELAY
  :: is_client_there && false_challenge == NONE ->
    atomic {
      if /* rank 0's challenge to itself, or the earlier one */
      :: count > 0 -> false_challenge = mine[0] + 1
      :: false_challenge = EARLIER_SERVER + 1
      fi
    }
  :: is_client_there && false_challenge != NONE && len(false_server) == 0 && acts < STRANGER_ACTS ->
    atomic {
      select(challenge : 0 .. CHALLENGES - 1);
      acts++;
      if
      :: HEARD_REPLY(challenge, TABLE) -> false_server ! TABLE, NONE, REPLY, challenge
      :: else
      fi;
      challenge = 0
    }
  :: is_client_there && !is_false_closed -> is_false_closed = true
#endif
  :: break
  od
}

init {
  byte g = 1;
  atomic {
    do
    :: g <= CLIENTS -> HEARD_HELLO(EARLIER_SERVER, g) = true; run client(g); g++
    :: else -> break
    od;
    HEARD_REPLY(EARLIER_CLIENT, TABLE) = true;
    HEARD_REPLY(EARLIER_CLIENT, REFUSAL) = true;
    run server();
    run stranger()
  }
  ended == CLIENTS + 1;
#ifndef RELAY
  assert(has_table[0] && has_table[1] && has_table[2])
#endif
}

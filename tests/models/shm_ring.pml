/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring of shared memory between two ranks, and how both sleep: src/transport/shm.c, one direction of a link.
 *
 * A sender fills cells of its own, publishes each in a slot, and rings if the receiver sleeps. A receiver reads the
 * cell, counts it emptied, and rings if the sender sleeps for want of room. Who is about to sleep says so, looks once
 * more, and only then waits for the bell. Nobody looks at a clock: the time limit of the real poll() would hide a lost
 * wake-up.
 *
 * Checked over all interleavings:
 *   - every message arrives, once, in order, with its own bytes: none is read before it was written, none overwritten;
 *   - no wake-up is lost: no state is reached in which somebody waits for ever;
 *   - with -DDEATH either side may die at any point, and the other one ends; all that a sender published arrives.
 *
 * Memory. Promela's own variables are sequentially consistent, and processors are not: a store may wait in a buffer
 * while later loads of the same thread are done already. So stores go through buffers here, as on x86 (TSO), and those
 * of cells through one of their own, which other processors may empty later than that of slots. A sequentially
 * consistent store of C11 waits until its buffer is empty (BARRIER), and a release waits for what came before it
 * (RELEASE). No thread loads what it has stored itself, so loads need not look into buffers.
 *
 * Variants that must be found wrong:
 *   -DNO_BARRIER       words are stored without the barrier: who falls asleep and who rings do not see each other
 *   -DNO_SECOND_LOOK   who falls asleep does not look again
 *   -DNO_RELEASE       a slot may be seen before the bytes of its cell
 *   -DREUSE_EARLY      cells are filled again before they are counted emptied
 *   -DDEATH -DDEATH_UNSEEN   the end of a process wakes nobody
 *   -DDEATH -DSTATE_LAST     a receiver looks whether the sender is gone after it looked at the slot
 */
#define SLOTS 2
#define CELLS 2
#ifndef MESSAGES
#define MESSAGES 4
#endif

#define ASLEEP 1
#define STARVING 2
#define NEXT 4

/* Addresses of shared words. */
#define SLOT 0
#define EMPTIED (SLOT + SLOTS)
#define SENDER_WORD (EMPTIED + 1)
#define RECEIVER_WORD (SENDER_WORD + 1)
#define CELL (RECEIVER_WORD + 1)

byte memory[CELL + CELLS];
chan sender_words = [2] of { byte, byte };
chan sender_cells = [2] of { byte, byte };
chan receiver_words = [2] of { byte, byte };

/* The socket: bells that were rung and not heard yet, and whether the other end is gone. A full one has rung. */
byte sender_bells, receiver_bells;
bool sender_gone, receiver_gone;
byte published; /* slots, ever: to compare with */

#define RING(bells) if :: bells < 2 -> bells++ :: else fi

#ifdef NO_BARRIER
#define BARRIER(buffer) skip
#else
#define BARRIER(buffer) empty(buffer)
#endif

#ifdef NO_RELEASE
#define RELEASE(buffer) skip
#else
#define RELEASE(buffer) empty(buffer)
#endif

#define LAP(count) ((count) / SLOTS + 1)
#define SLOT_OF(lap, cell) ((lap) * CELLS + (cell))

/* Empties a buffer, one store at a time, whenever. */
proctype drain(chan buffer) {
  byte at, value;
end:
  do
  :: atomic { buffer ? at, value -> memory[at] = value }
  od
}

#ifdef DEATH
#define MAY_DIE(label) :: goto label
#else
#define MAY_DIE(label)
#endif

#ifdef DEATH_UNSEEN
#define GONE(flag) false
#else
#define GONE(flag) flag
#endif

proctype sender() {
  byte sent, reclaimed, emptied, word, rung, count, cell;
  do
  :: sent == MESSAGES -> break
  MAY_DIE(dead)
  :: sent < MESSAGES ->
    /* has_room() */
    if
    :: sent - reclaimed == CELLS -> emptied = memory[EMPTIED]; assert(emptied - reclaimed <= CELLS); reclaimed = emptied
    :: else
    fi;
#ifdef REUSE_EARLY
    if :: sent - reclaimed == CELLS -> reclaimed++ :: else fi;
#endif
    if
    :: sent - reclaimed < CELLS ->
      /* fill_cell(), publish_cell(), ring_bell() */
      cell = sent % CELLS;
      sender_cells ! CELL + cell, sent + 1;
      RELEASE(sender_cells);
      sender_words ! SLOT + sent % SLOTS, SLOT_OF(LAP(sent), cell);
      sent++;
      published = sent;
      BARRIER(sender_words);
      word = memory[RECEIVER_WORD];
      if
      :: (word & ASLEEP) && word != rung -> rung = word; RING(receiver_bells)
      :: else
      fi
    :: else ->
      /* shm_sleep(): says so, looks again, waits, wakes */
      count++;
      sender_words ! SENDER_WORD, count * NEXT + (ASLEEP | STARVING);
      BARRIER(sender_words);
#ifndef NO_SECOND_LOOK
      emptied = memory[EMPTIED];
#endif
      if
      :: emptied - reclaimed > 0
      :: else -> sender_bells > 0 || GONE(receiver_gone)
      fi;
      count++;
      sender_words ! SENDER_WORD, count * NEXT;
      BARRIER(sender_words);
      sender_bells = 0;
      if
      :: receiver_gone -> goto dead
      :: else
      fi
    fi
  od;
dead:
  empty(sender_words) && empty(sender_cells); /* what a process stored is seen by others however it ends */
  sender_gone = true
}

proctype receiver() {
  byte taken, slot, word, rung, count;
  bool was_gone;
  do
  :: taken == MESSAGES -> break
  MAY_DIE(dead)
  :: taken < MESSAGES ->
    /* The state is read first: what a peer wrote before it ended is seen after. */
#ifndef STATE_LAST
    was_gone = sender_gone;
#endif
    slot = memory[SLOT + taken % SLOTS];
#ifdef STATE_LAST
    was_gone = sender_gone;
#endif
    if
    :: slot / CELLS == LAP(taken) ->
      assert(memory[CELL + slot % CELLS] == taken + 1);
      taken++;
      receiver_words ! EMPTIED, taken;
      BARRIER(receiver_words);
      word = memory[SENDER_WORD];
      if
      :: (word & STARVING) && word != rung -> rung = word; RING(sender_bells)
      :: else
      fi
    :: else ->
      assert(slot / CELLS == LAP(taken) - 1);
      if
      :: was_gone -> assert(taken == published); goto dead /* rank … is gone */
      :: else
      fi;
      count++;
      receiver_words ! RECEIVER_WORD, count * NEXT + ASLEEP;
      BARRIER(receiver_words);
#ifndef NO_SECOND_LOOK
      slot = memory[SLOT + taken % SLOTS];
#endif
      if
      :: slot / CELLS == LAP(taken)
      :: else -> receiver_bells > 0 || GONE(sender_gone)
      fi;
      count++;
      receiver_words ! RECEIVER_WORD, count * NEXT;
      BARRIER(receiver_words);
      receiver_bells = 0
    fi
  od;
#ifndef DEATH
  assert(taken == MESSAGES);
#endif
dead:
  receiver_gone = true
}

init {
  byte i;
  atomic {
    do
    :: i < SLOTS -> memory[SLOT + i] = SLOT_OF(0, 0); i++
    :: else -> break
    od;
    run drain(sender_words);
    run drain(sender_cells);
    run drain(receiver_words);
    run sender();
    run receiver()
  }
}

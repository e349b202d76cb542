/* The protocol of docs/spec/channel.md, for spin, which explores every run within bounds: two processes keep a channel
 * over connections that come and go. `make model` runs check_model.py: 15 configurations of lost connections and
 * restarts, most with 2 data streams and 3 segments in 2 chunks, of which the second waits for a Grant; and nine wrong
 * models, whose mistake it has to find. It takes 4 GB of memory. There was no counterexample.
 *
 * Checked: in every last state all segments have arrived and are acked, so no chunk is lost, doubled or mixed up.
 * Nothing is written into memory that the consumer has, or read from a buffer that was freed. Control packets are acted
 * upon once, in order, without a gap; acks name only what was sent. A newer connection never ends one that the dialer
 * still has. A restarted process never resumes, and the survivor finds out. Both sides close in good order if neither
 * restarts. Every run has an end.
 *
 * Left out: contents (header checks, sizes, credit in bytes, hostile peers), the other direction, time, more losses,
 * cancelled operations, TLS, addresses that change, numbers that wrap, threads.
 *
 * S sends segments to R; both send reliable control packets. One of the two, D, dials, the other one, A, accepts. Every
 * step is one that can be done a bounded number of times (losses, dials, packets), so every run is finite, and "all is
 * delivered and both sides close in good order" is a property of the states in which nothing can happen any more.
 * link_options.pml: the bounds, and mistakes on purpose. */

#define S 0
#define R 1
#include "link_options.pml"
#define A (1 - D)

/* Connections live in slots, one for each generation of each stream index, so that all generations can coexist. The end
 * of a link may take one dial of the control stream more than there are losses. A restarted dialer counts its
 * generations from 1 again, in slots of its own. */
#define CONTROL_SLOTS (CONTROL_LOSSES + 2)
#define DATA_SLOTS (DATA_LOSSES + 1)
#define FIRST_DATA CONTROL_SLOTS
#define FIRST_NEWBORN (CONTROL_SLOTS + STREAMS * DATA_SLOTS)
#if defined(RESTART) && RESTART == D
#define SLOTS (FIRST_NEWBORN + CONTROL_SLOTS)
#else
#define SLOTS FIRST_NEWBORN
#endif

/* The last reliable control packet of a side. R's first one is Grant, for which chunk 1 waits. */
#define CLOSE(side) (side == S -> 1 : 2)

/* Chunk 0 is segments 1 and 2, chunk 1 the others. */
#define CHUNK(n) ((n) > 2)
#define BIT(n) (1 << ((n) - 1))
#define ALL ((1 << SEGMENTS) - 1)
#define SEGMENTS_OF(chunk) ((chunk) -> (ALL & ~3) : 3)

mtype = { None, Dialing, Up, Shut };                                 /* ends of a connection */
mtype = { Welcome, Reliable, Ack, Head, Tail };                      /* messages; a segment is two of them */
mtype = { Silence, OldGeneration, AnotherProcess, Ended };           /* A's answer to a Hello that it refuses */
mtype = { Open, Good, Failed, Newborn };                             /* links; Newborn: of a restarted process */

mtype ends[2 * SLOTS] = None;
chan wire[2 * SLOTS] = [IN_FLIGHT] of { mtype, byte, byte };
#define END(side, k) ends[(side) * SLOTS + (k)]
#define TO(side, k) wire[(side) * SLOTS + (k)]
bit cut[SLOTS]; /* lost: what is written from now on goes nowhere */
mtype verdict[SLOTS] = Silence;
byte hello_received[SLOTS]; /* control_received in the Hello */

mtype link[2] = Open;
bit linked;               /* at D: the control stream was welcomed once */
byte newest[STREAMS + 1]; /* at A: slot + 1 of the highest generation adopted, by stream index */

/* Control packets, by side. */
byte queued[2];
byte acked[2];
byte received[2];
byte next_written[2]; /* on the present connection */
bit ack_due[2];
byte handled[2]; /* ghost: acted upon */

/* Segments, at S. */
byte numbered;
byte segments_acked;         /* bits */
short carried[SEGMENTS + 1]; /* bit by slot: live connections that took a copy */
byte writing[SLOTS];         /* the segment of which only the head is written */
bit freed[2];                /* by chunk: its buffer */

/* Segments, at R. */
byte arrived;        /* bits */
byte reading[SLOTS]; /* the segment of which only the head was read */
bit discard[SLOTS];
bit delivered[2]; /* by chunk: the memory is the consumer's */

bit control_up[2];
byte live[2]; /* ends not None and not Shut */
byte control_losses;
byte data_losses;
byte duplicates;

#define LIVE(side, k) (END(side, k) == Up || END(side, k) == Dialing)
#define UNHEARD(side, k) (cut[k] || END(side, k) == Shut) /* nobody will read what goes to `side` */
#define ROOM(side, k) (UNHEARD(side, k) || nfull(TO(side, k)))
#define NOTHING_LEFT(side) (side == R || segments_acked == ALL)

inline put(side, k, type, one, two) {
  if
  :: UNHEARD(side, k)
  :: else -> TO(side, k)!type, one, two
  fi
}

/* A chunk's buffer is freed when all of it is acked and no connection is in the middle of a segment of it. */
inline free_chunks() {
  for (c : 0 .. 1) {
    j = FIRST_DATA;
    do
    :: j < FIRST_NEWBORN && !HOLDS(j, c) -> j++
    :: else -> break
    od;
    if
    :: j == FIRST_NEWBORN && (segments_acked & SEGMENTS_OF(c)) == SEGMENTS_OF(c) -> freed[c] = 1
    :: else
    fi
  }
  c = 0;
  j = 0
}

/* `side` lets go of a connection. What it carried unacked can go out again. */
inline lose(side, k) {
  if
  :: k < CONTROL_SLOTS && END(side, k) == Up -> control_up[side] = 0
  :: else
  fi;
  END(side, k) = Shut;
  live[side]--;
  do
  :: nempty(TO(side, k)) -> TO(side, k)?_, _, _
  :: empty(TO(side, k)) -> break
  od;
  if
  :: side == S ->
    writing[k] = 0;
    for (n : 1 .. SEGMENTS) {
      carried[n] = carried[n] & ~(1 << k)
    }
    n = 0;
    free_chunks()
  :: else ->
    reading[k] = 0;
    discard[k] = 0
  fi
}

inline end_link(side, how) {
  link[side] = how;
  for (i : 0 .. SLOTS - 1) {
    if
    :: LIVE(side, i) -> lose(side, i)
    :: else
    fi
  }
  i = 0
}

/* The peer's process is another one, or its link has ended. If one of the two was leaving, nothing may be lacking. */
inline peer_gone(side) {
  if
  :: IS_CLOSING(side) && NOTHING_LEFT(side) -> end_link(side, Good)
  :: else -> end_link(side, Failed)
  fi
}

/* ---- The control stream. ---- */

inline control_made(side, peer_received) {
  assert(acked[side] <= peer_received && peer_received <= queued[side]);
  control_up[side] = 1;
  if
  :: COUNTS_IN_HELLO && peer_received > acked[side] -> acked[side] = peer_received
  :: else
  fi;
  next_written[side] = acked[side] + 1;
  ack_due[side] = ACK_AT_ONCE
}

inline on_control(side, type, one, two) {
  if
  :: type == Reliable && IS_REPEATED(one, side)
  :: type == Reliable && !IS_REPEATED(one, side) ->
    assert(one == handled[side] + 1); /* once, in order, no gap */
    handled[side] = one;
    received[side] = one;
    ack_due[side] = 1
  :: type == Ack ->
    assert(one <= queued[side] && (two & ~((1 << numbered) - 1)) == 0);
    if
    :: one > acked[side] -> acked[side] = one
    :: else
    fi;
    if
    :: side == S ->
      segments_acked = segments_acked | two;
      free_chunks()
    :: else
    fi
  fi
}

/* ---- Data streams: S. ---- */

#define UNACKED(n) ((n) <= numbered && (segments_acked & BIT(n)) == 0)
#define UNSENT(n) (UNACKED(n) && carried[n] == 0)
/* What a connection died of goes first, in order of number. 0: none. */
#define FIRST_UNSENT (UNSENT(1) -> 1 : (UNSENT(2) -> 2 : (UNSENT(3) -> 3 : (UNSENT(4) -> 4 : 0))))
#define FIRST_UNACKED (UNACKED(1) -> 1 : (UNACKED(2) -> 2 : (UNACKED(3) -> 3 : (UNACKED(4) -> 4 : numbered + 1))))
#ifdef MUTATE_WINDOW_BY_COUNT
#define OUTSTANDING (UNACKED(1) + UNACKED(2) + UNACKED(3) + UNACKED(4))
#else
#define OUTSTANDING (numbered + 1 - FIRST_UNACKED)
#endif
#define MAY_NUMBER (numbered < SEGMENTS && OUTSTANDING < WINDOW && (!CHUNK(numbered + 1) || received[S] >= 1))
#define NEXT_SEGMENT (FIRST_UNSENT != 0 -> FIRST_UNSENT : (MAY_NUMBER -> numbered + 1 : 0))

inline write_head(k, segment) {
  writing[k] = segment;
  if
  :: segment > numbered -> numbered = segment
  :: else
  fi;
  carried[segment] = carried[segment] | (1 << k);
  assert(!freed[CHUNK(segment)]);
  put(R, k, Head, segment, 0)
}

/* ---- Data streams: R. ---- */

inline on_head(k, segment) {
  assert(reading[k] == 0);
  n = 1;
  do
  :: arrived & BIT(n) -> n++
  :: else -> break
  od;
  assert(segment < n + WINDOW); /* R would call a number further ahead CorruptData */
  n = 0;
  reading[k] = segment;
  if
  :: arrived & BIT(segment) -> discard[k] = 1
  :: else -> assert(!delivered[CHUNK(segment)])
  fi
}

inline on_tail(k, segment) {
  assert(reading[k] == segment);
  reading[k] = 0;
  if
  :: discard[k] -> discard[k] = 0
  :: else ->
    assert(!delivered[CHUNK(segment)]); /* the memory is the consumer's by now */
    arrived = arrived | BIT(segment);
    ack_due[R] = 1;
    for (j : FIRST_DATA .. FIRST_NEWBORN - 1) {
      if
      :: REDIRECT && reading[j] == segment -> discard[j] = 1
      :: else
      fi
    }
    j = 0;
    if
    :: (arrived & SEGMENTS_OF(CHUNK(segment))) == SEGMENTS_OF(CHUNK(segment)) -> delivered[CHUNK(segment)] = 1
    :: else
    fi
  fi
}

/* ---- Handshakes. ---- */

/* The first dial of an index, or the one after a loss. */
#define IS_FIRST_DIAL(k, index) (k == 0 || k == FIRST_NEWBORN || (index > 0 && (k - FIRST_DATA) % DATA_SLOTS == 0))
#define MAY_DIAL(k, index, newborn) \
  (END(D, k) == None && (IS_FIRST_DIAL(k, index) || END(D, k - 1) == Shut) && \
   link[D] == (newborn -> Newborn : Open) && (index == 0 || linked))

inline on_hello(k, index, newborn) {
  if
  :: IS_ANOTHER(newborn) -> verdict[k] = AnotherProcess
  :: !IS_ANOTHER(newborn) && (link[A] == Good || link[A] == Failed) -> verdict[k] = Ended
  :: !IS_ANOTHER(newborn) && (link[A] == Open || link[A] == Newborn) &&
      IS_OLD((newborn -> k - FIRST_NEWBORN : k) + 1, index) -> verdict[k] = OldGeneration
  :: else ->
    assert(!newborn && link[A] == Open); /* a restarted process resumes nothing */
    assert(index == 0 || newest[0] != 0);
    if
    :: newest[index] != 0 && END(A, newest[index] - 1) == Up ->
      assert(END(D, newest[index] - 1) == Shut); /* none that the dialer still has gives way */
      m = newest[index] - 1;
      lose(A, m);
      m = 0
    :: else
    fi;
    newest[index] = k + 1;
    END(A, k) = Up;
    live[A]++;
    if
    :: index == 0 -> control_made(A, hello_received[k])
    :: else
    fi;
    put(D, k, Welcome, received[A], 0)
  fi;
  if
  :: verdict[k] != Silence -> END(A, k) = Shut
  :: else
  fi
}

inline on_refuse(k) {
  if
  :: link[D] == Open && (verdict[k] == AnotherProcess || verdict[k] == Ended) -> peer_gone(D)
  :: else -> lose(D, k) /* an old generation: given up long ago */
  fi
}

#define LET_GO(side, k) (LIVE(side, k) && (cut[k] || (END(1 - side, k) == Shut && verdict[k] == Silence)))

proctype Connection(byte k; byte index; bit newborn) {
  byte n;
  byte c;
  byte i;
  byte j;
  byte m;
  mtype type;
  byte one;
  byte two;
end:
  do
  :: d_step {
      MAY_DIAL(k, index, newborn) ->
      END(D, k) = Dialing;
      live[D]++;
      hello_received[k] = received[D]
    }
  :: d_step { END(A, k) == None && END(D, k) != None -> on_hello(k, index, newborn) }
  :: d_step { END(A, k) == None && cut[k] -> END(A, k) = Shut }
  :: d_step { END(D, k) == Dialing && verdict[k] != Silence -> on_refuse(k) }
  :: d_step {
      END(D, k) == Dialing && nempty(TO(D, k)) ->
      TO(D, k)?type, one, two;
      assert(type == Welcome);
      END(D, k) = Up;
      linked = 1;
      if
      :: index == 0 -> control_made(D, one)
      :: else
      fi;
      type = 0; one = 0
    }

  :: d_step {
      index == 0 && END(S, k) == Up && nempty(TO(S, k)) ->
      TO(S, k)?type, one, two;
      on_control(S, type, one, two);
      type = 0; one = 0; two = 0
    }
  :: d_step {
      index == 0 && END(R, k) == Up && nempty(TO(R, k)) ->
      TO(R, k)?type, one, two;
      on_control(R, type, one, two);
      type = 0; one = 0; two = 0
    }
  :: d_step {
      index == 0 && END(S, k) == Up && next_written[S] <= queued[S] && ROOM(R, k) ->
      put(R, k, Reliable, next_written[S], 0);
      next_written[S]++
    }
  :: d_step {
      index == 0 && END(R, k) == Up && next_written[R] <= queued[R] && ROOM(S, k) ->
      put(S, k, Reliable, next_written[R], 0);
      next_written[R]++
    }
  :: d_step {
      index == 0 && END(S, k) == Up && ack_due[S] && ROOM(R, k) ->
      put(R, k, Ack, received[S], 0);
      ack_due[S] = 0
    }
  :: d_step {
      index == 0 && END(R, k) == Up && ack_due[R] && ROOM(S, k) ->
      put(S, k, Ack, received[R], arrived);
      ack_due[R] = 0
    }

  :: d_step {
      index > 0 && END(S, k) == Up && writing[k] == 0 && NEXT_SEGMENT != 0 && ROOM(R, k) ->
      m = NEXT_SEGMENT;
      write_head(k, m);
      m = 0
    }
  :: d_step {
      index > 0 && END(S, k) == Up && writing[k] == 0 && duplicates < DUPLICATES && ROOM(R, k) &&
          FIRST_UNACKED <= numbered && carried[FIRST_UNACKED] != 0 && (carried[FIRST_UNACKED] & (1 << k)) == 0 ->
      m = FIRST_UNACKED;
      write_head(k, m);
      m = 0;
      duplicates++
    }
  :: d_step {
      index > 0 && END(S, k) == Up && writing[k] != 0 && ROOM(R, k) ->
      assert(!freed[CHUNK(writing[k])]);
      put(R, k, Tail, writing[k], 0);
      writing[k] = 0;
      free_chunks()
    }
  :: d_step {
      index > 0 && END(R, k) == Up && nempty(TO(R, k)) ->
      TO(R, k)?type, one, two;
      if
      :: type == Head -> on_head(k, one)
      :: type == Tail -> on_tail(k, one)
      fi;
      type = 0; one = 0; two = 0
    }

  /* The network loses the connection. Each end finds out when it does, and may read before what came before. */
  :: d_step {
      !newborn && !cut[k] && LIVE(D, k) && END(A, k) != Shut && index == 0 && control_losses < CONTROL_LOSSES ->
      cut[k] = 1;
      control_losses++
    }
  :: d_step {
      !newborn && !cut[k] && LIVE(D, k) && END(A, k) != Shut && index > 0 && data_losses < DATA_LOSSES ->
      cut[k] = 1;
      data_losses++
    }
  :: d_step { LET_GO(S, k) -> lose(S, k) }
  :: d_step { LET_GO(R, k) -> lose(R, k) }
  od
}

/* What the owner of a side wants, how its link ends, and the end of its process. */
proctype Side(bit side) {
  byte n;
  byte c;
  byte i;
  byte j;
end:
  do
  :: d_step { link[side] == Open && queued[side] < CLOSE(side) && NOTHING_LEFT(side) -> queued[side]++ }
  :: d_step {
      link[side] == Open && received[side] == CLOSE(1 - side) && acked[side] == CLOSE(side) && !ack_due[side] ->
      end_link(side, Good)
    }
  /* Only Close packets, or their acks, may be missing: that is not waited for long. */
  :: d_step {
      link[side] == Open && received[side] == CLOSE(1 - side) && queued[side] == CLOSE(side) &&
          NOTHING_LEFT(side) && !control_up[side] ->
      end_link(side, Good)
    }
  /* The acceptor asks, or the deadline is over: the peer has ended the link, or is another process. */
  :: d_step { link[side] == Open && link[1 - side] != Open && live[side] == 0 -> peer_gone(side) }
#ifdef RESTART
  :: d_step {
      side == RESTART && link[side] == Open && linked ->
      end_link(side, Newborn);
      queued[side] = 0; acked[side] = 0; received[side] = 0; handled[side] = 0;
      next_written[side] = 0; ack_due[side] = 0;
      if
      :: side == S ->
        numbered = 0; segments_acked = 0
      :: else ->
        arrived = 0; delivered[0] = 0; delivered[1] = 0
      fi
    }
#endif
  od
}

init {
  byte k;
  atomic {
    run Side(S);
    run Side(R);
    for (k : 0 .. CONTROL_SLOTS - 1) {
      run Connection(k, 0, 0)
    }
    for (k : FIRST_DATA .. FIRST_NEWBORN - 1) {
      run Connection(k, 1 + (k - FIRST_DATA) / DATA_SLOTS, 0)
    }
    for (k : FIRST_NEWBORN .. SLOTS - 1) {
      run Connection(k, 0, 1)
    }
    k = 0;
#ifndef DIAL_FIRST
    linked = 1;
    d_step {
      for (k : 0 .. STREAMS) {
        newest[k] = 1 + (k == 0 -> 0 : FIRST_DATA + (k - 1) * DATA_SLOTS);
        END(S, newest[k] - 1) = Up;
        END(R, newest[k] - 1) = Up
      }
      k = 0;
      control_up[S] = 1;
      control_up[R] = 1;
      live[S] = STREAMS + 1;
      live[R] = STREAMS + 1;
      next_written[S] = 1;
      next_written[R] = 1
    }
#endif
  }
  timeout ->
  if
  :: link[S] == Newborn -> assert(link[R] == Failed || (link[R] == Good && (arrived == ALL || queued[R] == CLOSE(R))))
  :: link[R] == Newborn -> assert(link[S] == Failed || (link[S] == Good && segments_acked == ALL))
  :: else ->
    assert(link[S] == Good && link[R] == Good);
    assert(arrived == ALL && delivered[0] && delivered[1] && segments_acked == ALL);
    assert(handled[S] >= 1) /* R's Grant; a Close may be missing where the peer said that the link has ended */
  fi
}

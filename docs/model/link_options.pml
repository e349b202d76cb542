/* What link.pml is run with, and what it says otherwise if a mistake (MUTATE_*) is put in, which must be found. */

#ifndef D
#define D S /* who dials */
#endif
#ifndef SEGMENTS
#define SEGMENTS 3 /* 3 or 4 */
#endif
#ifndef WINDOW
#define WINDOW 2 /* span of the numbers outstanding */
#endif
#ifndef STREAMS
#define STREAMS 2 /* data streams */
#endif
#ifndef CONTROL_LOSSES
#define CONTROL_LOSSES 1 /* connections of the control stream that are lost */
#endif
#ifndef DATA_LOSSES
#define DATA_LOSSES 1 /* of the data streams, together */
#endif
#ifndef DUPLICATES
#define DUPLICATES 0 /* segments sent once more although the connection that carries them lives */
#endif
#ifndef IN_FLIGHT
#define IN_FLIGHT 1 /* messages under way, in each direction of each connection */
#endif
#ifndef COUNTS_IN_HELLO
#define COUNTS_IN_HELLO 1 /* 0: after a loss, control packets are sent again from the last one acked */
#endif

#ifdef MUTATE_FREE_AT_ACK
#define HOLDS(k, chunk) 0
#else
#define HOLDS(k, chunk) (writing[k] != 0 && CHUNK(writing[k]) == chunk)
#endif
#ifdef MUTATE_NO_GENERATION
#define IS_OLD(generation, index) 0
#else
#define IS_OLD(generation, index) ((generation) <= newest[index])
#endif
#ifdef MUTATE_NO_INCARNATION
#define IS_ANOTHER(newborn) 0
#else
#define IS_ANOTHER(newborn) (newborn || link[A] == Newborn)
#endif
#ifdef MUTATE_ENDED_IS_LOST
#define IS_CLOSING(side) (received[side] == CLOSE(1 - side))
#else
#define IS_CLOSING(side) (received[side] == CLOSE(1 - side) || queued[side] == CLOSE(side))
#endif
#ifdef MUTATE_NO_ACK_STATE
#define ACK_AT_ONCE 0
#else
#define ACK_AT_ONCE 1
#endif
#ifdef MUTATE_NO_REDIRECT
#define REDIRECT 0
#else
#define REDIRECT 1
#endif
#ifdef MUTATE_NO_CONTROL_DEDUP
#define IS_REPEATED(number, side) 0
#else
#define IS_REPEATED(number, side) (number <= received[side])
#endif

"""The logs of the process: when its last collectives between sites, and rounds of local steps, went through what."""

from __future__ import annotations

from typing import Any

from geocomm.metrics import sources


def op_log(after: int = 0) -> list[dict[str, Any]]:
    """Read when the last collectives between sites went through what: those under way too.

    The process keeps the last 4096. Reading takes no lock that a collective needs for long; any thread may do it, also
    while the program hangs. Times are nanoseconds of this machine's monotonic clock (`time.monotonic_ns()`); None means
    that it has not happened. `stats()["peers"]` has the offset of each peer's clock.

    Args:
        after: The number of the last operation that is known already; 0 reads all that are kept.

    Returns:
        A dict for each operation, oldest first:

        - `number`: in the process, from 1. A gap to `after` means that operations were not kept.
        - `group`, `sequence`: the same on all ranks. Messages (kind `send_recv`) have sequences of their own.
        - `kind`, `dtype`, `elements`, `codec`: what it was; `codec` is empty where bytes were moved.
        - `raw_bytes_sent`, `wire_bytes_sent`, `raw_bytes_received`, `wire_bytes_received`.
        - `issued_ns`: the program called it.
        - `began_ns`: its part inside the site was done, and that between sites began.
        - `encoded_ns`: the last message was made.
        - `exchanged_ns`: the part between sites was over.
        - `ended_ns`: all of it was over; with an error if `failed`.
        - `wait_began_ns`, `wait_ended_ns`: the program stood still in `wait()`.
        - `coding_ns`: time of all host threads for making, decoding and summing messages; kernels of a GPU: not known.
        - `peers`: for each peer that sends: `rank`, `site`, `peer` (in words), `first_in_ns`, `last_in_ns`, `sums`.

        A peer without `first_in_ns` has not come. One with `sums` sends sums of its region, and waits for that.

    Example:
        Whom the program waits for now:

            for operation in geocomm.op_log():
                if operation["ended_ns"] is None:
                    print(operation["kind"], [p["site"] for p in operation["peers"] if p["first_in_ns"] is None])
    """
    reader = sources.read("operations", None)
    return [] if reader is None else reader(after)


def round_log(after: int = 0) -> list[dict[str, Any]]:
    """Read when the last rounds of local steps went through what: those under way too.

    A rank has the rounds of the fragments that it owns. The process keeps the last 1024. Any thread may read, also
    while the program hangs. Times are nanoseconds of this machine's monotonic clock, as in `op_log`; None means that it
    has not happened, or is not known.

    Args:
        after: The number of the last round that is known already; 0 reads all that are kept. A round that was under way
            changes later: give the number before the oldest of these.

    Returns:
        A dict for each round, oldest first:

        - `number`: in the process, from 1. A gap to `after` means that rounds were not kept.
        - `elastic`, `fragment`: whether the run is elastic; whose round it is.
        - `round`: its number in the run; in an elastic run the version of the fragment that it begins with.
        - `last`: it is the fragment's last, of `finish()`, which carries weights in place of a delta.
        - `attempts`: how often a delta was taken; more than 1 only in elastic runs. Times are of the last.
        - `step`, `weight`, `bytes`: of this site: optimizer steps, what its delta counts for, bytes of its frame.
        - `due_ns`: the site's schedule asked for it.
        - `begun_ns`: the delta was taken.
        - `stored_ns`: the own frame lay on disk (elastic runs only).
        - `offered_ns`: the own frame was coded and given to the network.
        - `listed_ns`: it was decided which sites count: all announcements were there, or the journal's entry.
        - `averaged_ns`: the frames were decoded and averaged.
        - `applied_ns`: the outer step was taken.
        - `coding_ns`: host time for making the own frame, and for decoding and averaging all of them.
        - `counted`: names of the sites that count; empty: the round is void; None: not decided yet.
        - `last_arrived`: the other site whose frame came last; None: frames are missing, or no other site counts.
        - `failed`: it ended with an error.
        - `peers`: for each other site that sends: `site`, `announced_ns`, `arrived_ns`, `bytes`, `step`, `weight`.

        A peer without `arrived_ns` has not come. With fixed sites, a round waits from `offered_ns` to a peer's
        `announced_ns` for that site, and from there to `arrived_ns` for the line. Elastic runs have no announcements:
        `step` and `weight` of a peer are known once it counts. Rounds that a site replays when it joins are there too.

    Example:
        Whom the rounds wait for now:

            for row in geocomm.round_log():
                if row["applied_ns"] is None:
                    print(row["fragment"], [p["site"] for p in row["peers"] if p["arrived_ns"] is None])
    """
    reader = sources.read("rounds", None)
    return [] if reader is None else reader(after)

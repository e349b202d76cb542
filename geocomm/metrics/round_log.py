"""The round log of the process: when each of its last rounds of local steps went through what."""

from __future__ import annotations

from typing import Any

from geocomm.metrics import sources


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

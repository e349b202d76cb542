"""The operation log of the process: when each of its last collectives between sites went through what."""

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
        - `peers`: for each peer that sends: `rank`, `site`, `peer` (a description), `first_in_ns`, `last_in_ns`.

        A peer without `first_in_ns` has not come.

    Example:
        Whom the program waits for now:

            for operation in geocomm.op_log():
                if operation["ended_ns"] is None:
                    print(operation["kind"], [p["site"] for p in operation["peers"] if p["first_in_ns"] is None])
    """
    reader = sources.read("operations", None)
    return [] if reader is None else reader(after)

"""Reports that wait for the line to the run store: of each rank the newest, as many as the store's collector takes."""

from __future__ import annotations

from collections import defaultdict, deque

from geocomm.observe.telemetry.report import MOST_TOGETHER, ReportLine

MOST_AT_ONCE = 64
"""Reports of a rank that a collector takes at once: those that waited while a line was down."""
MOST_WAITING_BYTES = 64 << 20


class WaitingReports:
    """A queue, of ranks in the order in which they reported."""

    def __init__(self, most_bytes: int = MOST_WAITING_BYTES) -> None:
        self._most_bytes = most_bytes
        self._turns: deque[tuple[str, int]] = deque()
        """A rank for each report that waits."""
        self._of_rank: defaultdict[tuple[str, int], deque[bytes]] = defaultdict(deque)
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._turns)

    def add(self, line: ReportLine) -> int:
        """Put a report behind the others. Returns how many had to go for it, older ones."""
        rank, gone = (line.report.site, line.report.rank), 0
        own = self._of_rank[rank]
        if len(own) == MOST_AT_ONCE:
            self._bytes -= len(own.popleft())
            gone = 1
        else:
            self._turns.append(rank)
        own.append(line.text)
        self._bytes += len(line.text)
        while self._bytes > self._most_bytes and len(self._turns) > 1:
            self._take_one()
            gone += 1
        return gone

    def take(self) -> list[bytes]:
        """The next lines to send together; none: nothing waits."""
        return [self._take_one() for _ in range(min(len(self._turns), MOST_TOGETHER))]

    def clear(self) -> None:
        """Forget all."""
        self._turns.clear()
        self._of_rank.clear()
        self._bytes = 0

    def _take_one(self) -> bytes:
        rank = self._turns.popleft()
        own = self._of_rank[rank]
        text = own.popleft()
        self._bytes -= len(text)
        if not own:
            del self._of_rank[rank]
        return text

"""A run that goes on at the sites: what each writes and how it ends; and ending it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter

from geocomm.cli.ssh_sites import scripts
from geocomm.cli.ssh_sites.board import Board
from geocomm.cli.ssh_sites.sites_file import Node, in_sites_file
from geocomm.cli.ssh_sites.ssh import Order, Ssh, SshError

GRACE_S = 60.0
"""After one site of a fixed run has failed, the others have this time to end by themselves."""
STOP_LIMIT_S = 90.0
"""What does not end by itself after SIGTERM is killed."""
GIVE_UP_S = 30.0
"""A site that is away while the run is being ended is left after this time."""
_LEAVE_AT = 3
"""Ctrl+C this many times leaves a run alone that does not end."""
_AGAIN_S = 5.0
_LAST_STEPS_LIMIT_S = 10.0
_KEPT_LINES = 500
_MOST_LETTERS = 10_000
"""The longest part of a site's line that is kept."""
_STEPS = TypeAdapter(dict[str, str])
_STATUS = re.compile(r"[0-9]{1,2}|1[0-9]{2}|2[0-4][0-9]|25[0-5]")
_FOLLOWS = re.compile(r"PeerLost|has ended on another node|RendezvousClosed|the hub at .* is gone|SIGTERM|signal: 15")
"""What the others say when one has failed."""
_RUN_SAYS = "geocomm run: "
_OWN = re.compile(r"(?:\S+Z )?geocomm \w+: ")
"""A line of geocomm itself."""
_ERROR = re.compile(r"(?:\[rank\d+\]:\s*)?[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")


@dataclass
class RunAtNode:
    """What is known of a node's run."""

    lines: deque[str] = field(default_factory=lambda: deque[str](maxlen=_KEPT_LINES))
    ended: bool = False
    status: int | None = None
    """The exit status of `geocomm run`; None: it was killed, or there was none."""
    why: str = ""
    """Why there is no status."""
    asked: bool = False
    """Somebody's `geocomm up` or `geocomm down` has asked it to end."""
    disk_full: bool = False
    """That of its folder, when it ended."""

    @property
    def cause(self) -> str:
        """What geocomm said last, or else the first error, or the last line."""
        last = self.lines[-1] if self.lines else "it wrote nothing"
        if self.why or (last.startswith(_RUN_SAYS) and not last.endswith("say why")):
            return self.why or last.removeprefix(_RUN_SAYS)
        others = [line for line in self.lines if not line.startswith(_RUN_SAYS)] or [last]
        return next((line for line in others if _ERROR.match(line)), others[-1])

    def follows(self, site: str) -> bool:
        """Whether another site's failure is its cause, as far as what it says tells."""
        if self.disk_full:
            return False
        last = self.lines[-1] if self.lines else ""
        first_error = "first error: " in last
        return f"(site {site})" not in last if first_error else _FOLLOWS.search(self.cause) is not None


class Watch:
    """Follows the runs of all nodes until they have ended."""

    def __init__(self, ssh: Ssh, board: Board, nodes: Sequence[Node], *, elastic: bool, logs: bool) -> None:
        self._ssh, self._board = ssh, board
        self._runs = {node: RunAtNode() for node in nodes}
        self._elastic, self._logs = elastic, logs
        self._interrupts = 0
        self._ending_since: float | None = None
        self._following: asyncio.Future[Any] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._steps: dict[str, str] = {}

    async def run(self, hub: Node | None, *, ending: bool = False) -> int:
        """Exit status: 0; that of the site whose failure is the cause; 130 after Ctrl+C.

        hub: where steps are asked for. ending: end the run at once.
        """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            if hub is not None and not ending:
                self._begin(self._show_steps(hub))
            if ending:
                self.end()
            self._following = asyncio.gather(*(self._follow(node) for node in self._runs))
            await self._following
        except asyncio.CancelledError:
            if self._interrupts < _LEAVE_AT:
                raise
            self._board.tell("the run is left alone. geocomm up --attach shows it, geocomm down ends it")
            return 130
        finally:
            loop.remove_signal_handler(signal.SIGINT)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if hub is not None and not ending:
            await self._hear_last_steps(hub)
        return self._outcome(asked=ending)

    def end(self) -> None:
        """Ask all to end; those that do not are killed after STOP_LIMIT_S."""
        if self._ending_since is None:
            self._ending_since = time.monotonic()
            self._begin(self._end_all())

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1:
            self._board.tell("ends the run at all sites. Ctrl+C again: kills it. The third time: leaves it alone")
            self.end()
        elif self._interrupts == 2:
            self._begin(self._order_all(scripts.kill, "killing it"))
        elif self._interrupts == _LEAVE_AT and self._following is not None:
            self._following.cancel()

    async def _end_all(self) -> None:
        self._begin(self._order_all(scripts.stop, "ending"))  # a node that does not answer holds up no others
        await asyncio.sleep(STOP_LIMIT_S)
        await self._order_all(scripts.kill, "killing it")

    async def _order_all(self, script: Any, state: str) -> None:
        async def one(node: Node) -> None:
            order: Order = script(node)
            self._board.say(node, state)
            with contextlib.suppress(SshError):  # `_follow` says that it is away, and gives up on it
                await self._ssh.run(node, order)

        await asyncio.gather(*(one(node) for node, run in self._runs.items() if not run.ended))

    async def _follow(self, node: Node) -> None:
        run = self._runs[node]
        lost_since: float | None = None
        while not run.ended:
            try:
                async with self._ssh.running(node, scripts.follow(node)) as process:
                    said: list[str] = []
                    await asyncio.gather(self._read(node, _lines(process.stdout)), _keep(_lines(process.stderr), said))
                    status = await process.wait()
                self._judge(node, status, said)
                if run.ended:
                    break
                why = said[-1] if said else "the connection has ended"
                lost_since = lost_since or time.monotonic()
                self._board.say(node, "away, its run may go on; trying again")
                self._board.last(node, why)
                await asyncio.sleep(_AGAIN_S)
                await self._ssh.connect(node)
                lost_since = None
                if self._ending_since is not None:
                    await self._ssh.run(node, scripts.stop(node))
                self._board.say(node, "runs", waiting=False)
            except SshError as error:
                self._board.last(node, str(error))
            since = max(lost_since or time.monotonic(), self._ending_since or 0.0)
            if self._ending_since is not None and lost_since and time.monotonic() - since > GIVE_UP_S:
                run.ended, run.why = True, "it is away, and its run may go on: geocomm down ends it later"
                self._board.say(node, run.why, waiting=False)

    async def _read(self, node: Node, lines: AsyncIterator[str]) -> None:
        run = self._runs[node]
        async for line in lines:
            if not line.strip():
                continue
            run.lines.append(line.strip())
            if self._ending_since is None:
                self._board.say(node, "runs", waiting=False)
            self._board.last(node, line.strip())
            if self._logs or _OWN.match(line):
                self._board.tell(f"{node}: {line}")

    def _judge(self, node: Node, status: int, said: Sequence[str]) -> None:
        """Set the node's end, if that is what its last words say."""
        run = self._runs[node]
        last = next((line for line in said if line.startswith(scripts.STATUS_LINE)), None)
        if last is None and status == 255:
            return
        run.ended = True
        words = last.removeprefix(scripts.STATUS_LINE).split() if last is not None else []
        run.asked, run.disk_full = scripts.ASKED in words, scripts.FULL in words
        if words and _STATUS.fullmatch(words[0]):
            run.status = int(words[0])
            self._board.say(node, f"ended with status {run.status}", waiting=False)
        else:
            run.why = "it was killed, or its machine restarted" if last is not None else "there is no run"
            self._board.say(node, run.why, waiting=False)
        if run.status != 0 and not self._elastic and self._ending_since is None:
            self._begin(self._end_others(node))

    async def _end_others(self, failed: Node) -> None:
        left = [str(node) for node, run in self._runs.items() if not run.ended]
        if left:
            how = "was asked to end" if self._runs[failed].asked else "has failed"
            self._board.tell(f"{failed} {how}; waits up to {GRACE_S:.0f} s for {', '.join(left)} to end")
            await asyncio.sleep(GRACE_S)
            self.end()

    async def _show_steps(self, hub: Node) -> None:
        while True:
            with contextlib.suppress(SshError, ValueError):
                async with self._ssh.running(hub, scripts.steps(hub)) as process:
                    async for line in _lines(process.stdout):
                        self._take_steps(line)
            await asyncio.sleep(_AGAIN_S)

    async def _hear_last_steps(self, hub: Node) -> None:
        with contextlib.suppress(SshError, ValueError, TimeoutError):
            async with asyncio.timeout(_LAST_STEPS_LIMIT_S), self._ssh.running(hub, scripts.steps(hub)) as process:
                async for line in _lines(process.stdout):
                    self._take_steps(line)
                    return

    def _take_steps(self, line: str) -> None:
        """ValueError: it is something else."""
        self._steps |= _STEPS.validate_json(line)
        self._board.steps(self._steps)

    def _outcome(self, *, asked: bool) -> int:
        """Say how each has ended, what the others say of a failure first and its cause last; the exit status."""
        failed = {node: run for node, run in self._runs.items() if run.status != 0}
        if self._interrupts or asked:
            left = [f"{node}: {run.why}" for node, run in failed.items() if run.why.startswith("it is away")]
            for line in left:
                self._board.tell(line)
            self._board.tell(f"the run has ended at {'the other' if left else 'all'} sites")
            return 130 if self._interrupts else int(bool(left))
        if failed and all(run.asked for run in failed.values()):
            self._board.tell("the run was ended by geocomm down, or by Ctrl+C in another geocomm up")
            return next(iter(failed.values())).status or 1
        status = 0
        for node, run in sorted(failed.items(), key=lambda item: not item[1].follows(item[0].site_name)):
            status = run.status or 1
            how = "" if run.status is None else f" (status {run.status})"
            self._board.tell(f"{node.log} has more")
            self._board.tell(f"{node} failed{how}: {_told_cause(node, run)}")
        if not failed:
            for node in self._runs:
                reached = self._steps.get(node.site_name)
                self._board.tell(f"{node}: {f'{reached}; ' if reached else ''}its log is {node.log}")
            self._board.tell("the run has ended at all sites")
        return status

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(asyncio.create_task(work))


def _told_cause(node: Node, run: RunAtNode) -> str:
    if run.disk_full:
        return (
            f"the disk of {node.folder} is full. Free some there, or name another folder {in_sites_file('folder')}. "
            f"It said last: {run.cause}"
        )
    full = "No space left" in run.cause or "Disk quota" in run.cause
    return f"{run.cause}. Free some on that disk" if full else run.cause


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[str]:
    """The lines of a stream; parts of what a progress bar draws over are lines too."""
    while stream is not None and (line := await _line(stream)):
        for part in line.decode(errors="replace").replace("\r", "\n").splitlines():
            yield part[:_MOST_LETTERS]


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # longer than the stream's limit: what there is of it
        return await stream.read(1 << 16)


async def _keep(lines: AsyncIterator[str], into: list[str]) -> None:
    async for line in lines:
        into.append(line)

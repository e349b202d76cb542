"""`geocomm up` from the first connection to the watch: keys, script, checks, start; `--attach`, and `geocomm down`."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from geocomm.cli.ssh_sites import scripts
from geocomm.cli.ssh_sites.board import Board
from geocomm.cli.ssh_sites.checks import (
    Facts,
    against_each_other,
    against_start,
    bad_findings,
    hub_node,
    make_keys,
    read_facts,
)
from geocomm.cli.ssh_sites.code_folder import CodeFolder
from geocomm.cli.ssh_sites.sites_file import Node, SitesFile, in_sites_file
from geocomm.cli.ssh_sites.ssh import DeniedError, Order, Ssh, SshError, end, shown
from geocomm.cli.ssh_sites.watch import Watch
from geocomm.core.addresses import host_and_port
from geocomm.core.bad_input import BadInput

_LISTEN_LIMIT_S = 30.0
_VANISHED = 24
"""rsync's exit status where a file has gone while it copied."""
_T = TypeVar("_T")


class NotStartedError(BadInput):
    """The run could not be started; one line for each reason, the most important last."""


@dataclass(frozen=True)
class Up:
    """What is to run."""

    sites: SitesFile
    nodes: list[Node]
    """At which it is started; the others' run goes on."""
    code: CodeFolder
    elastic: bool
    doctor: bool
    logs: bool


async def up(what: Up) -> int:
    """Start the run and watch it; the exit status. NotStartedError, KeysError, OSError."""
    keys = make_keys(what.sites)
    async with Ssh(what.sites.ssh_config) as ssh:
        await _connect(ssh, what.nodes, strict=True)
        async with Board(what.nodes) as board:
            launch = _Launch(ssh, board, what, keys)
            hub = await launch.start()
            return await Watch(ssh, board, what.nodes, elastic=what.elastic, logs=what.logs).run(hub)


async def attach(sites: SitesFile, nodes: list[Node], *, logs: bool, ending: bool = False) -> int:
    """Watch a run that goes on; ending: have it end. The exit status."""
    async with Ssh(sites.ssh_config) as ssh:
        await _connect(ssh, nodes, strict=False)
        async with Board(nodes) as board:
            for node in nodes:
                board.say(node, "looking at its log", waiting=False)
            hub = None if ending else await _hub_of_run(ssh, sites, nodes)
            # Whether it is elastic is not known here: a site that fails ends no others.
            return await Watch(ssh, board, nodes, elastic=True, logs=logs).run(hub, ending=ending)


def commands(what: Up) -> Iterator[str]:
    """What `up` does, as a person would type it."""
    sites = what.sites
    if not sites.keys.exists():
        yield (
            shlex.join(["geocomm", "keys", "create", *sites.sites, "--job", sites.job, "--out", str(sites.keys)]) + "\n"
        )
    for node in what.nodes:
        yield f"\n# {node}: node {node.number}\n"
        yield shown(scripts.put_keys(node, sites.keys / node.site_name), node, sites.ssh_config)
        yield shown(scripts.put_code(node, what.code), node, sites.ssh_config)
        if what.doctor:
            yield shown(Order(scripts.doctor(node, sites)), node, sites.ssh_config)
        yield shown(scripts.start(node, sites, what.code.arguments, what.elastic), node, sites.ssh_config)


class _Launch:
    """From connections to a run that goes on."""

    def __init__(self, ssh: Ssh, board: Board, what: Up, keys: dict[str, Path]) -> None:
        self._ssh, self._board, self._what, self._keys = ssh, board, what, keys
        self._sites, self._nodes = what.sites, what.nodes

    async def start(self) -> Node | None:
        """Returns the node of the hub, where it is one of those that are started."""
        facts = await self._look()
        found = hub_node(self._sites, facts)
        all_here = len(self._nodes) == len(self._sites.nodes)
        hub = found if isinstance(found, Node) else None
        problems = {node: against_start(node, facts[node], self._keys[node.site_name], self._what.code.size_bytes)
                    for node in self._nodes}  # fmt: skip
        general = [*against_each_other(facts), *([found] if isinstance(found, str) and all_here else [])]
        _refuse([f"{node}: {each}" for node, own in problems.items() for each in own] + general)
        with_rsync = {node for node in self._nodes if facts[node].rsync and ":" not in node.ssh}
        await asyncio.gather(
            *(self._put_site(name, with_rsync) for name in dict.fromkeys(n.site_name for n in self._nodes))
        )
        if self._what.doctor:
            await self._examine(hub)
        await self._start_all()
        return hub

    async def _look(self) -> dict[Node, Facts]:
        async def one(node: Node) -> Facts:
            before = time.time()
            done = await self._ssh.run(node, scripts.facts(node, self._sites.hub))
            facts = read_facts(node, done, before, time.time())
            if isinstance(facts, str):
                raise SshError(node, facts)
            return facts

        return dict(zip(self._nodes, await self._each("looking at it", one), strict=True))

    async def _put_site(self, name: str, with_rsync: set[Node]) -> None:
        """One node after the other, since those of a site may share their home."""
        for node in self._nodes:
            if node.site_name == name:
                self._board.say(node, "copying keys and script")
                await self._checked(node, scripts.put_keys(node, self._keys[name]), "its keys")
                if node in with_rsync and shutil.which("rsync"):
                    await self._rsync(node)
                else:
                    await self._checked(node, scripts.put_code(node, self._what.code), "the script's folder")

    async def _rsync(self, node: Node) -> None:
        way = shlex.join(self._ssh.command(node))
        process = await asyncio.create_subprocess_exec(
            *self._what.code.rsync(way, f"{node.ssh}:{node.folder}/code/"),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            _, err = await process.communicate()
        finally:
            await end(process)
        if process.returncode not in (0, _VANISHED):
            raise NotStartedError(_copy_failed(node, "the script's folder", err.decode(errors="replace")))

    async def _checked(self, node: Node, order: Order, what: str) -> None:
        try:
            done = await self._ssh.run(node, order)
        except SshError as error:
            raise NotStartedError(f"{node}: {error}") from None
        if done.status:
            raise NotStartedError(_copy_failed(node, what, done.err))

    async def _examine(self, hub: Node | None) -> None:
        """`geocomm doctor` at all nodes, and from each to the hub, where another doctor answers."""
        async with contextlib.AsyncExitStack() as until_done:
            if hub is not None:
                self._board.say(hub, "starting a doctor that answers")
                listen = hub.site.listen or self._sites.hub
                _, port = host_and_port(listen, least=0)
                script = scripts.listening_doctor(hub, self._sites, port)
                process = await until_done.enter_async_context(self._ssh.running(hub, script))
                await _answers(hub, process)

            async def one(node: Node) -> list[str]:
                peer = [] if node is hub or hub is None else ["--peer", self._sites.hub]
                order = Order(scripts.doctor(node, self._sites, "--json", "--timeout", "10", *peer))
                return bad_findings(await self._ssh.run(node, order))

            found = await self._each("checking it with geocomm doctor", one)
        problems = [f"{node}: {each}" for node, own in zip(self._nodes, found, strict=True) for each in own]
        _refuse(problems, "geocomm doctor advises against it; --no-doctor starts all the same")

    async def _start_all(self) -> None:
        others: set[Node] = set()  # at which somebody else's run goes on, begun since `_look`

        async def one(node: Node) -> None:
            order = scripts.start(node, self._sites, self._what.code.arguments, self._what.elastic)
            done = await self._ssh.run(node, order)
            if done.status == scripts.RUNNING:
                others.add(node)
                raise SshError(node, "a run goes on there. geocomm up --attach shows it, geocomm down ends it")
            if done.status:
                raise SshError(node, f"geocomm run does not start: {_last(done.err)}")
            self._board.say(node, "started", waiting=False)

        try:
            await self._each("starting", one)
        except BaseException:
            # Those that have started would wait for the others.
            begun = [node for node in self._nodes if node not in others]
            await asyncio.gather(*(self._ssh.run(node, scripts.stop(node)) for node in begun), return_exceptions=True)
            raise

    async def _each(self, state: str, work: Callable[[Node], Awaitable[_T]]) -> list[_T]:
        """Do it at all nodes at once; NotStartedError names each at which it fails."""

        async def one(node: Node) -> _T | SshError:
            self._board.say(node, state)
            try:
                return await work(node)
            except SshError as error:
                return error

        found = await asyncio.gather(*(one(node) for node in self._nodes))
        _refuse([f"{each.node}: {each}" for each in found if isinstance(each, SshError)])
        return [each for each in found if not isinstance(each, SshError)]


async def _connect(ssh: Ssh, nodes: Sequence[Node], *, strict: bool) -> None:
    """Connect to all at once; then to those that would not without a question, one by one, where ssh can ask it."""

    async def one(node: Node) -> SshError | None:
        try:
            await ssh.connect(node)
        except SshError as error:
            return error
        board.say(node, "connected", waiting=False)
        return None

    async with Board(nodes) as board:
        for node in nodes:
            board.say(node, f"waiting for {node.ssh} to answer ssh")
        failed = [error for error in await asyncio.gather(*map(one, nodes)) if error is not None]
    for error in [*failed]:
        if isinstance(error, DeniedError) and sys.stdin.isatty():
            with contextlib.suppress(SshError):
                await ssh.connect(error.node, ask=True)
                failed.remove(error)
    problems = [f"{error.node}: {error}" for error in failed]
    if strict:
        _refuse(problems)
    for problem in problems:
        board.tell(problem)


async def _hub_of_run(ssh: Ssh, sites: SitesFile, nodes: Sequence[Node]) -> Node | None:
    """Where the run's steps are known; None: nobody says."""

    async def one(node: Node) -> tuple[Node, Facts] | None:
        with contextlib.suppress(SshError):
            facts = read_facts(node, await ssh.run(node, scripts.facts(node, sites.hub)), 0, 0)
            return None if isinstance(facts, str) else (node, facts)
        return None

    found = hub_node(sites, dict(each for each in await asyncio.gather(*map(one, nodes)) if each is not None))
    return found if isinstance(found, Node) else None


async def _answers(hub: Node, process: asyncio.subprocess.Process) -> None:
    """Return once the doctor listens; NotStartedError with what it says instead."""
    said = ""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LISTEN_LIMIT_S):
            while process.stderr is not None and (line := await process.stderr.readline()):
                said = line.decode(errors="replace").strip()
                if "answers at port" in said:
                    return
    raise NotStartedError(f"{hub}: nothing can listen where the hub is to be: {said or 'no answer'}")


def _refuse(problems: Sequence[str], last: str = "") -> None:
    if problems:
        raise NotStartedError("\n".join([*problems, *([last] if last else [])]))


def _copy_failed(node: Node, what: str, errors: str) -> str:
    full = "No space left" in errors or "Disk quota" in errors
    to_do = f". Free some at {node.folder}, or name another folder {in_sites_file('folder')}" if full else ""
    told = next((line for line in errors.splitlines() if "No space" in line or "quota" in line), _last(errors))
    return f"{node}: {what} cannot be copied: {told}{to_do}"


def _last(errors: str) -> str:
    return (errors.strip().splitlines() or ["it says nothing"])[-1]

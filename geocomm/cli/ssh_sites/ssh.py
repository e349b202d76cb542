"""Commands at the nodes, over the system's ssh: one connection per node, which later commands share.

A script goes through ssh's standard input to the node's `sh`, so that it is quoted once, whatever the login shell, and
stands on no command line. Only where it reads data itself, it is a word of the command. The user's configuration,
agent, jump hosts and checks of host keys are ssh's own.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import signal
import subprocess
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from geocomm.cli.ssh_sites.sites_file import Node
from geocomm.core.child_processes import send_signal

CONNECT_LIMIT_S = 10
_PERSIST_S = 60
"""A connection that nothing uses ends after this time, also where this process was killed."""
_LOST = 255
"""ssh's own exit status for an error."""
_CHUNK_BYTES = 1 << 16
_MOST_BYTES = 16 << 20
"""The longest answer."""
_CHANGED = 1
"""tar's exit status where a file has changed while it was read."""
_ASKS = ("Permission denied", "Host key verification failed")
_TO_DO = {
    "Permission denied": "ssh does not let you in. Try ssh {ssh} true; ssh-add or ssh-copy-id {ssh} helps most often",
    "Host key verification failed": "ssh does not know this machine's key, or knows another. Run ssh {ssh} true once, "
    "and compare the key",
    "Could not resolve": "ssh does not know this name. Look at it in sites.toml and in ssh's configuration",
}
_AWAY = "is away: ssh does not reach it. Start the machine, or look at its address, port and firewall"


class SshError(Exception):
    """A node that cannot be worked with; the message says why, and what to do."""

    def __init__(self, node: Node, message: str) -> None:
        super().__init__(message)
        self.node = node


class DeniedError(SshError):
    """ssh may get in where it may ask its user."""


@dataclass(frozen=True)
class Order:
    """What is done at a node."""

    script: str
    """For `sh`, in the home there. One line where there is a feed."""
    feed: tuple[str, ...] = ()
    """A command here, whose output the script reads."""

    @property
    def remote(self) -> str:
        """The command of ssh."""
        return f"sh -c {shlex.quote(self.script)}" if self.feed else "sh -s"

    @property
    def input(self) -> str:
        """What `sh -s` reads: all of the script, before it runs any."""
        return "" if self.feed else f"{{\n{self.script}\nexit\n}}\n"


@dataclass(frozen=True)
class Done:
    """How an order ended."""

    status: int
    out: str
    err: str


class Ssh:
    """The ways to all nodes. A context, at whose end the connections are closed."""

    def __init__(self, config: Path | None) -> None:
        self._config = _config(config)
        self._sockets = tempfile.TemporaryDirectory(prefix="geocomm-up-", ignore_cleanup_errors=True)

    def command(self, node: Node) -> list[str]:
        """ssh up to the host, over the node's connection where it stands, without questions."""
        limits = {"ServerAliveInterval": 5, "ServerAliveCountMax": 3, "ConnectTimeout": CONNECT_LIMIT_S}
        alive = [word for name, value in limits.items() for word in ("-o", f"{name}={value}")]
        # The user's own configuration may have each command begin a connection that stays, and keeps its output open.
        own = ["-S", self._socket(node), "-o", "ControlMaster=no", "-o", "BatchMode=yes"]
        return ["ssh", *self._config, *own, *alive]

    async def connect(self, node: Node, *, ask: bool = False) -> None:
        """Make the node's connection. ask: ssh may ask at the terminal, for a password or the host's key."""
        command = ["-f", "-N", "-M", "-o", f"ControlPersist={_PERSIST_S}", "--", node.ssh]
        words = [*self.command(node), *command]
        if ask:
            words[words.index("BatchMode=yes")] = "BatchMode=no"
        with tempfile.TemporaryFile() as errors:  # no pipe: older ssh keep it open in the background
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=None if ask else errors,
                start_new_session=not ask,
            )
            if await _ended(process):
                errors.seek(0)
                raise self._lost(node, errors.read().decode(errors="replace"))

    async def run(self, node: Node, order: Order) -> Done:
        """Carry out an order. SshError where the connection is lost."""
        process = await self._begin(node, order)
        try:
            _, out, err = await asyncio.gather(
                self._feed(node, process, order), _all_of(process, process.stdout), _all_of(process, process.stderr)
            )
            status = await process.wait()
        finally:
            await end(process)
        if max(len(out), len(err)) > _MOST_BYTES:
            told = f"sends over {_MOST_BYTES >> 20} MiB where an answer is due. Look at what ssh {node.ssh} true prints"
            raise SshError(node, told)
        done = Done(status, out, err)
        if status == _LOST:
            raise self._lost(node, err)
        return done

    async def _begin(self, node: Node, order: Order) -> asyncio.subprocess.Process:
        """A `sh` at the node, which waits for its input."""
        return await asyncio.create_subprocess_exec(
            *self.command(node),
            "--",
            node.ssh,
            order.remote,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl+C is for this process alone
            limit=1 << 22,
        )

    async def _feed(self, node: Node, process: asyncio.subprocess.Process, order: Order) -> None:
        to_node = _input(process)
        with contextlib.suppress(ConnectionError):  # a script that ends early says why
            to_node.write(order.input.encode())
            if order.feed:
                pipe = subprocess.PIPE
                source = await asyncio.create_subprocess_exec(
                    *order.feed, stdout=pipe, stderr=pipe, start_new_session=True
                )
                try:
                    while source.stdout is not None and (chunk := await source.stdout.read(_CHUNK_BYTES)):
                        to_node.write(chunk)
                        await to_node.drain()
                    errors = await _all_of(source, source.stderr)
                    if await source.wait() > _CHANGED:
                        raise SshError(node, f"{order.feed[0]} fails here: {errors.strip()}")
                finally:
                    await end(source)
            await to_node.drain()
        to_node.close()

    @contextlib.asynccontextmanager
    async def running(self, node: Node, script: str) -> AsyncGenerator[asyncio.subprocess.Process]:
        """A script that runs until this context ends; it reads until then."""
        order = Order(script)
        process = await self._begin(node, order)
        try:
            with contextlib.suppress(ConnectionError):
                _input(process).write(order.input.encode())
                await _input(process).drain()
            yield process
        finally:
            await end(process)

    async def close(self) -> None:
        """End the connections."""
        for socket in Path(self._sockets.name).iterdir():
            words = ["ssh", *self._config, "-S", str(socket), "-O", "exit", "--", "none"]
            quiet = subprocess.DEVNULL
            process = await asyncio.create_subprocess_exec(*words, stdin=quiet, stdout=quiet, stderr=quiet)
            await process.wait()
        self._sockets.cleanup()

    async def __aenter__(self) -> Ssh:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _socket(self, node: Node) -> str:
        return f"{self._sockets.name}/{node.number}"

    def _lost(self, node: Node, errors: str) -> SshError:
        lines = [line.strip() for line in errors.splitlines() if line.strip()]
        for sign, to_do in _TO_DO.items():
            told = next((line for line in lines if sign in line), None)
            if told is not None:
                kind = DeniedError if sign in _ASKS else SshError
                return kind(node, f"{to_do.format(ssh=node.ssh)}. ssh says: {told}")
        return SshError(node, f"{_AWAY}. ssh says: {lines[-1] if lines else 'nothing'}")


def shown(order: Order, node: Node, config: Path | None) -> str:
    """An order as a person pastes it into a shell here."""
    ssh = shlex.join(["ssh", *_config(config), "--", node.ssh, order.remote])
    if order.feed:
        return f"{shlex.join(order.feed)} | {ssh}\n"
    end = "END"
    while end in order.script.splitlines():
        end += "_"
    return f"{ssh} <<'{end}'\n{order.input}{end}\n"


def _config(config: Path | None) -> list[str]:
    return [] if config is None else ["-F", str(config)]


def _input(process: asyncio.subprocess.Process) -> asyncio.StreamWriter:
    if process.stdin is None:
        raise ValueError("started without a pipe")
    return process.stdin


async def _all_of(process: asyncio.subprocess.Process, stream: asyncio.StreamReader | None) -> str:
    """What it writes; a little more than _MOST_BYTES and no end of it: it is killed."""
    kept = bytearray()
    while stream is not None and (chunk := await stream.read(_CHUNK_BYTES)):
        if len(kept) <= _MOST_BYTES:
            kept += chunk
        else:
            send_signal(process, signal.SIGKILL)
    return kept.decode("latin-1" if len(kept) > _MOST_BYTES else "utf-8", errors="replace")


async def _ended(process: asyncio.subprocess.Process) -> int:
    """Exit status; the process ends with this task."""
    try:
        return await process.wait()
    finally:
        await end(process)


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a process that has not ended."""
    send_signal(process, signal.SIGKILL)
    await process.wait()

"""Emulated wide-area networks: run a command once per site, each in a network namespace of its own.

The traffic is real kernel TCP over links with a rate, a delay, loss and a queue. `_bin/wan_emulator` does the work;
this module starts it and talks to it:

    topology = EmulatedWan.uniform(2, EmulatedLink(rate_bps=1e9, delay_s=0.05, loss=0.001))
    with WanRun(topology, ["python", "job.py"]) as run:
        run.control.set_link("site0", "site1", up=False)
        report = run.wait()

IPv4 only. A site sees the other sites and nothing else: no Internet.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from pydantic import TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from geocomm.core.bad_input import first_problem, problem_text
from geocomm.core.child_processes import input_of
from geocomm.core.units import DAY_S
from geocomm.lab.emulator.emulated_links import (
    EmulatedLink,
    EmulatedWan,
    WanConfigError,
    WanError,
    WanUnavailableError,
    link_changes,
)
from geocomm.lab.emulator.local_job import processes_with

EMULATOR = Path(__file__).resolve().parents[2] / "_bin" / "wan_emulator"
LATENESS_LIMIT_S = 0.005
"""A run with a packet later than this measured a busy machine, not the WAN: its times are void."""
CONTROL_VARIABLE = "GEOCOMM_WAN_CONTROL"

_MAX_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class LinkReport:
    """A directed link's settings and what passed over it. A packet is one segment of a real wire, or many."""

    src: str
    dst: str
    up: bool
    rate_bps: float
    delay_s: float
    loss: float
    queue_bytes: int
    bytes: int
    """IP bytes, headers included, of the packets that were not dropped."""
    segments: int
    packets: int
    """Reads from the sender's device, each of one or many segments."""
    dropped_loss: int
    dropped_queue: int
    dropped_down: int
    max_queue_bytes: int
    max_lateness_s: float
    late_packets: int
    reorder: float
    duplicate: float
    reset: float
    reordered: int
    """Segments that came late, of those that came; duplicated: came twice; resets: came as a reset."""
    duplicated: int
    resets: int


@dataclass(frozen=True)
class WanReport:
    """The state of a run, or its outcome."""

    sites: tuple[str, ...]
    exit_status: tuple[int | None, ...]
    """The exit status of each site's command; None while it runs."""
    elapsed_s: float
    max_lateness_s: float
    late_packets: int
    reliable: bool
    """False: a packet came over LATENESS_LIMIT_S late, so times of this run are void."""
    unroutable_packets: int
    links: tuple[LinkReport, ...]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The report that the emulator wrote. WanError: another version's emulator wrote it."""
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise WanError(
                f"the emulator's report cannot be read: {problem_text(first_problem(error))}; build {EMULATOR} anew"
            ) from None

    def to_json(self) -> str:
        """The report as one line of JSON."""
        return TypeAdapter(type(self)).dump_json(self).decode()

    def link(self, src: str, dst: str) -> LinkReport:
        """The link from `src` to `dst`. KeyError: no such link."""
        for link in self.links:
            if (link.src, link.dst) == (src, dst):
                return link
        raise KeyError((src, dst))


class WanControl:
    """A client of a running emulation's control socket. Each call makes its own connection; any thread."""

    def __init__(self, path: str | os.PathLike[str], timeout_s: float = 10.0) -> None:
        """`path`: the socket; inside a site it is in the environment as GEOCOMM_WAN_CONTROL."""
        self.path = Path(path)
        self._timeout_s = timeout_s

    def _ask(self, request: str) -> str:
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
                connection.settimeout(self._timeout_s)
                connection.connect(str(self.path))
                connection.sendall(request.encode() + b"\n")
                with connection.makefile("rb") as answers:
                    answer = answers.readline().decode()
        except OSError as error:
            raise WanError(f"no emulated WAN answers at {self.path}: {error}") from error
        if not answer.endswith("\n"):
            raise WanError(f"the emulated WAN at {self.path} ended before it answered")
        document = json.loads(answer)
        if "error" in document:
            raise WanConfigError(f"the emulated WAN at {self.path} refused '{request}': {document['error']}")
        return answer

    def stats(self) -> WanReport:
        """Settings, counters and lateness as they are now."""
        return WanReport.from_json(self._ask("stats"))

    def set_link(
        self,
        src: str,
        dst: str,
        *,
        up: bool | None = None,
        rate: str | float | None = None,
        rtt: str | float | None = None,
        loss: str | float | None = None,
        queue: str | float | None = None,
        reorder: str | float | None = None,
        duplicate: str | float | None = None,
        reset: str | float | None = None,
        one_way: bool = False,
    ) -> None:
        """Change the links between two sites, both directions unless `one_way`; what is None stays.

        What a link let in before keeps its time of delivery, also when the link goes down. Each direction's delay
        becomes half of `rtt`.
        """
        changes = link_changes(
            up=up, rate=rate, rtt=rtt, loss=loss, queue=queue, reorder=reorder, duplicate=duplicate, reset=reset
        )
        if not changes:
            raise WanConfigError("nothing to change: give up, rate, rtt, loss, queue, reorder, duplicate or reset")
        changed = replace(EmulatedLink(), **changes)
        changed.validate(f"link {src}:{dst}")
        chosen = " ".join(changed.word(name) for name in changes)
        for a, b in [(src, dst)] if one_way else [(src, dst), (dst, src)]:
            self._ask(f"set {a} {b} {chosen}")


def emulator_path() -> Path:
    """The emulator's binary. WanUnavailableError: it was not built."""
    if not os.access(EMULATOR, os.X_OK):
        raise WanUnavailableError(
            f"{EMULATOR} is missing: this installation was built without the WAN emulator (it needs Linux and CMake's "
            "GEOCOMM_TOOLS=ON, the default); install geocomm again"
        )
    return EMULATOR


def check_wan() -> None:
    """Raise WanUnavailableError, which says what is missing, unless this machine allows an emulated WAN."""
    checked = subprocess.run([emulator_path(), "check"], stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, check=False)
    if checked.returncode != 0:
        message = checked.stderr.decode(errors="replace").strip().removeprefix("geocomm wan: ")
        raise WanUnavailableError(message or f"{EMULATOR} ended with {checked.returncode}")


def control_directory() -> Path:
    """Where the control sockets of this user's runs are."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"geocomm-wan-{os.getuid()}"


def find_control() -> Path:
    """The control socket of the run around this process, or of the only one of this user. WanError: none, or many."""
    inherited = os.environ.get(CONTROL_VARIABLE)
    if inherited:
        return Path(inherited)
    sockets = [path for path in sorted(control_directory().glob("*.sock")) if _is_answered(path)]
    if len(sockets) == 1:
        return sockets[0]
    if not sockets:
        raise WanError(f"no emulated WAN runs: no control socket in {control_directory()}")
    raise WanError(f"several emulated WANs run; say which with --control: {', '.join(map(str, sockets))}")


class WanRun:
    """One run of a command over a topology. A context manager: leaving it ends all sites.

    The process that makes it owns the run: when that process dies, however it dies, so do the sites.
    """

    def __init__(
        self,
        topology: EmulatedWan,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        master_port: int = 29500,
        control: str | os.PathLike[str] | None = None,
        keys: str | os.PathLike[str] | None = None,
        grace_s: float = 5.0,
        keep_going: bool = False,
        raw: bool = False,
        seed: int = 1,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
    ) -> None:
        """Start `command` at every site.

        `environment` is every site's (default: this process's own), to which are added GEOCOMM_SITE, NNODES, NODE_RANK,
        MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME and GEOCOMM_WAN_CONTROL, and GEOCOMM_KEYS where `keys` is a folder
        of keys for all sites (`emulated_keys.site_keys`). When a site fails, the others have
        `grace_s` to end before SIGTERM, and as long again before SIGKILL, unless `keep_going`. Output is prefixed with
        the site's name unless `raw`; `stdout` and `stderr` as for subprocess.Popen. `seed` fixes the loss pattern.
        Returns once the sites run. WanConfigError: a value is wrong. WanUnavailableError: the machine forbids the run.
        """
        if not command:
            raise WanConfigError("command: it is empty")
        if not 0 < master_port < 65536:
            raise WanConfigError(f"master_port: {master_port} is not within 1 to 65535")
        if not 0 <= grace_s <= DAY_S:
            raise WanConfigError(f"grace: {grace_s:g} s is not within 0 to {DAY_S:g} s")
        self.topology = topology
        self.control = WanControl(_control_path(control))
        lines = [
            *topology.lines(),
            f"master_port {master_port}",
            f"grace_ms {math.ceil(grace_s * 1000)}",
            f"seed {seed}",
            f"raw {int(raw)}",
            f"keep_going {int(keep_going)}",
            f"control {self.control.path}",
            *([] if keys is None else [f"keys {_one_line(Path(keys).absolute())}"]),
            "go\n",
        ]
        report_reader, report_writer = os.pipe()
        self._report = os.fdopen(report_reader, encoding="utf-8")
        self._report_text = ""
        self._rest: threading.Thread | None = None
        try:
            # A session of its own: Ctrl-C reaches this process alone, which passes on what it wants to.
            self.process = subprocess.Popen(
                [emulator_path(), "run", "--report-fd", str(report_writer), "--", *command],
                stdin=subprocess.PIPE,
                stdout=stdout,
                stderr=stderr,
                env=None if environment is None else dict(environment),
                pass_fds=(report_writer,),
                start_new_session=True,
            )
        except BaseException:
            self._report.close()
            raise
        finally:
            os.close(report_writer)
        orders = input_of(self.process)
        try:
            orders.write("\n".join(lines).encode())
            orders.flush()  # and stays open: its end tells the emulator that this process is gone
            started = self._report.readline()
        except OSError:
            started = ""
        except BaseException:
            self.__exit__(None, None, None)
            raise
        outcome = json.loads(started or '{"error": "the emulator died while it started"}')
        if "error" in outcome:
            self.__exit__(None, None, None)
            raise WanUnavailableError(outcome["error"])
        # The report of many sites is more than the pipe holds, and its reader waits for the emulator's end first.
        self._rest = threading.Thread(target=self._read_rest, name="geocomm-wan-report", daemon=True)
        self._rest.start()

    def _read_rest(self) -> None:
        self._report_text = self._report.read()

    def running(self) -> bool:
        """Whether it goes on."""
        return self.process.poll() is None

    def bytes_sent(self) -> int:
        """Between the sites since the run began, in both directions, with headers. WanError: the run has ended."""
        return sum(link.bytes for link in self.control.stats().links)

    def wait(self, timeout_s: float | None = None) -> int:
        """The exit status: 0, the first non-zero one of a site, or 128 + signal. subprocess.TimeoutExpired: not yet."""
        return self.process.wait(timeout_s)

    def report(self) -> WanReport | None:
        """The outcome once wait() returned; None where the emulator failed before or was killed."""
        if self._rest is not None:
            self._rest.join()
        return WanReport.from_json(self._report_text) if self._report_text.strip() else None

    def processes(self, site: str) -> list[int]:
        """What runs at a site beneath its command, whoever its parent is now; the command itself is not among them."""
        marked = processes_with({"GEOCOMM_SITE": site, CONTROL_VARIABLE: str(self.control.path)})
        return marked[1:]  # the first is the command

    def signal_site(self, site: str, signal_number: signal.Signals) -> None:
        """Send a signal to all `processes` of a site: SIGKILL is what a machine that loses power does to them."""
        for process in self.processes(site):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal_number)

    def interrupt(self, signal_number: int = signal.SIGTERM) -> None:
        """End the run in order: SIGTERM to the sites, SIGKILL after the grace or at the second call."""
        if self.process.poll() is None:
            self.process.send_signal(signal_number)

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run if it still goes on."""
        self.interrupt()
        self.process.wait()
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()
        if self._rest is not None:
            self._rest.join()
        self._report.close()


def _control_path(path: str | os.PathLike[str] | None) -> Path:
    """An absolute path that a new socket can take."""
    if path is None:
        directory = control_directory()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_uid != os.getuid():
            raise WanError(f"{directory} belongs to somebody else; give a control path of your own")
        path = directory / f"{os.getpid()}-{os.urandom(3).hex()}.sock"
    absolute = Path(path).absolute()
    if len(os.fsencode(absolute)) > _MAX_SOCKET_PATH_BYTES:
        raise WanConfigError(f"control: {absolute} is longer than the {_MAX_SOCKET_PATH_BYTES} bytes a socket may have")
    if "\n" in str(absolute):
        raise WanConfigError("control: the path contains a line break")
    if absolute.is_socket() and not _is_answered(absolute):
        absolute.unlink(missing_ok=True)
    return absolute


def _one_line(path: Path) -> Path:
    if "\n" in str(path):
        raise WanConfigError("keys: the path contains a line break")
    return path


def _is_answered(path: Path) -> bool:
    """Whether somebody listens on a socket; what a crash leaves behind is a socket that nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
        except OSError:
            return True
    return True

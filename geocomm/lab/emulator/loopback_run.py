"""A command once per site over this machine's loopback: what is left of an emulated WAN where the machine forbids one.

The bytes between the sites are counted; loopback has no delay, no rate and no loss.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from geocomm.core.addresses import free_port
from geocomm.core.child_processes import output_of
from geocomm.lab.emulator.emulated_links import WanUnavailableError
from geocomm.lab.emulator.local_job import GRACE_S
from geocomm.lab.emulator.site_processes import processes_with
from geocomm.lab.emulator.tcp_counters import CrossingBytes

RUN_VARIABLE = "GEOCOMM_LOOPBACK_RUN"
PACKET_BYTES, PAYLOAD_BYTES = 1500, 1448
"""Of a full packet of TCP on a real line, with its headers and without."""
_SCAN_S = 1.0
"""How often the sites' processes are looked for anew, which reads much of /proc. What a connection carried before it
was found is counted too."""


class LoopbackRun:
    """One run of a command at several sites. A context manager: leaving it ends all sites."""

    def __init__(
        self,
        sites: Sequence[str],
        command: Sequence[str],
        *,
        environment: Mapping[str, str],
        log: IO[str],
        keys: Path | None = None,
    ) -> None:
        """Start `command` at every site, with the variables that `WanRun` gives it but GEOCOMM_WAN_CONTROL.

        Output and errors go to `log`, each line after its site's name. `keys`: a folder of keys for all sites. Once a
        site has failed, the others are killed after GRACE_S. WanUnavailableError: the kernel does not count the bytes.
        """
        self._name, self._log, self._log_lock = uuid.uuid4().hex, log, threading.Lock()
        self._crossing = CrossingBytes()
        self._members: dict[str, list[int]] = {}
        self._scanned_at = -_SCAN_S
        self._failed_at: float | None = None
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._look()
        port = free_port()
        self._readers: list[threading.Thread] = []
        try:
            for node, site in enumerate(sites):
                own = {
                    "GEOCOMM_SITE": site,
                    "NNODES": str(len(sites)),
                    "NODE_RANK": str(node),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "GLOO_SOCKET_IFNAME": "lo",
                    RUN_VARIABLE: self._name,
                } | ({} if keys is None else {"GEOCOMM_KEYS": str(keys / site)})
                self._start(site, command, {**environment, **own})
        except BaseException:
            self.__exit__(None, None, None)
            raise

    def _start(self, site: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A session of its own: Ctrl-C reaches this process alone.
        process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._processes[site] = process
        reader = threading.Thread(target=self._pass_on, args=(site, output_of(process)), name="geocomm-loopback-log")
        reader.start()
        self._readers.append(reader)

    def _pass_on(self, site: str, output: IO[bytes]) -> None:
        with output:
            for line in output:
                with self._log_lock:
                    self._log.write(f"[{site}] {line.decode(errors='replace').rstrip()}\n")

    def _look(self) -> int:
        if time.monotonic() - self._scanned_at >= _SCAN_S:
            self._members = {
                site: processes_with({RUN_VARIABLE: self._name, "GEOCOMM_SITE": site}) for site in self._processes
            }
            self._scanned_at = time.monotonic()
        try:
            return self._crossing.look(self._members)
        except OSError as error:
            raise WanUnavailableError(f"this kernel does not count what TCP carries over loopback: {error}") from error

    def running(self) -> bool:
        """Whether a site's command runs. One that has failed ends the others after a while."""
        statuses = [process.poll() for process in self._processes.values()]
        if self._failed_at is None and any(statuses):
            self._failed_at = time.monotonic()
        if self._failed_at is not None and time.monotonic() - self._failed_at > GRACE_S:
            self._kill()
        return None in statuses

    def bytes_sent(self) -> int:
        """Between the sites since the run began, in both directions, as packets of PACKET_BYTES. A connection counts as
        it was when last asked for: ask often."""
        return round(self._look() * PACKET_BYTES / PAYLOAD_BYTES)

    def wait(self) -> int:
        """The exit status: 0, or the first non-zero one of a site; 128 + signal."""
        while self.running():
            time.sleep(0.05)
        statuses = [process.returncode for process in self._processes.values()]
        return next((status if status > 0 else 128 - status for status in statuses if status != 0), 0)

    def _kill(self) -> None:
        """Whatever started what: none of these processes outlives the run."""
        while left := processes_with({RUN_VARIABLE: self._name}):
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            for process in self._processes.values():
                process.poll()
            time.sleep(0.01)

    def __enter__(self) -> Self:
        """The run itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the run if it still goes on."""
        for process in self._processes.values():
            process.terminate()
        end = time.monotonic() + GRACE_S
        while self.running() and time.monotonic() < end:
            time.sleep(0.05)
        self._kill()
        for process in self._processes.values():
            process.wait()
        for reader in self._readers:
            reader.join()

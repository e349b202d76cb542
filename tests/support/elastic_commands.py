"""Sites of an elastic run on this machine, each started by `geocomm run --elastic`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path

from geocomm.security.key_folder import Keys
from support.elastic_sites import ENVIRONMENT, LIMIT_S, ElasticSite, ElasticSites
from support.hub_support import make_keys
from support.warm_executable import warm_executable


class Supervised:
    """Sites whose processes `geocomm run --elastic` starts."""

    def __init__(self, folder: Path, keys: dict[str, Keys], wait_for: tuple[str, ...] = (), journal: str = "") -> None:
        self.sites = ElasticSites(folder, keys, wait_for, journal)
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        *ranks: str,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "geocomm"),
        anew: bool = False,
        options: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        """ranks: torchrun's arguments; by default one rank without torch. program: Python's, for `geocomm`. options:
        more, of `geocomm run`.

        anew: by a new interpreter, as everything that it starts, so that `processes_of` finds all of it.
        """
        site = self.sites[name]
        log = site.folder.parent / f"{name}-run-{len(site.logs)}.log"
        site.logs.append(log)
        wait_for = ["--wait-for", ",".join(site.wait_for)] if site.wait_for else []
        dealt: list[str] = []
        if (data := site.data) is not None:
            dealt = ["--data", data.set, "--sequence-length", str(data.sequence_length)]
            dealt += ["--held-out-fraction", str(1 / data.held_out_every)] if data.held_out_every else []
        python = sys.executable if anew else warm_executable()
        command = [
            *(python, *program, "run", "--elastic", "--keys", str(site.keys.folder), *wait_for),
            *(["--journal", site.journal] if site.journal else ["--hub", site.leader]),
            *(["--address", site.address] if site.address else []),
            *([] if site.may_lead else ["--never-lead"]),
            *(*dealt, *options),
            *["--listen", site.listen, "--run-dir", str(site.folder), "--"],
            *(ranks or ("--nproc-per-node", "1", "-m", "support.elastic_rank")),
        ]
        with log.open("w") as output:
            process = subprocess.Popen(
                command,
                stdout=output,
                stderr=output,
                env=ENVIRONMENT | dict(environment or {}),
                start_new_session=True,
            )
        self._running[name] = process
        return process

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        self.sites.until(condition, what, limit_s)

    def ended(self, name: str, limit_s: float = LIMIT_S) -> int:
        """The exit status of the site's command, which has ended in good order: no process of it had to be killed."""
        try:
            status = self._running[name].wait(limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"site {name} has not ended within {limit_s:g} s\n{self._texts()}") from None
        assert "has not ended within" not in self.sites[name].text(), self._texts()
        return status

    def _texts(self) -> str:
        return "\n".join(self.sites[name].text() for name in self._running)

    def end(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def supervised(folder: Path, sites: str, *, together: bool = False, journal: str = "") -> Generator[Supervised]:
    """together: no round opens before all of them are there. journal: where it is in etcd."""
    running = Supervised(folder, make_keys(folder / "keys", sites), tuple(sites) if together else (), journal)
    try:
        yield running
    finally:
        running.end()


def processes_of(site: ElasticSite, what: str) -> list[int]:
    """Processes of the site whose command has `what` in it."""
    found: list[int] = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            environment = (process / "environ").read_bytes().decode().split("\0")
            if what in command and f"GEOCOMM_RUN_DIR={site.folder}" in environment:
                found.append(int(process.name))
    return found

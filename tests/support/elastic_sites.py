"""Sites of an elastic run on this machine: real agents, real TLS, ranks without torch (`elastic_rank`)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from geocomm.core.run_dir import RunDir
from geocomm.data.deal_records import DealtSet
from geocomm.elastic.agent_process import AgentConfig
from geocomm.elastic.journal.entries import AnyRound, Entry
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from geocomm.security.key_folder import Keys
from support.local_jobs import free_port
from support.warm_executable import warm_executable
from support.warm_python import WarmProcess, WarmPython
from support.warm_ranks import warm_agents, warm_ranks

TESTS = Path(__file__).resolve().parents[1]
_PATHS = [str(TESTS.parent), str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
LIMIT_S = 150.0
"""For a wait that does not end. With ten times as many processes as CPUs, an agent takes 15 s to start."""
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(_PATHS)}


@dataclass
class ElasticSite:
    """A site: its folders, its agent, its rank."""

    name: str
    keys: Keys
    folder: Path
    leader: str
    listen: str
    journal: str = ""
    min_sites: int = 1
    wait_for: tuple[str, ...] = ()
    snapshot_s: float = 0
    address: str = ""
    may_lead: bool = True
    lead: bool = False
    snapshot_url: str = ""
    mail: bool = True
    data: DealtSet | None = None
    doubt_s: float = LeaderSettings.doubt_s
    regions: tuple[tuple[str, ...], ...] = ()
    agent: WarmProcess | None = None
    rank: WarmProcess | None = None
    logs: list[Path] = field(default_factory=list[Path])

    def start_agent(self, *, ranks: bool = True, module: str = "") -> None:
        """module: what is run in place of the agent's own one."""
        config = AgentConfig(
            leader=self.leader,
            journal=self.journal,
            address=self.address,
            may_lead=self.may_lead,
            lead=self.lead,
            keys=str(self.keys.folder),
            run_dir=str(self.folder),
            listen=self.listen,
            terms=LeaderSettings(
                min_sites=self.min_sites,
                wait_for=frozenset(self.wait_for),
                snapshot_s=self.snapshot_s,
                data=self.data,
                doubt_s=self.doubt_s,
                regions=self.regions,
            ),
            ranks=ranks,
            snapshot_url=self.snapshot_url,
        )
        own_module, *arguments = config.command()[2:]
        self.agent = self._fork(warm_agents(), "agent", module or own_module, *arguments)

    def start_rank(self) -> None:
        self.rank = self._fork(warm_agents(), "rank", "support.elastic_rank", *([] if self.mail else ["--no-mail"]))

    def fork_ranks(self, module: str, *arguments: str, ranks: int = 1) -> None:
        """Start ranks of another program, below torchrun where there are several."""
        environment = {
            "GEOCOMM_SITE": self.name,
            "GEOCOMM_KEYS": str(self.keys.folder),
            "GEOCOMM_ONE_SITE": "1",
            "OMP_NUM_THREADS": "1",
        }
        if ranks > 1:
            torchrun = ("--standalone", "--nproc-per-node", str(ranks), "--no-python")
            arguments = (*torchrun, *warm_ranks().command(module), *arguments)
            module = "torch.distributed.run"
        self.rank = self._fork(warm_ranks(), "rank", module, *arguments, **environment)

    def start(self) -> None:
        self.start_agent()
        self.start_rank()

    def kill_agent(self) -> None:
        assert self.agent is not None
        self.agent.kill()
        self.agent.wait()

    def kill_rank(self) -> None:
        assert self.rank is not None
        self.rank.kill()
        self.rank.wait()

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        """Neither its agent nor its rank runs."""
        there = [process for process in (self.agent, self.rank) if process is not None]
        for process in there:
            process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            for process in there:
                process.send_signal(signal.SIGCONT)

    def leave(self) -> None:
        """The rank says that it leaves, and ends."""
        assert self.rank is not None
        self.rank.send_signal(signal.SIGUSR2)

    def entries(self) -> list[Entry]:
        if not RunDir(self.folder).journal.exists():
            return []
        try:
            journal = SqliteJournal(RunDir(self.folder).journal, read_only=True)
        except NoJournalError:  # it is being made
            return []
        try:
            return list(journal.read())
        finally:
            journal.close()

    def state(self) -> RunState:
        if not RunDir(self.folder).journal.exists():
            return RunState()
        try:
            with contextlib.closing(SqliteJournal(RunDir(self.folder).journal, read_only=True)) as journal:
                return journal.state()
        except NoJournalError:  # it is being made
            return RunState()

    def rounds(self) -> list[AnyRound]:
        return [entry for entry in self.entries() if isinstance(entry, AnyRound)]

    def listed(self, name: str) -> int:
        """Rounds that list a site, as this one knows."""
        return sum(name in [one.site for one in entry.members] for entry in self.rounds())

    def text(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()}" for path in self.logs)

    def end(self) -> None:
        if self.rank is not None:
            self.rank.terminate()  # torchrun ends its workers; killed, it would leave them behind
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.rank.wait(10)
        for process in (self.agent, self.rank):
            if process is not None:
                process.send_signal(signal.SIGKILL)
                process.wait()

    def _fork(self, warm: WarmPython, what: str, module: str, *arguments: str, **variables: str) -> WarmProcess:
        with self.log(what).open("w") as log:
            return warm.start(module, arguments, self.environment(variables), log=log)

    def log(self, what: str) -> Path:
        """For what another of its processes writes."""
        self.logs.append(self.folder.parent / f"{self.name}-{what}-{len(self.logs)}.log")
        return self.logs[-1]

    def environment(self, more: Mapping[str, str]) -> dict[str, str]:
        """Of its processes."""
        own = {"GEOCOMM_AGENT": str(RunDir(self.folder).agent_socket), "GEOCOMM_RUN_DIR": str(self.folder)}
        return ENVIRONMENT | own | dict(more)


def members(command: str, site: ElasticSite, *more: str) -> subprocess.CompletedProcess[str]:
    """`geocomm members` at a site."""
    arguments = [warm_executable(), "-m", "geocomm", "members", command, "--run-dir", str(site.folder), *more]
    return subprocess.run(arguments, env=ENVIRONMENT, capture_output=True, text=True, timeout=120, check=False)


class ElasticSites(dict[str, ElasticSite]):
    """Sites by name, of which the first leads, or whom etcd says. A context that ends all processes."""

    def __init__(self, folder: Path, keys: dict[str, Keys], wait_for: tuple[str, ...] = (), journal: str = "") -> None:
        super().__init__()
        leader = "" if journal else f"127.0.0.1:{free_port()}"
        for number, (name, own) in enumerate(keys.items()):
            listen = leader if leader and number == 0 else f"127.0.0.1:{free_port()}"
            self[name] = ElasticSite(name, own, folder / name, leader, listen, journal, wait_for=wait_for)

    def __enter__(self) -> ElasticSites:
        return self

    def __exit__(self, *_: object) -> None:
        for site in self.values():
            site.end()

    def start(self) -> None:
        """Start all, and return once each has counted twice."""
        self.start_all([*self.values()])

    def start_all(self, sites: Sequence[ElasticSite]) -> None:
        """Start these, and return once each has counted twice."""
        for site in sites:
            site.start()
        self.until(lambda: all(sites[0].listed(site.name) >= 2 for site in sites), "all count")

    def until(self, condition: Callable[[], bool], what: str, limit_s: float = LIMIT_S) -> None:
        """Return once `condition` holds; else fail with all that was logged."""
        end = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < end, f"not within {limit_s:g} s: {what}\n" + "\n".join(
                site.text()
                + f"\n-- journal: {[entry.kind for entry in site.entries() if entry.kind != 'round'][-20:]}, "
                f"{len(site.rounds())} rounds, live: {site.state().live}"
                for site in self.values()
            )
            time.sleep(0.2)  # reading a journal takes up to 20 ms of CPU time

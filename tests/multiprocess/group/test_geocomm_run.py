"""`geocomm run` and init_method="geocomm://": whole jobs that meet at a hub."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from geocomm.core.loop_in_thread import in_a_loop
from geocomm.core.run_dir import RunDir
from geocomm.observe.telemetry.run_store import RunStore
from support import hub_ranks
from support.harness import Ranks
from support.hub_jobs import LIMIT_S, Job, family, job_in, listeners_of, start_node, start_nodes, until_gone
from support.hub_support import HUB_HOST, SECURITY, make_keys
from support.local_jobs import free_port

pytestmark = pytest.mark.timeout(280)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with job_in(tmp_path / "job") as made:
        yield made


def until_it_collects(telemetry: Path) -> None:
    """Until the collector of that folder hears ranks."""
    end = time.monotonic() + LIMIT_S
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as rank:
        while rank.connect_ex(str(RunDir(telemetry).rank_socket)) != 0:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_run_meets_at_the_hub_and_only_tls_listens_beyond_loopback_for_keys_of_the_job(
    job: Job, tmp_path: Path
) -> None:
    make_keys(tmp_path / "keys")
    port = free_port(HUB_HOST)
    for node in range(2):
        # Ranks that import nothing would be done before the collectors have started.
        start_node(job, tmp_path / "keys", port, node, "stay", telemetry=tmp_path / "telemetry", anew=True)
    ranks = [job.fact(f"rank{rank}") for rank in range(2)]
    assert [rank["GEOCOMM_SITE"] for rank in ranks] == ["a", "b"]
    assert [rank["total"] for rank in ranks] == [3.0, 3.0]
    assert {rank["MASTER_ADDR"] for rank in ranks} == {"127.0.0.1"}
    assert {rank["GEOCOMM_HUB"] for rank in ranks} == {f"{HUB_HOST}:{port}"}
    found = listeners_of(family([process.pid for process in job.processes]))
    channels = {rank["port"] for rank in ranks}
    assert channels <= {number for _, number in found}  # the ranks themselves were looked at
    others = {(host, number) for host, number in found if host != "127.0.0.1" and number not in channels}
    assert others == {(HUB_HOST, port)}

    make_keys(tmp_path / "other")  # of another CA: refused before torchrun starts
    job.start(
        *("-m", "geocomm", "run", "--hub", f"{HUB_HOST}:{port}", "--", str(hub_ranks.__file__)),
        GEOCOMM_KEYS=str(tmp_path / "other/b"),
    )
    assert job.processes[-1].wait(LIMIT_S) == 2
    assert "not signed by this job's CA" in " ".join(job.log(2).read_text().split())

    until_it_collects(tmp_path / "telemetry")
    (job.folder / "go").touch()
    assert job.end() == [0, 0, 2], job.output()
    assert [job.fact(f"end{rank}")["total"] for rank in range(2)] == [3.0, 3.0]

    with contextlib.closing(RunStore(tmp_path / "telemetry")) as store:
        end = time.monotonic() + LIMIT_S
        while [(r.site, r.rank, r.final) for r in (said.report for said in store.latest())] != [
            ("a", 0, True),
            ("b", 1, True),
        ]:
            assert time.monotonic() < end, store.latest()
            time.sleep(0.05)
        sums = [row for _, row in store.rows("operations") if row["kind"] == "all_reduce" and row["elements"] == 40_000]
        assert len(sums) == 4
        assert all(row["ended_ns"] for row in sums)


@pytest.mark.slow
def test_run_of_nodes_with_the_keys_of_one_site_is_refused_on_all(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    port = free_port(HUB_HOST)
    for node, declared in enumerate("01"):  # one node's word is not enough
        start_node(job, tmp_path / "keys", port, node, "stay", sites="aa", GEOCOMM_ONE_SITE=declared)
    assert job.end() == [2, 2], job.output()
    for node in range(2):
        (line,) = [line for line in job.log(node).read_text().splitlines() if line.startswith("geocomm run: ")]
        assert "all 2 nodes have keys of site a" in line
        assert "GEOCOMM_ONE_SITE=1" in line
        assert "Traceback" not in job.log(node).read_text()
    assert not list(job.folder.glob("rank*"))


@pytest.mark.parametrize(("number", "sites"), [pytest.param(0, "ab", marks=pytest.mark.slow), (1, "ab"), (0, "aa")])
def test_run_of_two_nodes_of_one_number_is_refused_on_both(job: Job, tmp_path: Path, number: int, sites: str) -> None:
    make_keys(tmp_path / "keys")
    port = free_port(HUB_HOST)
    for node in range(2):
        start_node(job, tmp_path / "keys", port, node, "stay", node_rank=number, sites=sites)
    assert job.end() == [2, 2], job.output()
    said = []
    for node in range(2):
        (line,) = [line for line in job.log(node).read_text().splitlines() if line.startswith("geocomm run: ")]
        assert f"two nodes have --node-rank {number}" in line
        for site in sites:
            assert f"{socket.gethostname()} (site {site})" in line
        assert ("give each its own keys" in line) == (sites == "aa")
        assert "Traceback" not in job.log(node).read_text()
        said.append(line)
    assert said[0] == said[1]
    assert not list(job.folder.glob("rank*"))


@pytest.mark.slow
def test_run_of_nodes_that_declare_one_site_passes(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    (job.folder / "go").touch()
    port = free_port(HUB_HOST)
    for node in range(2):
        start_node(job, tmp_path / "keys", port, node, "stay", sites="aa", GEOCOMM_ONE_SITE="1")
    assert job.end() == [0, 0], job.output()
    assert [job.fact(f"rank{rank}")["GEOCOMM_SITE"] for rank in range(2)] == ["a", "a"]
    assert [job.fact(f"end{rank}")["total"] for rank in range(2)] == [3.0, 3.0]


def test_run_without_numbers_has_a_node_for_each_site_of_its_keys_and_says_whom_it_waits_for(
    job: Job, tmp_path: Path
) -> None:
    """And at which site there is no telemetry."""
    make_keys(tmp_path / "keys", "ba")  # in this order
    (job.folder / "go").touch()
    port = free_port(HUB_HOST)
    start_node(job, tmp_path / "keys", port, 0, "stay", numbered=False, telemetry=tmp_path / "telemetry")
    end = time.monotonic() + LIMIT_S
    while "waiting for node 0 of 2 (site b)" not in job.log(0).read_text():
        assert time.monotonic() < end, job.output()
        time.sleep(0.1)
    start_node(job, tmp_path / "keys", port, 1, "stay", numbered=False)
    assert job.end() == [0, 0], job.output()
    assert [job.fact(f"rank{rank}")["GEOCOMM_SITE"] for rank in range(2)] == ["b", "a"]
    assert "node 1 of 2: one for each site with keys, b, a" in job.log(0).read_text()
    for node in range(2):
        log = job.log(node).read_text()
        assert "no telemetry of node 0 of 2 (site b): " in log
        assert "waitForInput" not in log
        # torch writes the stack of each connection to a store that ended before it.
        assert "Exception raised from" not in log, log


@pytest.mark.slow
def test_run_of_nodes_that_count_differently_is_refused(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    (tmp_path / "keys/b/sites.txt").write_text("a\nb\nc\n")
    port = free_port(HUB_HOST)
    for node in range(2):
        start_node(job, tmp_path / "keys", port, node, "stay", numbered=False)
    assert all(status != 0 for status in job.end()), job.output()
    assert "node 0 counts --nnodes 2, node 1 (site b) counts 3" in job.log(0).read_text()
    assert not list(job.folder.glob("rank*"))


@pytest.mark.slow
def test_run_restarts_both_nodes_when_one_rank_fails(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    start_nodes(job, tmp_path / "keys", free_port(HUB_HOST), "fail_once", "--max-restarts", "1")
    assert job.end() == [0, 0], job.output()
    ranks = [job.fact(f"rank{rank}") for rank in range(2)]
    assert [rank["total"] for rank in ranks] == [3.0, 3.0]
    # The counts of the nodes differ, so they cannot tell one round's keys in the store from another's.
    assert [rank["TORCHELASTIC_RESTART_COUNT"] for rank in ranks] == ["0", "1"]


@pytest.mark.slow
def test_run_goes_on_when_a_node_that_died_is_started_anew(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    port = free_port(HUB_HOST)
    # The hub's address is both nodes' here, and the first to come is the hub, without which the job ends.
    start_node(job, tmp_path / "keys", port, 0, "stay", "--max-restarts", "3")
    job.wait_for_listener(HUB_HOST, port)
    start_node(job, tmp_path / "keys", port, 1, "stay", "--max-restarts", "3")
    for rank in range(2):
        job.fact(f"rank{rank}")
    job.kill(1)
    for name in ("rank0", "rank1"):
        (job.folder / f"{name}.json").unlink()
    dead = job.processes.pop()
    start_node(job, tmp_path / "keys", port, 1, "stay", "--max-restarts", "3")
    for rank in range(2):
        assert job.fact(f"rank{rank}")["total"] == 3.0
    (job.folder / "go").touch()
    assert job.end() == [0, 0], job.output()
    assert dead.returncode == -signal.SIGKILL


# test_first_hour.py has Ctrl+C.
@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_signal_to_every_process_of_every_node_ends_the_job_and_leaves_none(
    job: Job, tmp_path: Path, number: signal.Signals
) -> None:
    """As systemd, Slurm and a terminal send it."""
    make_keys(tmp_path / "keys")
    start_nodes(job, tmp_path / "keys", free_port(HUB_HOST), "stay")
    for rank in range(2):
        job.fact(f"rank{rank}")
    running = family([process.pid for process in job.processes])
    for pid in running:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    assert all(job.end()), job.output()
    until_gone(running)


@pytest.mark.slow
def test_run_says_at_its_end_which_node_it_waits_for(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    port = free_port(HUB_HOST)
    start_node(job, tmp_path / "keys", port, 0, "part")
    job.wait_for_listener(HUB_HOST, port)
    start_node(job, tmp_path / "keys", port, 1, "part")
    for rank in range(2):
        job.fact(f"rank{rank}")
    left = family([job.processes[1].pid]) - {job.processes[1].pid}
    job.processes[1].kill()  # its rank lives on, and ends well
    (job.folder / "go").touch()
    end = time.monotonic() + LIMIT_S
    while "waiting for node 1 of 2 (site b) to end" not in job.log(0).read_text():
        assert time.monotonic() < end, job.output()
        assert job.processes[0].poll() is None, job.output()
        time.sleep(0.1)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def forwarder(port: int) -> Iterator[str]:
    """Stands where a router with a translated address would: its own "host:port", leading to `port` of HUB_HOST."""

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            there, back = await asyncio.open_connection(HUB_HOST, port)
            await asyncio.gather(pump(reader, back), pump(there, writer))
        writer.close()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while content := await source.read(65536):
                target.write(content)
        target.close()

    async def serve() -> None:
        await (await asyncio.start_server(carry, sock=listener)).serve_forever()

    listener = socket.create_server(("127.0.0.3", 0))
    with in_a_loop(serve()):
        yield f"127.0.0.3:{listener.getsockname()[1]}"


@pytest.mark.parametrize("translated", [False, True], ids=["direct", "translated"])
def test_init_method_meets_at_the_hub_of_rank_0_again_and_again(tmp_path: Path, translated: bool) -> None:
    make_keys(tmp_path / "keys")
    port = free_port(HUB_HOST)
    secure = {
        rank: {"GEOCOMM_KEYS": str(tmp_path / "keys" / site), "GEOCOMM_SECURITY": SECURITY}
        for rank, site in enumerate("ab")
    }
    with forwarder(port) as outside, Ranks(["a", "b"], environment_of=secure, time_limit=LIMIT_S) as ranks:
        hub = f"{outside}?listen={HUB_HOST}:{port}" if translated else f"{HUB_HOST}:{port}"
        assert ranks.run(hub_ranks.meet_twice, f"geocomm://{hub}") == [[3.0, 3.0]] * 2


@pytest.mark.slow  # test_first_hour.py has the report of a rank that fails by an exception
def test_run_whose_rank_fails_ends_with_a_report_and_no_stack_of_torchrun(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    (tmp_path / "fail.py").write_text("raise SystemExit(3)")
    job.start(
        *("-m", "geocomm", "run", "--hub", f"{HUB_HOST}:{free_port(HUB_HOST)}", "--"),
        *("--nnodes", "1", "--nproc-per-node", "1", str(tmp_path / "fail.py")),
        GEOCOMM_KEYS=str(tmp_path / "keys" / "a"),
        GEOCOMM_ONE_SITE="1",
        GEOCOMM_SECURITY=SECURITY,
    )
    assert job.end() == [1], job.output()
    (status, first) = job.log(0).read_text().splitlines()
    assert status == "geocomm run: rank 0 of this node ended with exit status 3"
    assert first.startswith("geocomm run: first error: rank 0 (site a): it ended with exit status 3")


def refused(job: Job, *arguments: str, **variables: str) -> str:
    """The output of a `geocomm run` that must end with status 2."""
    job.start("-m", "geocomm", "run", *arguments, **variables)
    assert job.end()[-1] == 2, job.output()
    return " ".join(job.log(len(job.processes) - 1).read_text().split())


def test_run_without_keys_names_keys_create(job: Job) -> None:
    assert "geocomm keys create" in refused(job, "--hub", f"{HUB_HOST}:29500", "--", "train.py")


def test_run_with_keys_of_another_site_names_both(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    text = refused(
        *(job, "--hub", f"{HUB_HOST}:29500", "--", "train.py"),
        GEOCOMM_KEYS=str(tmp_path / "keys/a"),
        GEOCOMM_SITE="b",
    )
    assert "'b'" in text
    assert "'a'" in text


@pytest.mark.slow  # test_first_hour.py has one of these options, as a variable
def test_run_with_another_way_to_meet_is_refused(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    text = refused(
        *(job, "--hub", f"{HUB_HOST}:{free_port(HUB_HOST)}", "--"),
        *("--rdzv-backend", "c10d", "--master-port", "1234", "train.py"),
        GEOCOMM_KEYS=str(tmp_path / "keys/a"),
    )
    assert "--rdzv-backend, --master-port" in text


@pytest.mark.slow  # test_launch_checks.py has the check
def test_run_of_more_nodes_than_sites_without_a_node_rank_is_refused(job: Job, tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    text = refused(
        *(job, "--hub", f"{HUB_HOST}:{free_port(HUB_HOST)}", "--", "--nnodes", "3", "train.py"),
        GEOCOMM_KEYS=str(tmp_path / "keys/a"),
    )
    assert "--nnodes 3 needs --node-rank: 0 to 2" in text

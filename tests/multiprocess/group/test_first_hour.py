"""What a new user sees of `geocomm run`: few lines, and the one that matters last."""

from __future__ import annotations

import os
import signal
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.hub_jobs import Job, job_in
from support.hub_support import HUB_HOST, SECURITY, make_keys
from support.local_jobs import free_port
from support.log_lines import lines_but_waits

pytestmark = pytest.mark.timeout(280)
MOST_LINES = 12
PROGRAM = """
    import sys, torch, torch.distributed as dist
    dist.init_process_group("geocomm")
    tensor = torch.ones(10_000)
    dist.all_reduce(tensor)
    if "fail" in sys.argv and dist.get_rank() == 1:
        raise ValueError("boom")
    dist.all_reduce(tensor)
    dist.destroy_process_group()
"""


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    make_keys(tmp_path / "keys")
    (tmp_path / "train.py").write_text(textwrap.dedent(PROGRAM))
    with job_in(tmp_path / "job") as made:
        yield made


def start(job: Job, port: int, node: int, *program: str, wait_s: int = 100, **variables: str) -> None:
    folder = job.folder.parent
    job.start(
        *("-m", "geocomm", "run", "--hub", f"{HUB_HOST}:{port}", "--wait", str(wait_s)),
        *("--", "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", "1"),
        *(program or (str(folder / "train.py"),)),
        GEOCOMM_KEYS=str(folder / "keys" / "ab"[node]),
        GEOCOMM_SECURITY=SECURITY,
        **variables,
    )


def lines_of(job: Job, node: int) -> list[str]:
    """What a node says but waits, without torch's word of a machine that has no names of others."""
    lines = lines_but_waits(job.log(node).read_text())
    return [line for line in lines if "hostname of the client socket cannot be retrieved" not in line]


def test_codec_that_cannot_be_is_one_line(job: Job) -> None:
    start(job, free_port(HUB_HOST), 0, GEOCOMM_CODEC="int9")
    assert job.end() == [2], job.output()
    (line,) = lines_of(job, 0)
    assert line.startswith("geocomm run: option codec (GEOCOMM_CODEC)")
    assert "did you mean 'int8'" in line


@pytest.mark.slow  # test_init_agreement.py has the refusal; here it is the last line
def test_codecs_that_differ_are_told_by_site_and_as_they_were_written(job: Job) -> None:
    port = free_port(HUB_HOST)
    for node, codec in enumerate(("int8", "int4")):
        start(job, port, node, GEOCOMM_CODEC=codec)
    assert job.end() == [1, 1], job.output()
    for node in range(2):
        lines = lines_of(job, node)
        assert len(lines) <= MOST_LINES, job.output()
        assert lines[-1].startswith("geocomm run: first error: ")
        assert "the ranks differ in option codec: site a: int8; site b: int4" in lines[-1]


def test_last_line_at_both_sites_is_the_first_error(job: Job) -> None:
    port = free_port(HUB_HOST)
    for node in range(2):
        start(job, port, node, str(job.folder.parent / "train.py"), "fail")
    assert job.end() == [1, 1], job.output()
    for node in range(2):
        lines = lines_of(job, node)
        assert len(lines) <= MOST_LINES, job.output()
        assert "group ready" in lines[0], job.output()  # at each site
        assert lines[-1] == "geocomm run: first error: rank 1 (site b): ValueError: boom"


def test_program_that_is_missing_is_one_line_and_the_other_node_waits_on(job: Job) -> None:
    port = free_port(HUB_HOST)
    start(job, port, 0)
    job.wait_for_listener(HUB_HOST, port)
    start(job, port, 1, "nothere.py")
    assert job.processes[1].wait(100) == 2
    assert lines_of(job, 1) == [f"geocomm run: nothere.py: there is no such file in {Path.cwd()}"]
    assert job.processes[0].poll() is None, job.output()


def test_node_that_is_not_the_hub_says_why(job: Job) -> None:
    start_at = "192.0.2.10:29400"
    folder = job.folder.parent
    job.start(
        *("-m", "geocomm", "run", "--hub", start_at, "--wait", "0.1"),
        *("--", "--nnodes", "2", "--node-rank", "0", str(folder / "train.py")),
        GEOCOMM_KEYS=str(folder / "keys" / "a"),
    )
    assert job.end() == [2], job.output()
    (line,) = lines_of(job, 0)
    assert "this node is not the hub: no interface of this machine has 192.0.2.10: it has " in line


def test_ctrl_c_ends_in_a_line_of_geocomm_run(job: Job, tmp_path: Path) -> None:
    program = tmp_path / "wait.py"
    program.write_text(
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit(0))\n"
        "pathlib.Path(sys.argv[1]).touch()\n"
        "time.sleep(100)\n"
    )
    job.start(
        *(
            "-m",
            "geocomm",
            "run",
            "--hub",
            f"{HUB_HOST}:{free_port(HUB_HOST)}",
            "--",
            str(program),
            str(tmp_path / "up"),
        ),
        GEOCOMM_KEYS=str(tmp_path / "keys" / "a"),
        GEOCOMM_ONE_SITE="1",
    )
    end = time.monotonic() + 100
    while not (tmp_path / "up").exists():
        assert time.monotonic() < end, job.output()
        time.sleep(0.05)
    os.killpg(job.processes[0].pid, signal.SIGINT)  # as a terminal does
    assert job.end() == [128 + signal.SIGINT], job.output()
    assert lines_of(job, 0)[-1] == "geocomm run: ended by SIGINT"
    assert "Traceback" not in job.output()


@pytest.mark.parametrize("level", [pytest.param("debug", marks=pytest.mark.slow), "warning"])
def test_error_of_all_ranks_of_a_node_is_told_with_frames_of_geocomm_at_the_level_debug_alone(
    job: Job, level: str
) -> None:
    program = job.folder.parent / "wrong.py"
    program.write_text("import geocomm, torch\ngeocomm.Options(codec='int9')\n")
    job.start(
        *("-m", "geocomm", "run", "--hub", f"{HUB_HOST}:{free_port(HUB_HOST)}", "--"),
        *("--nproc-per-node", "1" if level == "debug" else "2", str(program)),
        GEOCOMM_KEYS=str(job.folder.parent / "keys" / "a"),
        GEOCOMM_ONE_SITE="1",
        GEOCOMM_LOG=level,
    )
    assert job.end() == [1], job.output()
    assert ("core/options.py" in job.output()) is (level == "debug")
    assert 'wrong.py", line 2' in job.output()
    lines = lines_of(job, 0)
    assert level == "debug" or len(lines) <= MOST_LINES, job.output()
    assert "(site a): InvalidArgumentError: option codec" in lines[-1]


def test_option_of_torchrun_that_a_variable_gives_is_told_by_its_name(job: Job) -> None:
    start(job, free_port(HUB_HOST), 0, PET_MASTER_ADDR="10.0.0.1")
    assert job.end() == [2], job.output()
    assert "leave out the variable PET_MASTER_ADDR: the ranks meet at the hub" in lines_of(job, 0)[-1]

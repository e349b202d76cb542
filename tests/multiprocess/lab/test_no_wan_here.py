"""The commands that emulate a WAN, where the machine forbids one: without rights, namespaces and /dev/net/tun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.local_jobs import REPOSITORY, environment
from support.no_wan_place import without_rights

REASON = "this machine allows no emulated WAN: "


def geocomm_here(*arguments: str, timeout_s: float = 100) -> subprocess.CompletedProcess[str]:
    """The command line without rights."""
    command = without_rights([sys.executable, "-m", "geocomm", *arguments])
    return subprocess.run(
        command, env=environment(), capture_output=True, text=True, check=False, timeout=timeout_s, cwd=REPOSITORY
    )


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "command",
    [
        ["wan", "run", "--", "true"],
        ["bench", "wan", "--sizes", "1mb"],
        ["demo", "--elastic"],
    ],
)
def test_command_that_needs_a_wan_is_refused_in_one_sentence(command: list[str], tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")] if command[0] == "demo" else []
    done = geocomm_here(*command, *out)
    assert done.returncode == 125
    assert done.stderr.startswith(f"geocomm {command[0]}: {REASON}")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_look_before_the_build_says_what_the_emulator_says_after_it() -> None:
    look = [str(REPOSITORY / "tools/look_for_wan.sh")]
    emulator = [str(REPOSITORY / "geocomm/_bin/wan_emulator"), "check"]
    for prefix in (list[str], without_rights):
        told = subprocess.run(prefix(look), capture_output=True, text=True, check=True).stdout
        possible = subprocess.run(prefix(emulator), capture_output=True, check=False).returncode == 0
        assert ("no emulated WAN" in told) != possible


@pytest.mark.timeout(120)
def test_tests_that_are_left_out_are_counted_once(tmp_path: Path) -> None:
    tests = tmp_path / "test_two.py"
    tests.write_text(
        "import pytest\n"
        "from support.wan_support import require_wan\n"
        "@pytest.mark.parametrize('number', [1, 2])\n"
        "def test_it(number: int) -> None:\n"
        "    require_wan()\n"
    )
    options = ["-q", "-p", "no:cacheprovider", "-c", str(REPOSITORY / "pyproject.toml")]
    path = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'tests'}"}
    done = subprocess.run(
        without_rights([sys.executable, "-m", "pytest", *options, str(tests)]),
        env=environment(**path),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    told = [line for line in done.stdout.splitlines() if REASON in line]
    assert len(told) == 1, done.stdout
    assert told[0].startswith("SKIPPED [2] ")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_demo_trains_over_loopback_and_says_so(tmp_path: Path) -> None:
    for package in ("deepspeed", "transformers", "matplotlib"):
        pytest.importorskip(package)
    out = tmp_path / "demo"
    done = geocomm_here("demo", "--steps", "5", "--out", str(out), timeout_s=880)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(REASON)
    assert "over loopback: seconds are not a WAN's" in done.stdout
    assert "geocomm over TLS" in done.stdout
    assert (out / "demo.png").stat().st_size > 10_000
    gloo, exact, int8, feedback, local = json.loads((out / "summary.json").read_text())["runs"]
    assert {run["over"] for run in (gloo, exact, int8, feedback, local)} == {"loopback"}
    # All gradients both ways, of 4 bytes. Of three steps, whose ends lie between two looks at the counters.
    for run in (gloo, exact):
        assert run["wan_bytes_per_step"] == pytest.approx(2 * 4 * run["parameters"], rel=0.15)
    assert exact["losses"] == pytest.approx(gloo["losses"], abs=1e-3)
    assert int8["wan_bytes_per_step"] < 0.4 * exact["wan_bytes_per_step"]
    assert feedback["wan_bytes_per_step"] < 0.6 * int8["wan_bytes_per_step"]
    assert 0 < local["line_seconds_per_step_at_least"] < int8["line_seconds_per_step_at_least"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_of_weights_over_loopback_needs_no_environment(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    out = tmp_path / "demo"
    command = ["env", "-i", sys.executable, "-m", "geocomm", "demo", "--weights", "--steps", "4", "--out", str(out)]
    done = subprocess.run(
        without_rights(command), capture_output=True, text=True, check=False, timeout=580, cwd=REPOSITORY
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith(REASON)
    assert "over loopback: seconds are not a WAN's" in " ".join(done.stdout.split())
    figures = json.loads((out / "summary.json").read_text())
    assert figures["compared"] >= 4
    assert len(figures["versions"]) == 5
    assert figures["sent_bytes"] > 2 * figures["versions"][0]["bytes"]

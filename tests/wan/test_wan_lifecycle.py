"""A run of the emulator from start to end: environment, output, exit status, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan, WanConfigError, WanUnavailableError
from geocomm.lab.emulator.emulated_wan import WanRun
from support.wan_support import (
    PROGRAMS,
    REPOSITORY,
    emulate,
    geocomm,
    kill_started,
    processes_with,
    program,
    require_wan,
    wait_until,
)

TWO = EmulatedWan.uniform(2, EmulatedLink(delay_s=0.005))


@pytest.fixture(autouse=True)
def _wan() -> Iterator[None]:
    require_wan()
    yield
    kill_started()


@pytest.fixture
def marker() -> str:
    """An argument that no other process has."""
    return f"geocomm-test-{uuid.uuid4().hex}"


def lingering(marker: str) -> list[str]:
    """A job that ignores SIGTERM and leaves a process in another session. Four processes over two sites."""
    script = f"trap '' TERM; setsid bash -c 'while sleep 1; do :; done' {marker} & while sleep 1; do :; done"
    return ["bash", "-c", script, marker]


def wait_for_job(marker: str) -> None:
    wait_until(lambda: len(processes_with(marker)) >= 4, "the job's processes run")


def wait_for_nothing(marker: str) -> None:
    wait_until(lambda: not processes_with(marker), "the job's processes are gone")


def test_site_environment_and_interfaces_are_its_own() -> None:
    names = "GEOCOMM_SITE NNODES NODE_RANK MASTER_ADDR MASTER_PORT GLOO_SOCKET_IFNAME"
    script = f"for n in {names}; do echo $n=${{!n}}; done; ls -x /sys/class/net; tail -n +3 /proc/net/dev | cut -d: -f1"
    outcome = emulate(EmulatedWan.uniform(["east", "west"]), ["bash", "-c", script], master_port=23456)
    assert outcome.status == 0, outcome.stderr
    for rank, site in enumerate(("east", "west")):
        lines = [
            line.split("] ", 1)[1].strip() for line in outcome.stdout.splitlines() if line.startswith(f"[{site}] ")
        ]
        assert lines[:6] == [
            f"GEOCOMM_SITE={site}",
            "NNODES=2",
            f"NODE_RANK={rank}",
            "MASTER_ADDR=10.91.0.1",
            "MASTER_PORT=23456",
            "GLOO_SOCKET_IFNAME=wan0",
        ]
        assert {"lo", "wan0"} <= set(lines[-2:])


def test_output_is_prefixed_by_line_unless_raw() -> None:
    command = ["bash", "-c", "printf 'one\\ntw'; sleep 0.1; printf 'o\\nthree'; echo four >&2"]
    outcome = emulate(TWO, command)
    for site in TWO.sites:
        mine = [line for line in outcome.stdout.splitlines() if line.startswith(f"[{site}]")]
        assert mine == [f"[{site}] one", f"[{site}] two", f"[{site}] three"]
        assert f"[{site}] four" in outcome.stderr.splitlines()
    assert emulate(TWO, ["echo", "plain"], raw=True).stdout == "plain\nplain\n"


def test_output_of_many_lines_is_whole() -> None:
    outcome = emulate(TWO, ["seq", "30000"])
    for site in TWO.sites:
        mine = [line for line in outcome.stdout.splitlines() if line.startswith(f"[{site}]")]
        assert mine == [f"[{site}] {i}" for i in range(1, 30001)]


def test_output_without_a_reader_ends_the_job_as_in_a_pipeline() -> None:
    command = geocomm("wan", "run", "--", "yes")
    assert command.stdout is not None
    assert command.stdout.readline().endswith("] y\n")
    command.stdout.close()
    assert command.wait(30) == 128 + signal.SIGPIPE
    assert command.stderr is not None
    command.stderr.close()


def test_exit_status_is_the_first_failure() -> None:
    assert emulate(TWO, ["true"]).status == 0
    assert emulate(TWO, ["bash", "-c", "exit $((NODE_RANK * 3))"]).status == 3
    killed = emulate(TWO, ["bash", "-c", "[ $NODE_RANK = 0 ] || kill -KILL $$"])
    assert killed.status == 128 + signal.SIGKILL
    assert killed.report is not None
    assert killed.report.exit_status == (0, 128 + signal.SIGKILL)


def test_exit_status_of_missing_command_is_127() -> None:
    outcome = emulate(TWO, ["no-such-command-anywhere"])
    assert outcome.status == 127
    assert "no-such-command-anywhere" in outcome.stderr


def test_exit_status_of_command_that_cannot_run_is_126(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a program")
    assert emulate(TWO, [str(tmp_path / "data")]).status == 126


def test_failed_site_ends_the_others_after_the_grace(marker: str) -> None:
    outcome = emulate(TWO, ["bash", "-c", "[ $NODE_RANK = 0 ] || exit 9; exec sleep 600", marker], grace_s=0.1)
    assert outcome.status == 9
    assert outcome.report is not None
    assert outcome.report.exit_status == (128 + signal.SIGTERM, 9)


def test_failed_site_with_keep_going_leaves_the_others() -> None:
    outcome = emulate(
        TWO, ["bash", "-c", "[ $NODE_RANK = 0 ] || exit 9; sleep 1; echo done"], grace_s=0.1, keep_going=True
    )
    assert outcome.status == 9
    assert "[site0] done" in outcome.stdout
    assert outcome.report is not None
    assert outcome.report.exit_status == (0, 9)


def test_ended_job_leaves_no_background_process(marker: str) -> None:
    outcome = emulate(TWO, ["bash", "-c", f"setsid sleep 600 {marker} >/dev/null 2>&1 & exit 0"])
    assert outcome.status == 0
    assert not processes_with(marker)


def test_signal_to_a_site_reaches_all_of_it_but_its_command(marker: str) -> None:
    script = f"setsid bash -c 'while sleep 1; do :; done' {marker} & wait; echo $GEOCOMM_SITE went on"

    def kill_one(run: WanRun) -> None:
        wait_until(lambda: len(processes_with(marker)) >= 2, "both sites run")
        run.signal_site("site1", signal.SIGKILL)
        wait_until(lambda: len(processes_with(marker)) == 1, "one is killed")
        run.signal_site("site0", signal.SIGKILL)

    outcome = emulate(TWO, ["bash", "-c", script], kill_one)
    assert outcome.status == 0
    assert "site0 went on" in outcome.stdout
    assert "site1 went on" in outcome.stdout


def test_killed_emulator_leaves_no_process_and_no_socket(marker: str) -> None:
    with WanRun(TWO, lingering(marker), stderr=subprocess.DEVNULL) as run:
        wait_for_job(marker)
        run.process.kill()
        assert run.wait(10) == -signal.SIGKILL
        assert run.report() is None
        wait_for_nothing(marker)
        wait_until(lambda: not run.control.path.exists(), "the control socket is gone")


def test_killed_owner_leaves_no_process(marker: str) -> None:
    owner = geocomm("wan", "run", "--grace", "0.2s", "--", *lingering(marker), start_new_session=True)
    wait_for_job(marker)
    os.killpg(owner.pid, signal.SIGKILL)
    owner.communicate()
    wait_for_nothing(marker)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_command_cleans_up(marker: str, number: signal.Signals, tmp_path: Path) -> None:
    control = tmp_path / "c.sock"
    command = geocomm("wan", "run", "--grace", "0.3s", "--control", str(control), "--", *lingering(marker))
    wait_for_job(marker)
    command.send_signal(number)
    command.communicate(timeout=30)
    assert command.returncode == 128 + number
    assert not processes_with(marker)
    assert not control.exists()


def test_context_left_by_exception_ends_the_sites(marker: str) -> None:
    def fail_inside() -> None:
        with WanRun(TWO, lingering(marker), grace_s=0.2, stderr=subprocess.DEVNULL):
            wait_for_job(marker)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert not processes_with(marker)


def test_second_run_on_a_live_control_path_is_refused(tmp_path: Path) -> None:
    control = tmp_path / "c.sock"
    with WanRun(TWO, ["sleep", "60"], control=control, stderr=subprocess.DEVNULL) as run:
        with pytest.raises(WanUnavailableError):
            WanRun(TWO, ["true"], control=control)
        assert run.control.stats().sites == TWO.sites
    with pytest.raises(WanConfigError):
        WanRun(TWO, ["true"], control="/tmp/" + "x" * 120)


def test_command_line_wan_set_and_stats_work_from_inside_a_site() -> None:
    cli = f"{sys.executable} -m geocomm"
    script = (
        f"[ $NODE_RANK = 0 ] || exit 0; {cli} wan set --link site0:site1 --rate 5mbit --loss 1% down && {cli} wan stats"
    )
    command = geocomm("wan", "run", "--rtt", "20ms", "--raw", "--", "bash", "-c", script)
    out, err = command.communicate()
    assert command.returncode == 0, err
    first, second, document = out.splitlines()
    assert first == "site0 to site1: down, 5 Mbit/s, 10 ms one way, queue 256 KiB, 1% loss"
    assert second.startswith("site1 to site0: down")
    links = {(link["src"], link["dst"]): link for link in json.loads(document)["links"]}
    for pair in (("site0", "site1"), ("site1", "site0")):
        assert (links[pair]["rate_bps"], links[pair]["loss"], links[pair]["up"]) == (5e6, 0.01, False)
        assert links[pair]["delay_s"] == 0.01


def test_command_line_prints_a_table_and_writes_json(tmp_path: Path) -> None:
    target = tmp_path / "counters.json"
    command = geocomm("wan", "run", "--rtt", "4ms", "--json", str(target), "--", *program("send", "2"))
    _out, err = command.communicate()
    assert command.returncode == 0, err
    assert "site1 → site0" in err
    links = {(link["src"], link["dst"]): link for link in json.loads(target.read_text())["links"]}
    assert links["site1", "site0"]["bytes"] > 2_000_000


def test_report_of_more_links_than_a_pipe_holds_comes_whole() -> None:
    outcome = emulate(EmulatedWan.uniform(20, EmulatedLink()), ["true"])
    assert outcome.status == 0
    assert outcome.report is not None
    assert len(outcome.report.links) == 20 * 19
    assert len(outcome.report.to_json()) > 64 * 1024


def test_counters_of_more_links_than_a_socket_holds_come_whole() -> None:
    many = EmulatedWan.uniform(32, EmulatedLink())
    with WanRun(many, ["sleep", "60"]) as run:
        for _ in range(2):
            found = run.control.stats()
            assert len(found.links) == 32 * 31
            assert len(found.to_json()) > 256 * 1024


@pytest.mark.parametrize(("set_before", "expected"), [({}, "insecure"), ({"GEOCOMM_KEYS": "/keys"}, "unset")])
def test_command_line_without_keys_is_insecure(set_before: dict[str, str], expected: str) -> None:
    environment = {"GEOCOMM_SECURITY": "", "GEOCOMM_KEYS": ""} | set_before
    keep = {name: value for name, value in environment.items() if value}
    drop = [f"-u{name}" for name, value in environment.items() if not value]
    arguments = [sys.executable, "-m", "geocomm", "wan", "run", "--", "bash", "-c", "echo ${GEOCOMM_SECURITY-unset}"]
    done = subprocess.run(
        ["env", *drop, *arguments],
        env=os.environ | keep | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [line.split("] ")[1] for line in done.stdout.splitlines()] == [expected] * 2


@pytest.mark.parametrize(
    "arguments",
    [
        ["--rate", "1furlong"],
        ["--rtt", "100"],
        ["--loss", "120%"],
        ["--sites", "1"],
        ["--grace", "soon"],
        ["--matrix", "/no/such/file.toml"],
    ],
)
def test_command_line_bad_value_exits_2(arguments: list[str]) -> None:
    command = geocomm("wan", "run", *arguments, "--", "true")
    _out, err = command.communicate()
    assert command.returncode == 2
    assert arguments[0].lstrip("-") in err


# A mount namespace with a /dev/net/tun that everybody may open, which most machines have and containers may not. The
# source tree, Python and its packages may lie in a home that others cannot enter: here everybody can.
_AS_NOBODY = """
set -e
here=$1 device_mode=$2
mount -t tmpfs -o mode=755 tmpfs "$here"
mkdir "$here/tree" "$here/python" "$here/packages" "$here/home"
mount --bind "$3" "$here/tree"
mount --bind "$4" "$here/python"
mount --bind "$5" "$here/packages"
chown 65534:65534 "$here/home"
export TREE="$here/tree" HOME="$here/home" TMPDIR="$here/home" PYTHONDONTWRITEBYTECODE=1
export PYTHON="$here/python/bin/$6" PYTHONHOME="$here/python" PYTHONPATH="$here/tree:$here/packages"
export LD_LIBRARY_PATH="$here/python/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
mknod "$here/tun" c 10 200
chmod "$device_mode" "$here/tun"
mount --bind "$here/tun" /dev/net/tun
shift 6
nobody="setpriv --reuid 65534 --regid 65534 --clear-groups --bounding-set -all"
cd "$here"
$nobody "$PYTHON" -c "import geocomm.cli.main" || exit 77
exec $nobody "$PYTHON" "$@"
"""
_CANNOT_READ = 77


def _as_nobody(device_mode: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with these arguments as user nobody; PYTHON and TREE say where it finds itself and the source tree."""
    if os.geteuid() != 0 or not shutil.which("setpriv"):
        pytest.skip("becoming nobody takes root and setpriv")
    interpreter, packages = Path(sys.executable).resolve().name, sysconfig.get_path("purelib")
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:  # TMPDIR may lie in somebody's home as well
        settings = [directory, device_mode, str(REPOSITORY), sys.base_prefix, packages, interpreter]
        done = subprocess.run(
            ["unshare", "-m", "bash", "-c", _AS_NOBODY, "as-nobody", *settings, *arguments],
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode == _CANNOT_READ:
        pytest.skip(f"user nobody cannot run geocomm here, perhaps files are not readable by others: {done.stderr}")
    return done


def test_unprivileged_user_runs_over_a_user_namespace(marker: str) -> None:
    nobody = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]
    if shutil.which("setpriv") and subprocess.run([*nobody, "unshare", "-rn", "true"], check=False).returncode:
        pytest.skip("user nobody may make no user namespace here, as in a chroot, or on Ubuntu by AppArmor")
    sender = f"$PYTHON $TREE/tests/support/{PROGRAMS.name} send 3"
    script = f"id -u; setsid sleep 600 {marker} >/dev/null 2>&1 & exec {sender}"
    done = _as_nobody("0666", "-m", "geocomm", "wan", "run", "--rtt", "10ms", "--", "bash", "-c", script)
    assert done.returncode == 0, done.stderr
    assert "[site0] received=3000000" in done.stdout
    assert "[site0] 65534" in done.stdout
    assert not processes_with(marker)


def test_unprivileged_user_without_tun_device_is_told_what_is_missing() -> None:
    done = _as_nobody("0600", "-m", "geocomm", "wan", "run", "--", "true")
    assert done.returncode == 125
    assert "/dev/net/tun" in done.stderr
    assert "Traceback" not in done.stderr


def test_process_of_a_site_sees_no_other_network() -> None:
    outcome = emulate(
        TWO, [sys.executable, "-c", "import socket; socket.create_connection(('192.0.2.1', 80), 1)"], grace_s=0.1
    )
    assert outcome.status == 1
    assert "Network is unreachable" in outcome.stderr


def test_run_reports_time_and_lateness() -> None:
    start = time.monotonic()
    outcome = emulate(TWO, program("pingpong", "3"))
    assert outcome.report is not None
    assert 0 < outcome.report.elapsed_s < time.monotonic() - start
    assert outcome.report.reliable == (outcome.report.max_lateness_s <= 0.005)
    assert outcome.report.max_lateness_s > 0

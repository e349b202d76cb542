"""`geocomm doctor` on one machine: what it says of limits, files, ports and keys, and which fix it names."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from geocomm.observe.doctor.doctor_machine import (
    Finding,
    State,
    buffer_findings,
    congestion_findings,
    file_findings,
    keys_findings,
    listen_findings,
    space_findings,
    streams_of,
    usable_congestion_control,
)
from geocomm.observe.doctor.examination import driver_version
from geocomm.security.job_ca import JobCa
from support.local_jobs import free_port

MIB = 1 << 20


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    folder = tmp_path / "proc"
    (folder / "sys/net/ipv4").mkdir(parents=True)
    settings = {
        "tcp_available_congestion_control": "reno cubic",
        "tcp_allowed_congestion_control": "reno cubic",
        "tcp_slow_start_after_idle": "1",
        "tcp_rmem": f"4096\t131072\t{6 * MIB}",
        "tcp_wmem": f"4096\t16384\t{4 * MIB}",
    }
    for name, text in settings.items():
        (folder / "sys/net/ipv4" / name).write_text(text + "\n")
    return folder


def states(findings: Iterable[Finding]) -> dict[str, State]:
    found = list(findings)
    for finding in found:
        assert finding.state in (State.OK, State.NOTE) or finding.fix, f"no fix: {finding}"
    return {finding.name: finding.state for finding in found}


def test_buffers_of_two_bdp_over_streams_are_asked_for_in_the_exact_sysctl_line(proc: Path) -> None:
    # 2 · 1 Gbit/s · 100 ms = 25 MB; over 4 streams 6.25 MB, in whole MiB 6: enough for receiving, not for sending
    receive, send = buffer_findings(1e9, 0.1, 4, proc)
    assert (receive.state, send.state) == (State.OK, State.WARNING)
    assert f'sysctl -w net.ipv4.tcp_wmem="4096 16384 {6 * MIB}"' in send.fix
    assert receive.value == "have 6 MiB, need 6 MiB"
    assert states(buffer_findings(1e9, 0.1, 8, proc)) == {"tcp_rmem": State.OK, "tcp_wmem": State.OK}
    assert states(buffer_findings(4e9, 0.3, 4, proc)) == {"tcp_rmem": State.WARNING, "tcp_wmem": State.WARNING}


def test_buffers_that_cannot_be_read_are_a_note(tmp_path: Path) -> None:
    assert set(states(buffer_findings(1e9, 0.1, 4, tmp_path)).values()) == {State.NOTE}


def test_bbr_that_is_missing_is_loaded_and_one_that_is_forbidden_allowed(proc: Path) -> None:
    assert states(congestion_findings("bbr", proc)) == {"congestion control": State.OK}
    missing, idle = congestion_findings("cubic", proc)
    assert "modprobe tcp_bbr" in missing.fix
    assert "tcp_slow_start_after_idle=0" in idle.fix
    (proc / "sys/net/ipv4/tcp_available_congestion_control").write_text("reno bbr cubic\n")
    (proc / "sys/net/ipv4/tcp_slow_start_after_idle").write_text("0\n")
    (forbidden,) = congestion_findings("cubic", proc)
    assert 'tcp_allowed_congestion_control="reno cubic bbr"' in forbidden.fix


def test_congestion_control_of_this_machine_is_one_that_the_kernel_has() -> None:
    available = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()
    usable = usable_congestion_control()
    assert usable in available
    assert streams_of(None, usable) == (2 if usable == "bbr" else 16)
    assert streams_of(7, usable) == 7


def test_open_files_are_counted_against_the_limits_of_the_process() -> None:
    program = (
        "import resource; from geocomm.observe.doctor.doctor_machine import file_findings\n"
        "for hard in (1024, 400):\n"
        "    resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))\n"
        "    print(*[f'{f.state}: {f.fix}' for f in file_findings(peers=20, streams=16)])"
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 1024:
        pytest.skip("needs a hard limit of 1024 open files (ulimit -Hn)")
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    outputs = ended.stdout.splitlines()
    wanted = 256 + 20 * 17
    assert outputs[0].startswith(f"bad: before the job: ulimit -n {wanted}")
    assert outputs[1].startswith("bad: ")
    assert f"nofile {wanted}" in outputs[1]
    assert states(file_findings(peers=1, streams=4)) == {"open files": State.OK}


def test_room_is_compared_with_what_is_wanted(tmp_path: Path) -> None:
    assert list(states(space_findings(tmp_path, 1)).values()) == [State.OK]
    assert list(states(space_findings(tmp_path, 1 << 60)).values()) == [State.WARNING]
    assert list(states(space_findings(tmp_path / "absent", 1)).values()) == [State.WARNING]


def test_pinned_port_that_somebody_has_is_bad_and_the_others_are_free() -> None:
    assert states(listen_findings(None, 2)) == {"ports": State.NOTE}
    assert set(states(listen_findings(65535, 2)).values()) == {State.BAD}
    port = free_port()
    with socket.create_server(("127.0.0.1", port)):
        assert states(listen_findings(port, 1)) == {f"port {port}": State.BAD}
    assert states(listen_findings(port, 1)) == {f"port {port}": State.OK}


def test_site_that_only_dials_out_needs_no_open_port_but_a_pinned_one_is_looked_at() -> None:
    assert states(listen_findings(None, 2, outbound_only=True)) == {"open ports": State.NOTE}
    found = states(listen_findings(65535, 2, outbound_only=True))
    assert found.pop("open ports") == State.NOTE
    assert set(found.values()) == {State.BAD}


def test_driver_version_is_read_from_proc(tmp_path: Path) -> None:
    assert driver_version(tmp_path) == ""
    (tmp_path / "driver/nvidia").mkdir(parents=True)
    (tmp_path / "driver/nvidia/version").write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder)\n"
        "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    assert driver_version(tmp_path) == "570.124.06"


@pytest.fixture
def ca(tmp_path: Path) -> JobCa:
    return JobCa.create(tmp_path / "keys", "run7", ["a", "b"], 30)


def test_keys_of_the_command_are_good_and_those_of_another_site_are_not(ca: JobCa) -> None:
    folder = str(ca.folder / "a")
    assert states(keys_findings(folder, "a", insecure=False)) == {"keys": State.OK}
    assert states(keys_findings(folder, "b", insecure=False))["site of the keys"] == State.BAD
    assert states(keys_findings(None, "a", insecure=False)) == {"keys": State.WARNING}
    assert states(keys_findings(None, "a", insecure=True)) == {"security": State.WARNING}


def test_keys_that_expire_soon_are_a_warning(ca: JobCa) -> None:
    ca.renew("a", 5)
    (finding,) = keys_findings(str(ca.folder / "a"), "a", insecure=False)
    assert finding.state == State.WARNING
    assert "keys renew a" in finding.fix


def test_keys_that_others_can_read_are_bad(ca: JobCa) -> None:
    (ca.folder / "a/key.pem").chmod(0o644)
    (finding,) = keys_findings(str(ca.folder / "a"), "a", insecure=False)
    assert finding.state == State.BAD
    assert "chmod 600" in finding.fix


def test_keys_beside_the_ca_of_another_job_are_bad(ca: JobCa, tmp_path: Path) -> None:
    other = JobCa.create(tmp_path / "other", "run7", ["a"], 30)
    (ca.folder / "a/ca.pem").write_bytes((other.folder / "a/ca.pem").read_bytes())
    assert states(keys_findings(str(ca.folder / "a"), "a", insecure=False))["job's CA"] == State.BAD


def test_keys_that_are_revoked_are_bad(ca: JobCa) -> None:
    revoked = ca.revoke("a")
    (ca.folder / "a/crl.pem").write_bytes(revoked.read_bytes())
    found = list(keys_findings(str(ca.folder / "a"), "a", insecure=False))
    assert ("keys", "revoked", State.BAD) in [(finding.name, finding.value, finding.state) for finding in found]


def test_keys_that_are_no_certificates_are_bad(ca: JobCa) -> None:
    (ca.folder / "a/cert.pem").write_text("nothing")
    assert states(keys_findings(str(ca.folder / "a"), "a", insecure=False)) == {"keys": State.BAD}

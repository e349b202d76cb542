"""`geocomm up` from a laptop to sites with real sshd: what it brings there, starts, watches, ends and refuses."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from support.net_spaces import outcome
from support.small_disk import small_disk
from support.ssh_sites import SshSites, ssh_sites
from support.wan_support import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 250.0
TRAIN = """
import json, os, sys, time
import torch, torch.distributed as dist
import geocomm

dist.init_process_group("geocomm")
with open("seen.json", "w") as file:
    json.dump({"arguments": sys.argv[2:], "python": sys.executable, "variable": os.environ.get("OWN")}, file)
for step in range(int(sys.argv[1])):
    values = torch.ones(1000)
    dist.all_reduce(values)
    geocomm.report_step(step=step, loss=1 / (step + 1))
    print("step", step)
    time.sleep(0.1)
dist.destroy_process_group()
"""


WORK = """
import os, sys, time

for step in range(int(sys.argv[1])):
    print("step", step)
    time.sleep(0.1)
    if step == 5 and os.environ.get("OWN") == "fails":
        raise RuntimeError("no data at this site")
"""


FILLS = """
import os, sys, time

for step in range(int(sys.argv[1])):
    print("step", step)
    if os.environ.get("OWN") == "fills":
        with open("checkpoint", "ab") as file:
            file.write(os.urandom(16 << 20))
    time.sleep(0.1)
"""


def ready(sites: SshSites, script: str = WORK, /, **named: str) -> None:
    """sites.toml and train.py are on the laptop. The script needs no torch: torchrun's is enough on a busy machine."""
    file = sites.write(**named)
    (file.parent / "train.py").write_text(script)


def until_steps(sites: SshSites, count: int = 3, names: str = "") -> None:
    wait_until(
        lambda: all(sites.log(name).count("step ") >= count for name in names or sites.names),
        "the sites train",
        LIMIT_S,
    )


def until_told(file: Path, *words: str) -> None:
    end = time.monotonic() + LIMIT_S
    while not all(word in file.read_text() for word in words):
        assert time.monotonic() < end, f"{words}: {file.read_text()[:2000]} ... {file.read_text()[-1000:]}"
        time.sleep(0.1)


def is_running(sites: SshSites, name: str) -> bool:
    lock = sites.run_folder(name) / f"node-{sites.names.index(name)}.lock"
    return lock.exists() and subprocess.run(["flock", "-n", lock, "true"], check=False).returncode != 0


def interrupted(command: subprocess.Popen[str]) -> tuple[int, str]:
    os.kill(geocomm_of(command), signal.SIGINT)
    return outcome(command, LIMIT_S)


def geocomm_of(command: subprocess.Popen[str]) -> int:
    """The process itself: `ip netns exec` and `sh` have become it."""
    return command.pid


def files_named(folder: Path, name: str) -> list[Path]:
    return [path for path in folder.rglob(name) if path.is_file()]


def test_run_at_two_sites_gets_its_own_keys_script_arguments_and_python(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites, TRAIN, b='environment = {OWN = "it\'s\\n$HOME"}', more='exclude = ["data"]')
        work = sites.home("l") / "work"
        (work / "data").mkdir()
        (work / "data/large").write_text("not needed")
        (work / "a module.py").write_text("")
        words = ["it's", 'a "word"', "", "$HOME `id`", "two\nlines"]
        status, text = outcome(sites.at_laptop("up", "sites.toml", "--", "train.py", "8", *words), LIMIT_S)
        assert status == 0, text + sites.log("a") + sites.log("b")
        assert all(line.strip() for line in text.splitlines())
        assert not [line for line in text.splitlines() if line.endswith(": ")]
        of_a, of_b, last = text.splitlines()[-3:]
        assert last == "the run has ended at all sites"
        for number, (name, line) in enumerate((("a", of_a), ("b", of_b))):
            assert line.startswith(f"{name}: step 7, "), line
            assert f"loss 0.1250; its log is {name}:geocomm-up/job/{name}/node-{number}.log" in line
        for name in "ab":
            folder = sites.run_folder(name)
            seen = json.loads((folder / "code/seen.json").read_text())
            assert seen["arguments"] == words
            assert (folder / "code/a module.py").exists()
            assert not (folder / "code/data").exists()
            assert not (folder / "code/geocomm-keys").exists()
            assert stat.S_IMODE((folder / "keys/key.pem").stat().st_mode) == 0o600
            assert stat.S_IMODE((folder / "keys").stat().st_mode) == 0o700
            (key,) = files_named(sites.home(name), "key.pem")
            assert key.read_bytes() == (work / f"geocomm-keys/{name}/key.pem").read_bytes()
            assert not files_named(sites.home(name), "ca-key.pem")
        assert json.loads((sites.run_folder("b") / "code/seen.json").read_text())["variable"] == "it's\n$HOME"


def test_run_outlives_the_laptops_process_and_is_watched_again_and_interrupted(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites, TRAIN)
        first = sites.at_laptop("up", "--", "train.py", "100000")
        until_steps(sites)
        first.kill()
        first.communicate()
        before = sites.log("b").count("step ")
        until_steps(sites, before + 20)

        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), LIMIT_S)
        assert status == 2
        assert "a: a run goes on there" in text
        assert "b: a run goes on there" in text

        told = tmp_path / "attached"
        again = sites.at_laptop("up", "--attach", "--logs", to=told)
        until_told(told, "a: step ", "b: step ", "loss")
        status, _ = interrupted(again)
        assert status == 130
        assert "the run has ended at all sites" in told.read_text()
        assert not is_running(sites, "a")
        assert not is_running(sites, "b")


@pytest.mark.slow
def test_printed_commands_start_the_same_run(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites)
        outcome(sites.at_laptop("keys", "create", "a", "b"), 60)
        status, text = outcome(sites.at_laptop("up", "--no-doctor", "--print", "--", "train.py", "5", "it's"), 60)
        assert status == 0
        script = sites.home("l") / "work/pasted.sh"
        script.write_text(f"set -e\n{text}")
        status, text = outcome(sites.nets.start("l", "sh", str(script)), 60)
        assert status == 0, text
        status, text = outcome(sites.at_laptop("up", "--attach"), LIMIT_S)
        assert status == 0, text
        assert all("step 4" in sites.log(name) for name in "ab")


@pytest.mark.slow
def test_site_of_two_nodes_one_of_them_behind_a_jump_host_takes_part_with_both(tmp_path: Path) -> None:
    with ssh_sites(tmp_path, "abc") as sites:
        ready(sites, sites="ab", b='ssh = ["b", "c"]')
        config = sites.home("l") / ".ssh/config"
        config.write_text(f"Host c\n  ProxyJump b\n{config.read_text()}")
        sites.nets.ip("l", "route add unreachable 10.0.0.3")
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "5"), LIMIT_S)
        assert status == 0, text
        for name, folder, number in (("a", "a", 0), ("b", "b", 1), ("c", "b", 2)):
            run = sites.home(name) / f"geocomm-up/job/{folder}"
            assert "step 4" in (run / f"node-{number}.log").read_text()
            assert (run / "keys/key.pem").exists()


@pytest.mark.slow
def test_down_ends_the_run_and_a_new_one_may_start(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites)
        up = sites.at_laptop("up", "--", "train.py", "100000")
        until_steps(sites)
        status, text = outcome(sites.at_laptop("down"), LIMIT_S)
        assert status == 0, text
        assert not is_running(sites, "a")
        assert not is_running(sites, "b")
        status, text = outcome(up, LIMIT_S)
        assert status == 128 + signal.SIGTERM
        assert text.splitlines()[-1] == "the run was ended by geocomm down, or by Ctrl+C in another geocomm up"
        assert "failed" not in text
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "3"), LIMIT_S)
        assert status == 0, text
        status, text = outcome(sites.at_laptop("down"), LIMIT_S)
        assert status == 0, text


@pytest.mark.slow
def test_second_interrupt_kills_a_run_that_does_not_end(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites)
        script = sites.home("l") / "work/train.py"
        script.write_text("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WORK)
        up = sites.at_laptop("up", "--", "train.py", "100000")
        until_steps(sites)
        os.kill(geocomm_of(up), signal.SIGINT)
        wait_until(lambda: "Signal" in sites.log("a") or "SIGTERM" in sites.log("a"), "torchrun is told", LIMIT_S)
        status, text = interrupted(up)
        assert status == 130, text
        assert not is_running(sites, "a")
        assert not is_running(sites, "b")


def test_error_of_one_site_ends_all_and_is_the_last_line(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites, b='environment = {OWN = "fails"}')
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "100000"), LIMIT_S)
        assert status == 1, text
        assert text.splitlines()[-1].startswith("b failed"), text
        assert "no data at this site" in text.splitlines()[-1]
        assert not is_running(sites, "a")


def test_sites_that_refuse_or_are_away_are_named_and_nothing_starts(tmp_path: Path) -> None:
    with ssh_sites(tmp_path, "abcd") as sites:
        ready(sites)
        (sites.home("b") / ".ssh/authorized_keys").unlink()
        sites.nets.kill("c")
        known = sites.home("l") / ".ssh/known_hosts"
        known.write_text("".join(line for line in known.open() if not line.startswith("10.0.0.4 ")))
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), 60)
        assert status == 2
        assert "b: ssh does not let you in" in text
        assert "ssh-copy-id b" in text
        assert "c: is away" in text
        assert "d: ssh does not know this machine's key" in text
        assert not (sites.home("a") / "geocomm-up").exists()


def test_site_whose_packets_are_lost_is_named_while_it_is_waited_for(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites)
        sites.nets.ip("b", f"link set {sites.interface('b')} down")
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), 60)
        assert status == 2
        assert "b: waiting for b to answer ssh" in text
        assert "b: is away" in text


def test_python_without_geocomm_or_with_another_version_is_told_with_the_fix(tmp_path: Path) -> None:
    with ssh_sites(tmp_path, "abc") as sites:
        ready(sites, b='python = "/usr/bin/none"', c='python = "./other python"')
        own = sites.python("c").read_text()
        fake = sites.home("c") / "fake"
        shutil.copytree(Path(__file__).parents[2] / "geocomm/core", fake / "geocomm/core")
        (fake / "geocomm/__init__.py").write_text("")
        (fake / "geocomm/_version.py").write_text('__version__ = "0.0.1"\n')
        other = sites.home("c") / "other python"
        other.write_text(own.replace("PYTHONPATH=", f'PYTHONPATH="{fake}":'))
        other.chmod(0o755)
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), 60)
        assert status == 2
        assert "b: its Python does not run as '/usr/bin/none'" in text
        ready(
            sites,
            b=f'python = "{shutil.which("python3", path="/usr/bin") or "/usr/bin/python3"}"',
            c='python = "./other python"',
        )
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), 60)
        assert status == 2
        assert "c: ./other python has geocomm 0.0.1" in text
        assert not (sites.home("a") / "geocomm-up").exists()


def test_full_disk_of_a_site_is_told_before_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk, ssh_sites(tmp_path) as sites:  # sshd sees what was there before
        ready(sites, b=f'folder = "{disk}/run"')
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), 60)
        assert status == 2
        assert "b: its disk is full: 1 MiB are free" in text


def test_disk_that_takes_no_files_is_told_with_what_to_do(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk, ssh_sites(tmp_path) as sites:  # sshd sees what was there before
        subprocess.run(["mount", "-o", "remount,size=64m,nr_inodes=6", disk], check=True)
        ready(sites, b=f'folder = "{disk}/run"')
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), 60)
        assert status == 2
        assert "No space left" in text
        assert "folder = " in text.splitlines()[-1]
        assert not is_running(sites, "a")


def test_disk_that_fills_while_the_run_goes_on_is_the_cause_that_is_told(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small") as disk, ssh_sites(tmp_path) as sites:  # sshd sees what was there before
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        ready(sites, FILLS, b=f'folder = "{disk}/run"\nenvironment = {{OWN = "fills"}}')
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "100"), LIMIT_S)
        assert status == 1, text
        last = text.splitlines()[-1]
        assert last.startswith(f"b failed (status 1): the disk of {disk}/run is full. Free some there, or name another")
        assert 'in sites.toml: folder = "/' in last


def test_hub_that_nobody_has_is_refused(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites)
        file = sites.home("l") / "work/sites.toml"
        file.write_text(file.read_text().replace("10.0.0.1:29400", "10.0.0.77:29400"))
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), 60)
        assert status == 2
        assert "no machine of sites.toml has the address 10.0.0.77:29400" in text


def test_taken_port_of_the_hub_is_found_before_the_start(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        ready(sites)
        sites.nets.geocomm("a", "doctor", "--listen", "29400")
        wait_until(lambda: sites.nets.is_listening("a", 29400), "somebody listens", 60)
        status, text = outcome(sites.at_laptop("up", "--", "train.py", "1"), 60)
        assert status == 2
        assert "a: nothing can listen where the hub is to be" in text
        assert "cannot listen at port 29400" in text


@pytest.mark.slow
def test_elastic_run_begins_loses_a_site_gets_it_back_and_ends(tmp_path: Path) -> None:
    with ssh_sites(tmp_path) as sites:
        file = sites.write()
        for name in ("elastic_training.py",):
            shutil.copy(Path(__file__).parents[1] / "support" / name, file.parent / name)
        results = tmp_path / "results"
        results.mkdir()
        script = ["--", "elastic_training.py", str(results), "100000", "0.05", "20"]
        up = sites.at_laptop("up", "--elastic", *script)
        steps = rounds_of(results)
        wait_until(lambda: steps("a") > 20 and steps("b") > 20, "both train", LIMIT_S)
        assert outcome(sites.at_laptop("down", "--only", "b"), LIMIT_S)[0] == 0
        assert not is_running(sites, "b")
        assert is_running(sites, "a")
        before = steps("b")
        back = sites.at_laptop("up", "--elastic", "--only", "b", *script)
        wait_until(lambda: steps("b") > before + 20, "it is back", LIMIT_S)
        status, text = interrupted(back)
        assert status == 130, text
        assert is_running(sites, "a")
        status, text = interrupted(up)
        assert status == 130, text
        assert not is_running(sites, "a")


def rounds_of(results: Path) -> Callable[[str], int]:
    def steps(site: str) -> int:
        file = results / f"{site}.0.jsonl"
        return len(file.read_text().splitlines()) if file.exists() else 0

    return steps

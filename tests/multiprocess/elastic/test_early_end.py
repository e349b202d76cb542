"""A site of an elastic run that is told to end while it loads."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from support.hub_support import HUB_HOST, make_keys
from support.local_jobs import environment, free_port
from support.warm_executable import warm_executable


@pytest.mark.timeout(120)
def test_site_that_is_ended_while_it_loads_says_so(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys")
    program = tmp_path / "train.py"
    program.write_text("import time\ntime.sleep(100)\n")
    command = [warm_executable(), "-m", "geocomm", "run", "--elastic", "--hub", f"{HUB_HOST}:{free_port(HUB_HOST)}"]
    site = subprocess.Popen(
        [*command, "--run-dir", str(tmp_path / "run"), "--", str(program)],
        env=environment(GEOCOMM_KEYS=str(tmp_path / "keys" / "a")),
        stderr=subprocess.PIPE,
        text=True,
    )
    with site:
        end = time.monotonic() + 60
        while not RunDir(tmp_path / "run").agent_lock.exists():  # its agent comes after its signal handlers
            assert time.monotonic() < end
            time.sleep(0.05)
        site.send_signal(signal.SIGTERM)
        _, said = site.communicate()
    assert "this site ends: it was still loading, and had not joined the run" in said
    assert site.returncode == 128 + signal.SIGTERM, said

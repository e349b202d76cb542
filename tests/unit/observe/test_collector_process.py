"""The collector as a process: what is there after its end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from geocomm.group.rendezvous.to_collector import CollectorConfig


@pytest.mark.parametrize("hub", ["", "127.0.0.1:1"], ids=["store", "at another site"])
def test_folder_with_a_store_stays_and_one_that_was_made_for_sockets_goes(hub: str, tmp_path: Path) -> None:
    folder = tmp_path / "collector"
    folder.mkdir()
    other = os.getppid()  # not the one that starts it: as if that had ended
    subprocess.run(CollectorConfig(folder, hub=hub).command(other), check=True, timeout=120)
    assert folder.exists() == (not hub)


DYING = """
import sys
from geocomm.observe import collector_process
from geocomm.observe.telemetry.collector import Collector
async def serve(self): raise KeyError("not foreseen")
Collector.serve = serve
collector_process.main(sys.argv[1:])
"""


def test_collector_that_ends_by_an_error_of_this_program_says_so_and_ends_with_a_status(tmp_path: Path) -> None:
    arguments = CollectorConfig(tmp_path).command(os.getpid())[3:]
    ended = subprocess.run([sys.executable, "-c", DYING, *arguments], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "no telemetry, by an error of this program" in ended.stderr
    assert "not foreseen" in ended.stderr

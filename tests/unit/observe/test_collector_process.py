"""The collector as a process: what is there after its end."""

from __future__ import annotations

import os
import subprocess
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

"""`geocomm run --elastic --publish`: what publishes the weights of an elastic run, of real sites that train."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest
import torch

from geocomm.elastic.fragment_store import FragmentStore
from geocomm.elastic.snapshots import SnapshotError, Snapshots
from geocomm.elastic.supervisor import PublishConfig
from geocomm.weights.reader import WeightReader
from support.elastic_sites import ENVIRONMENT, LIMIT_S
from support.elastic_training import build_model
from support.elastic_training_sites import assert_equal_bits, end_all, training_sites

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("elastic-training")]


def test_kept_snapshots_become_signed_versions_also_after_the_process_was_killed(tmp_path: Path) -> None:
    stream = tmp_path / "stream"
    with training_sites(tmp_path, "ab") as sites:
        sites["a"].snapshot_s = 1.0
        site = sites["b"]
        for one in sites.values():
            one.start()
        config = PublishConfig(
            place=str(stream), dtype="float32", run_dir=str(site.folder), keys=str(site.keys.folder.resolve())
        )
        into = {name: torch.zeros_like(value) for name, value in build_model().state_dict().items()}
        snapshots, seen = Snapshots(FragmentStore(site.folder)), list[tuple[int, int]]()
        with WeightReader(str(stream), into, keys=sites["a"].keys.folder, publisher="b") as reader:

            def is_newer() -> bool:
                before = reader.version
                if reader.update() == before:
                    return False
                assert reader.step is not None
                try:
                    kept = {name: torch.from_numpy(values) for name, values in snapshots.weights(reader.step)}
                except (SnapshotError, OSError):
                    assert reader.step not in snapshots.indices()  # it goes once newer ones are kept
                else:
                    assert all(torch.equal(into[name], values) for name, values in kept.items())
                    seen.append((reader.version, reader.step))
                return True

            for number in (signal.SIGKILL, signal.SIGTERM):
                with subprocess.Popen(config.command(), env=ENVIRONMENT) as process:
                    before = reader.version
                    sites.until(lambda: is_newer() and reader.version > before + 1, "versions", 240)  # noqa: B023
                    process.send_signal(number)
                    assert process.wait(LIMIT_S) == (-number if number is signal.SIGKILL else 0)
        assert len(seen) > 1
        assert sorted(set(seen)) == seen
        end_all(sites, tmp_path)
        assert_equal_bits(sites)

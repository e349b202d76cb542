"""`geocomm run --elastic --publish`: what publishes the weights of an elastic run, of real sites that train."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.snapshots import SnapshotError, Snapshots
from geocomm.elastic.supervisor import PublishConfig
from geocomm.weights.reader import WeightReader
from support.elastic_commands import processes_of, supervised
from support.elastic_sites import ENVIRONMENT, LIMIT_S, ElasticSite
from support.elastic_training import build_model
from support.elastic_training_sites import assert_equal_bits, end_all, training_sites
from support.weight_streams import equal

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("elastic-training")]


def test_kept_snapshots_become_signed_versions_also_after_the_process_was_killed(tmp_path: Path) -> None:
    stream = tmp_path / "stream"
    with training_sites(tmp_path, "ab") as sites:
        sites["a"].snapshot_s = 1.0
        site = sites["b"]
        for one in sites.values():
            one.start()
        config = PublishConfig(
            place=str(stream),
            dtype="float32",
            readers=("a",),
            run_dir=str(site.folder),
            keys=str(site.keys.folder.resolve()),
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
                    before, count = reader.version, len(seen)
                    sites.until(
                        lambda: is_newer() and reader.version > before + 1 and len(seen) > count,  # noqa: B023
                        "versions whose snapshots are still kept",
                        240,
                    )
                    process.send_signal(number)
                    assert process.wait(LIMIT_S) == (-number if number is signal.SIGKILL else 0)
        assert len(seen) > 1
        assert sorted(set(seen)) == seen
        end_all(sites, tmp_path)
        assert_equal_bits(sites)


def kept_weights(site: ElasticSite, known: dict[int, dict[str, torch.Tensor]]) -> None:
    """What a site's own snapshots hold, by their number: they go once newer ones are kept."""
    snapshots = Snapshots(FragmentStore(site.folder))
    for index in set(snapshots.indices()) - known.keys():
        with contextlib.suppress(OSError, SnapshotError):  # it is being made, or goes
            weights = {name: torch.from_numpy(values).clone() for name, values in snapshots.weights(index)}
            known[index] = weights


def test_reader_has_the_newest_weights_after_the_site_that_publishes_was_killed_and_came_back(tmp_path: Path) -> None:
    """The whole of it: `geocomm run --elastic --publish`, its agent, torchrun and ranks."""
    ranks = ("--nproc-per-node", "1", "-m", "support.elastic_training", str(tmp_path), "100000", "0.05", "10")
    stream = tmp_path / "stream"
    with supervised(tmp_path, "ab", together=True) as run:
        a, b = run.sites["a"], run.sites["b"]
        publish = ("--publish", str(stream), "--publish-dtype", "float32")
        run.start("a", *ranks, anew=True, options=("--snapshot-every", str(3 / 60)))
        killed = run.start("b", *ranks, anew=True, options=publish)
        into = {name: torch.zeros_like(value) for name, value in build_model().state_dict().items()}
        kept: dict[int, dict[str, torch.Tensor]] = {}
        compared: list[int] = []
        with WeightReader(str(stream), into, keys=a.keys.folder, publisher="b") as reader:

            def compares() -> bool:
                """Get to the newest version; whether it is one that was compared with the other site's snapshot."""
                kept_weights(a, kept)
                before = reader.version
                if reader.update() > before and (expected := kept.get(reader.step or -1)) is not None:
                    assert equal(into, expected)
                    compared.append(reader.version)
                return reader.version in compared

            run.until(lambda: compares() and len(compared) > 1, "versions", 300)
            killed.kill()
            for process in processes_of(b, ""):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            killed.wait()
            run.until(lambda: not processes_of(b, ""), "all of the site is dead")
            compares()
            last = reader.version
            run.start("b", *ranks, anew=True, options=publish)
            run.until(lambda: compares() and reader.version > last + 1, "newer versions", 300)
            (tmp_path / "stop").touch()
            assert run.ended("b", 120) == 0, b.text()
            assert run.ended("a", 120) == 0, a.text()
            compares()
            assert reader.version == max(int(path.stem) for path in (stream / "versions").iterdir())
            assert equal(into, kept[reader.step or -1])
        assert not any("other bits" in site.text() for site in (a, b))

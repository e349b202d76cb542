"""`geocomm train` as a site of an elastic run: killed, back, gone in order, and done with an exported model."""

from __future__ import annotations

import os
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from geocomm.checkpoint.checkpoint_folder import complete_checkpoints
from geocomm.export.export_record import read_record
from geocomm.journal.entries import Round
from geocomm.journal.run_state import Standing
from support.elastic_commands import Supervised, processes_of, supervised
from support.train_ranks import SMALL_RUN, copy_checkpoint, entries, losses, require_success, run_ranks

pytestmark = [pytest.mark.timeout(560), pytest.mark.xdist_group("training")]
LOCAL = ("sync.mode=local", "sync.every=6", "sync.fragments=2", "sync.exact_below=1000")
ENDLESS = 100_000


def start(run: Supervised, name: str, steps: int = ENDLESS, *more: str) -> Any:
    folder = run.sites[name].folder.parent / f"disk-{name}"
    settings = [
        *SMALL_RUN,
        *LOCAL,
        "distributed.backend=geocomm",
        "model.preset=tiny",
        f"output_dir={folder / 'run'}",
        f"data.cache_dir={folder / 'tokens'}",
        f"training.steps={steps}",
        "checkpoint.every_steps=20",
        "checkpoint.at_end=true",
        *more,
    ]
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    variables = {"OMP_NUM_THREADS": "1"}
    return run.start(name, "--nproc-per-node", "1", "-m", "geocomm.train", *arguments, environment=variables)


def rounds_of(run: Supervised, name: str) -> list[Round]:
    """That list the site, as the leader knows them."""
    return [one for one in run.sites["a"].rounds() if name in [listed.site for listed in one.members]]


def checkpoints(folder: Path, name: str) -> dict[int, dict[str, Any]]:
    return complete_checkpoints(folder / f"disk-{name}" / "run" / "checkpoints")


def test_driver_is_killed_comes_back_leaves_and_ends_with_a_model(tmp_path: Path) -> None:
    with supervised(tmp_path, "ab", together=True) as run:
        leader, second = start(run, "a"), start(run, "b")
        run.until(lambda: bool(rounds_of(run, "b")) and bool(checkpoints(tmp_path, "b")), "b counts and has saved", 200)

        (rank,) = processes_of(run.sites["b"], "-u -m geocomm.train")
        os.kill(rank, signal.SIGKILL)
        run.until(lambda: run.sites["a"].state().sites["b"].standing is Standing.AWAY, "b is away")
        counted = len(rounds_of(run, "b"))
        run.until(lambda: len(rounds_of(run, "b")) >= counted + 2, "b counts again", 200)
        begun = [entry["step"] for entry in entries(tmp_path / "disk-b", "start")]
        assert len(begun) == 2
        assert begun[1] > begun[0]  # where the run is

        second.send_signal(signal.SIGTERM)
        assert second.wait(120) == 0, run.sites["b"].text()
        assert run.sites["a"].state().sites["b"].standing is Standing.LEFT
        end = run.sites["a"].state().step + 40
        second = start(run, "b", end, "export.format=hf")
        assert second.wait(250) == 0, run.sites["b"].text()
        exported = read_record(tmp_path / "disk-b" / "run" / "export")
        assert exported is not None
        assert exported.source.step >= end

        leader.send_signal(signal.SIGTERM)
        assert leader.wait(120) == 0, run.sites["a"].text()
        assert run.sites["a"].state().ended
    assert not any("other bits" in site.text() for site in run.sites.values())
    for name in "ab":
        seen = list(losses(tmp_path / f"disk-{name}").values())
        assert statistics.mean(seen[-10:]) < 0.9 * statistics.mean(seen[:10])
    assert max(checkpoints(tmp_path, "a")) == max(losses(tmp_path / "disk-a"))  # the last thing that a did


def test_checkpoint_of_fixed_sites_begins_an_elastic_run_and_the_other_way(tmp_path: Path) -> None:
    """Per-step training, then a site of an elastic run, then local steps of two fixed sites."""
    common = ["distributed.backend=geocomm", "model.preset=tiny", "checkpoint.at_end=true"]
    require_success(run_ranks(tmp_path, [*common, "training.steps=6"]))
    copy_checkpoint(tmp_path, tmp_path / "disk-a", 6)
    with supervised(tmp_path, "a") as run:
        site = start(run, "a", 40)
        assert site.wait(200) == 0, run.sites["a"].text()
        [begun] = entries(tmp_path / "disk-a", "start")
        assert (begun["step"], begun["resumed"]) == (6, True)
        assert min(one.step for entry in run.sites["a"].rounds() for one in entry.members) > 6
    assert set(losses(tmp_path / "disk-a")) == set(range(7, 41))

    copy_checkpoint(tmp_path / "disk-a", tmp_path / "again", 40)
    require_success(run_ranks(tmp_path / "again", [*common, *LOCAL, "training.steps=44"]))
    ended = losses(tmp_path / "again")
    assert set(ended) == set(range(41, 45))
    first, before, after = (losses(tmp_path)[1], losses(tmp_path / "disk-a")[7], statistics.mean(ended.values()))
    assert after < before < first

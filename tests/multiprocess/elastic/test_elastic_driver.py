"""`geocomm train` as a site of an elastic run: killed, back, gone in order; and before and after such a run."""

from __future__ import annotations

import contextlib
import signal
import statistics
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from geocomm.core.file_systems import folder_mark
from geocomm.data.additions import add_files
from geocomm.data.catalog import RulesFile, Store
from geocomm.data.deal_records import DealtSet
from geocomm.elastic.journal.claims import MOST_TIMES
from geocomm.elastic.journal.entries import Round
from geocomm.elastic.journal.run_state import Standing
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.train.export.export_record import read_record
from geocomm.train.runs.run_folder import RunFolder, complete_checkpoints
from support.elastic_commands import Supervised, supervised
from support.train_ranks import SMALL_RUN, copy_checkpoint, entries, losses, require_refusal, require_success, run_ranks
from support.warm_ranks import warm_training

pytestmark = [pytest.mark.timeout(560), pytest.mark.xdist_group("elastic-driver")]
LOCAL = ("sync.mode=local", "sync.every=6", "sync.fragments=2", "sync.exact_below=1000")
ENDLESS = 100_000
SEQUENCE_LENGTH = 64  # of SMALL_RUN
ZERO_3 = "training.zero_stage=3"


def start(run: Supervised, name: str, *more: str, steps: int = ENDLESS, ranks: int = 1) -> Any:
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
    command = ["--nproc-per-node", str(ranks), "--no-python", *warm_training().command("geocomm.train"), *arguments]
    return run.start(name, *command, environment=variables)


def rounds_of(run: Supervised, name: str) -> list[Round]:
    """That list the site, as the leader knows them."""
    return [one for one in run.sites["a"].rounds() if name in [listed.site for listed in one.members]]


def checkpoints(folder: Path, name: str) -> dict[int, dict[str, Any]]:
    return complete_checkpoints(folder / f"disk-{name}" / "run" / "checkpoints")


@pytest.mark.slow  # the test below kills a driver too, which comes back and leaves
def test_driver_is_killed_comes_back_and_leaves(tmp_path: Path) -> None:
    """Sites of one rank and of two, which share their optimizer and weights (ZeRO 3)."""
    with supervised(tmp_path, "ab", together=True) as run:
        leader, second = start(run, "a", ZERO_3), start(run, "b", ZERO_3, ranks=2)
        run.until(lambda: bool(rounds_of(run, "b")) and bool(checkpoints(tmp_path, "b")), "b counts and has saved", 200)

        second.kill()
        run.until(lambda: run.sites["a"].state().sites["b"].standing is Standing.AWAY, "b is away")
        before = len(rounds_of(run, "b"))
        counted = rounds_of(run, "b")
        listed = [one for entry in counted for one in entry.members]
        second = start(run, "b", ZERO_3, ranks=2)
        run.until(lambda: len(rounds_of(run, "b")) >= before + 2, "b counts again", 200)
        first, again = entries(tmp_path / "disk-b", "start")
        assert (first["step"], first["consumed"]) == (0, 0)
        assert again["step"] > max(one.step for one in listed)  # where the run is by now
        # It reads on after the last batch that counted in every fragment, in an order of its own.
        taken = [0] * len(run.sites["a"].state().versions)
        for entry in counted:
            taken[entry.fragment] = max(one.taken for one in entry.members if one.site == "b")
        assert again["consumed"] * SEQUENCE_LENGTH == min(taken)

        second.send_signal(signal.SIGTERM)
        assert run.ended("b", 120) == 0, run.sites["b"].text()
        assert run.sites["a"].state().sites["b"].standing is Standing.LEFT
        leader.send_signal(signal.SIGTERM)
        assert run.ended("a", 120) == 0, run.sites["a"].text()
        assert not run.sites["a"].state().ended  # it goes on where it is started again
        # The leader's run folder has the telemetry of both, the other one its own.
        said = {name: told(run.sites[name].folder) for name in "ab"}
        assert set(said["a"]) == {("a", 0), ("b", 0), ("b", 1)}
        assert set(said["b"]) == {("b", 0), ("b", 1)}
        assert all(said["a"].values())
    assert not any("other bits" in site.text() for site in run.sites.values())
    for name in "ab":
        seen = list(losses(tmp_path / f"disk-{name}").values())
        assert statistics.mean(seen[-10:]) < 0.9 * statistics.mean(seen[:10])
    assert max(checkpoints(tmp_path, "a")) == max(losses(tmp_path / "disk-a"))  # the last thing that a did


def told(run_dir: Path) -> dict[tuple[str, int], bool]:
    """Who has reported there, and whether it has told steps."""
    with contextlib.closing(RunStore(run_dir)) as store:
        return {(one.report.site, one.report.rank): "step" in one.report.training for one in store.latest()}


def test_driver_reads_what_the_leader_deals(tmp_path: Path) -> None:
    """With ZeRO 3: a site of two ranks dies and reads on where it counts; sites evaluate the same sequences, and count
    by the tokens of their own batches."""
    rules = RulesFile(catalog=str(tmp_path / "web"), stores={"disk": Store(url=str(tmp_path))})
    for number in range(12):
        text = tmp_path / f"{number}.txt"
        text.write_text(f"Text of number {number}, which is read once. " * 200)
        add_files(rules, [text], tokenizer="byte", labels=(), store="disk")
    settings = (ZERO_3, "data.source=catalog", f"data.paths=['{rules.catalog}']", "data.held_out_fraction=0.1")
    large = (*settings, "training.micro_batch_size=3", "training.gradient_accumulation_steps=2")
    with supervised(tmp_path, "ab", together=True) as run:
        run.sites["a"].data = DealtSet(set=rules.catalog, sequence_length=SEQUENCE_LENGTH, held_out_every=10)
        leader, second = start(run, "a", *settings), start(run, "b", *large, ranks=2)
        run.until(lambda: run.sites["a"].state().position("b") > 0, "b counts", 200)
        second.kill()
        run.until(lambda: run.sites["a"].state().sites["b"].standing is Standing.AWAY, "b is away")
        position = run.sites["a"].state().position("b")
        second = start(run, "b", *large, ranks=2)
        run.until(lambda: run.sites["a"].state().position("b") > position, "b counts again", 200)
        first, again = entries(tmp_path / "disk-b", "start")
        assert first["consumed"] == 0
        assert again["consumed"] == position
        assert again["held_out_sequences"] == entries(tmp_path / "disk-a", "start")[0]["held_out_sequences"] > 0
        for name, process in (("b", second), ("a", leader)):
            process.send_signal(signal.SIGTERM)
            assert run.ended(name, 120) == 0, run.sites["a"].text() + run.sites["b"].text()
        state = run.sites["a"].state()
        assert all(one.standing is Standing.LEFT for one in state.sites.values())
        weights: set[int] = set()
        for entry in run.sites["a"].rounds():
            for one in entry.members:
                tokens = (2 if one.site == "a" else 2 * 3 * 2) * SEQUENCE_LENGTH
                assert one.taken % tokens == 0
                # The leader lets no site count for many times what another one has.
                assert one.weight % tokens == 0 or one.weight in {MOST_TIMES * weight for weight in weights}
                weights.add(one.weight)
        assert {one.shards.partition(":")[0] for one in state.deals.values()} <= {str(part) for part in range(12)}


def test_checkpoint_of_fixed_sites_begins_an_elastic_run_and_the_other_way(tmp_path: Path) -> None:
    """Per-step training, then a site of an elastic run, then two fixed sites, with local steps and without."""
    common = ["distributed.backend=geocomm", "model.preset=tiny", "checkpoint.at_end=true"]
    require_success(run_ranks(tmp_path, [*common, "training.steps=6"]))
    copy_checkpoint(tmp_path, tmp_path / "disk-a", 6)
    with supervised(tmp_path, "a") as run:
        start(run, "a", "export.format=hf", steps=40)
        assert run.ended("a", 200) == 0, run.sites["a"].text()
        exported = read_record(tmp_path / "disk-a" / "run" / "export")
        assert exported is not None
        assert exported.source.step == 40
        [begun] = entries(tmp_path / "disk-a", "start")
        assert (begun["step"], begun["resumed"]) == (6, True)
        assert min(one.step for entry in run.sites["a"].rounds() for one in entry.members) > 6
        with contextlib.closing(RunStore(run.sites["a"].folder)) as store:
            [last] = store.latest()
        assert last.report.training["held_out_loss"] == pytest.approx(
            entries(tmp_path / "disk-a", "eval")[-1]["loss"], abs=1e-4
        )
        assert 0 < (last.report.disk_free_bytes or 0) < (last.report.disk_size_bytes or 0)
    assert set(losses(tmp_path / "disk-a")) == set(range(7, 41))

    for folder, mode in (("again", LOCAL), ("per-step", ())):
        copy_checkpoint(tmp_path / "disk-a", tmp_path / folder, 40)
        require_success(run_ranks(tmp_path / folder, [*common, *mode, "training.steps=44"]))
        ended = losses(tmp_path / folder)
        assert set(ended) == set(range(41, 45))
        first, before, after = (losses(tmp_path)[1], losses(tmp_path / "disk-a")[7], statistics.mean(ended.values()))
        assert after < before < first


def test_folder_of_another_site_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their agents are not reached before that."""
    monkeypatch.setenv("GEOCOMM_AGENT", str(tmp_path / "agent.sock"))
    (tmp_path / "run").mkdir()
    assert folder_mark(RunFolder(tmp_path / "run").elastic_site, "frankfurt") == ("frankfurt", False)
    ended = run_ranks(tmp_path, [*LOCAL, "distributed.backend=geocomm", "model.preset=tiny"], sites=["virginia"] * 2)
    require_refusal(ended, "frankfurt", "virginia", str(tmp_path / "run"))

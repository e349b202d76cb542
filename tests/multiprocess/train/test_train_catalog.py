"""Runs of the driver that read a catalog: with a newer version, with labels, with other sites, with unequal batches."""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from geocomm.data.additions import add_files
from geocomm.data.catalog import Catalog, read_rules
from geocomm.data.dealt_version import ReadVersion, sequences_of
from geocomm.data.fixed_deals import ReadSoFar
from geocomm.train.runs.run_folder import complete_checkpoints
from support.train_ranks import entries, losses, require_refusal, require_success, run_ranks

# One worker: there the ranks are forked from one process, which takes seconds to get ready.
pytestmark = pytest.mark.xdist_group("training")

RULES = """
catalog = "{0}/web"
[sites]
site0 = "eu"
site1 = "us"
site2 = "us"
[stores.disk]
url = "{0}"
[labels.eu]
readers = ["eu"]
"""


class Corpus:
    """A catalog of small texts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        rules = folder / "web.toml"
        rules.write_text(RULES.format(folder))
        self._rules = read_rules(rules)

    def add(self, name: str, *labels: str) -> None:
        text = self.folder / f"{name}.txt"
        text.write_text(f"Text of {name}, which is read once. " * 200)
        add_files(self._rules, [text], tokenizer="byte", labels=labels, store="disk")

    def settings(self, version: int, steps: int) -> list[str]:
        catalog = ["data.source=catalog", f"data.paths=['{self.folder}/web@{version}']"]
        return [*catalog, f"training.steps={steps}", "checkpoint.every_steps=2", "evaluation.at_end=false"]

    def read_so_far(self, step: int) -> tuple[int, ReadSoFar]:
        """By a checkpoint: sequences consumed, and what is left; their sum is what was dealt."""
        manifest = complete_checkpoints(self.folder / "run" / "checkpoints")[step]
        so_far = ReadSoFar.of_plain(manifest["data_state"])
        newest = ReadVersion.read(Catalog(f"{self.folder}/web"), max(so_far.versions))
        sequences = sequences_of(newest.shards, 64, 50)
        dealt = int((np.frombuffer(zlib.decompress(so_far.dealt), "<i4") * sequences).sum())
        left = sum(piece.sequences for line in (*so_far.lines.values(), so_far.rests) for piece in line)
        assert manifest["consumed"] == dealt - left
        return manifest["consumed"], so_far


def test_run_reads_a_catalog_and_goes_on_with_a_newer_version(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add("first")
    require_success(run_ranks(tmp_path, corpus.settings(1, 2)))
    corpus.add("second")
    require_success(run_ranks(tmp_path, corpus.settings(2, 4)))
    assert [one["consumed"] for one in entries(tmp_path, "start")] == [0, 2 * 2 * 2]
    assert corpus.read_so_far(2)[1].versions.keys() == {1}
    assert corpus.read_so_far(4)[1].versions.keys() == {1, 2}
    require_refusal(run_ranks(tmp_path, corpus.settings(1, 6)), "the run has read version 2")


def test_sites_read_what_their_labels_let_them_and_others_read_what_is_left(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add("for all")
    corpus.add("personal", "eu")
    require_success(run_ranks(tmp_path, corpus.settings(2, 4), sites=["site0", "site0", "site1"]))
    consumed, so_far = corpus.read_so_far(4)
    assert consumed == 4 * 3 * 2
    assert so_far.lines.keys() == {"site0", "site1"}
    evaluates = "evaluation.at_end=true"  # on what all sites may read
    require_success(run_ranks(tmp_path, [*corpus.settings(2, 8), evaluates], sites=["site1", "site0", "site2"]))
    consumed, so_far = corpus.read_so_far(8)
    assert consumed == 4 * 3 * 2 + 4 * 3 * 2
    assert so_far.lines.keys() == {"site0", "site1", "site2"}
    assert entries(tmp_path, "eval")[-1]["sequences"] > 0
    require_success(run_ranks(tmp_path, corpus.settings(2, 10), sites=["site1"]))
    assert corpus.read_so_far(10)[0] == 8 * 3 * 2 + 2 * 2
    large = "training.gradient_accumulation_steps=40"
    require_refusal(
        run_ranks(tmp_path, [*corpus.settings(2, 12), large], sites=["site1", "site0", "site1"]),
        "sequences of 64 tokens that site site1 may read, and a step takes 160 there",
    )


@pytest.mark.slow  # test_fixed_sites.py has that for a program of a user, and the first test a run that goes on
def test_run_that_goes_on_reads_what_it_would_have_read(tmp_path: Path) -> None:
    """Sites that do not change: the losses are those of a run without a break."""
    sites = ["site0", "site1", "site1"]
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
        corpus = Corpus(tmp_path / name)
        corpus.add("for all")
        corpus.add("personal", "eu")
        for steps in (8,) if name == "whole" else (4, 8):
            require_success(run_ranks(tmp_path / name, corpus.settings(2, steps), sites=sites))
    whole, parts = losses(tmp_path / "whole"), losses(tmp_path / "parts")
    assert whole == parts
    assert len(whole) == 8


def test_sites_with_local_steps_may_have_batches_of_their_own(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path)
    corpus.add("for all")
    local = ["distributed.backend=geocomm", "sync.mode=local", "sync.every=2", "sync.deterministic=true"]
    local += ["schedule.warmup_steps=2", *corpus.settings(1, 12)]
    batches = {0: ["training.micro_batch_size=4"], 1: ["training.gradient_accumulation_steps=3"]}
    require_refusal(run_ranks(tmp_path, local, per_rank=batches), "set sync.joint_steps=0", "site0: 4, site1: 6")
    local.append("sync.joint_steps=0")
    require_success(run_ranks(tmp_path, local, per_rank=batches))
    assert corpus.read_so_far(12)[0] == 12 * (4 + 6)
    sites = [entry["sites"] for entry in entries(tmp_path, "sites")]
    for site, sequences in (("site0", 4), ("site1", 6)):
        found = [entry[site] for entry in sites if site in entry]
        assert found
        assert all(one["tokens"] == one["steps"] * sequences * 64 for one in found)
    require_refusal(
        run_ranks(tmp_path, local, per_rank={0: ["training.micro_batch_size=4"]}, sites=["site0", "site0", "site1"]),
        "training.micro_batch_size differs between ranks: 4 on rank 0 (site site0), 2 on rank 1 (site site0)",
    )

"""Runs of the driver that read a catalog: two ranks share it, and go on with a newer version."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deepspeed")
pytest.importorskip("transformers")

from geocomm.data.additions import add_files
from geocomm.data.catalog import read_rules
from geocomm.train.checkpoint.checkpoint_folder import complete_checkpoints
from support.train_ranks import entries, require_refusal, require_success, run_ranks

# One worker: there the ranks are forked from one process, which takes seconds to get ready.
pytestmark = pytest.mark.xdist_group("training")

RULES = """
catalog = "{0}/web"
[sites]
site0 = "eu"
site1 = "us"
[stores.disk]
url = "{0}"
[labels.eu]
readers = ["eu"]
"""


def test_run_reads_a_catalog_and_goes_on_with_a_newer_version(tmp_path: Path) -> None:
    rules_path = tmp_path / "web.toml"
    rules_path.write_text(RULES.format(tmp_path))
    rules = read_rules(rules_path)

    def add(name: str, *labels: str) -> None:
        text = tmp_path / f"{name}.txt"
        text.write_text(f"Text of {name}, which is read once. " * 200)
        add_files(rules, [text], tokenizer="byte", labels=labels, store="disk")

    def settings(version: int, steps: int) -> list[str]:
        catalog = ["data.source=catalog", f"data.paths=['{tmp_path}/web@{version}']"]
        return [*catalog, f"training.steps={steps}", "checkpoint.every_steps=2", "evaluation.at_end=false"]

    add("first")
    require_success(run_ranks(tmp_path, settings(1, 2)))
    add("second")
    require_success(run_ranks(tmp_path, settings(2, 4)))
    assert [one["consumed"] for one in entries(tmp_path, "start")] == [0, 2 * 2 * 2]
    manifests = complete_checkpoints(tmp_path / "run" / "checkpoints")
    assert [one[0] for one in manifests[2]["readings"]] == [1]
    assert [(one[0], one[2]) for one in manifests[4]["readings"]] == [(1, 0), (2, 8)]
    require_refusal(run_ranks(tmp_path, settings(1, 6)), "the run has read version 2")
    add("third", "eu")
    require_refusal(run_ranks(tmp_path, settings(3, 6)), "what the site may read")

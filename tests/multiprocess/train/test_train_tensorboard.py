"""What a run between two sites tells TensorBoard."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("deepspeed")

from support.train_ranks import require_success, run_ranks

# One worker: there the ranks are forked from one process, which takes seconds to get ready.
pytestmark = pytest.mark.xdist_group("training")


def test_tensorboard_has_links_configuration_and_verdict(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    settings = ["distributed.backend=geocomm", "training.steps=4", "logging.trackers=[tensorboard]"]
    require_success(run_ranks(tmp_path, [*settings, "logging.every_steps=2"], sites=("a", "b")))
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    sent = events.Scalars("link/b/bytes_sent")
    assert [each.step for each in sent] == [2, 4]
    assert 0 < sent[0].value < sent[1].value
    assert [each.step for each in events.Scalars("link/b/sent_bps")] == [4]
    assert events.Scalars("link/b/sent_bps")[0].value > 0
    assert events.Scalars("link/b/resumes")[-1].value == 0
    (verdict,) = events.Tensors("verdict/text_summary")
    text = verdict.tensor_proto.string_val[0].decode()
    assert text.startswith("- complete after 4 steps\n")
    assert "MB sent by all sites together" in text
    assert "bound: of " in text
    hyper = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert b"optimizer.learning_rate" in hyper

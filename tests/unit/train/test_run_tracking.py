"""What goes to TensorBoard: numbers, links by site, and the verdict; and where that fails."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.train.runs import run_tracking
from geocomm.train.runs.run_folder import RunFolder
from geocomm.train.runs.run_tracking import LinkScalars, RunTracking, RunVerdict, require_tensorboard

_FIELDS = {"training.steps": 3, "optimizer.learning_rate": 1e-3, "data.paths": ["a"], "sync.codec": None}


def test_tensorboard_keeps_numbers_text_and_configuration(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracking = RunTracking(RunFolder(tmp_path), _FIELDS, total_steps=3, every=10)
    tracking.entry("step", _step(1, 0.5, None) | {"loss": 3.5})
    tracking.entry("step", _step(2, 0.5, None) | {"loss": 2.5, "grad_norm": float("nan")})
    tracking.entry("sites", {"step": 1, "tokens_per_second": 9.0, "sites": {}})  # of an earlier step
    tracking.entry("end", {"step": 3, "complete": True})
    tracking.close()
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(each.step, each.value) for each in events.Scalars("step/loss")] == [(1, 3.5), (2, 2.5)]
    assert [(each.step, each.value) for each in events.Scalars("sites/tokens_per_second")] == [(1, 9.0)]
    (text,) = events.Tensors("verdict/text_summary")
    assert text.tensor_proto.string_val[0].startswith(b"- complete after 3 steps")
    plugin = events.SummaryMetadata("_hparams_/session_start_info").plugin_data
    assert b"training.steps" in plugin.content
    assert [each for each in (tmp_path / "tensorboard").iterdir() if each.is_dir()] == []  # no second run


def test_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_tracking, "find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"logging\.trackers: tensorboard needs its package: pip install"):
        require_tensorboard()


def test_files_that_cannot_begin_are_bad_input(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").touch()  # in the way of its folder
    with pytest.raises(BadInput, match=r"logging\.trackers: .*tensorboard cannot be begun"):
        RunTracking(RunFolder(tmp_path), {}, total_steps=3, every=10)


def test_files_that_fail_are_left_out_with_one_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    tracking = RunTracking(RunFolder(tmp_path), {}, total_steps=3, every=10)
    with Path("/dev/full").open("wb") as full:  # takes the place of its file
        for descriptor in Path("/proc/self/fd").iterdir():
            if descriptor.is_symlink() and str(tmp_path) in os.readlink(descriptor):
                os.dup2(full.fileno(), int(descriptor.name))
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        for step in (1, 2):
            tracking.entry("step", _step(step, 0.5, None))
        tracking.close()
    assert not warned  # a file that is left open fails again once it is collected, with a traceback
    (line,) = capfd.readouterr().err.splitlines()
    assert line == (
        "geocomm train: TensorBoard's files cannot be written, and are left out from here on: [Errno 28] No space left "
        "on device"
    )


def _peer(site: str | None, sent: int, rtt_us: int = 1000) -> dict[str, Any]:
    counted = dict.fromkeys(("bytes_received", "retransmitted_segments", "resumes", "outages"), 1)
    return {"site": site, "bytes_sent": sent, "rtt_us": rtt_us} | counted


def test_links_are_summed_by_site_and_rates_are_between_readings() -> None:
    now, peers = [0.0], [_peer("b", 100, 3000), _peer("b", 200), _peer("c", 5), _peer(None, 7)]
    links = LinkScalars(lambda: peers, lambda: now[0])
    first = links.read()
    assert first["link/b/bytes_sent"] == 300
    assert first["link/b/resumes"] == 2
    assert first["link/b/rtt_seconds"] == pytest.approx(0.003)
    assert first["link/c/bytes_sent"] == 5
    assert not [name for name in first if "None" in name or name.endswith("_bps")]
    now[0], peers[0] = 2.0, _peer("b", 1100)
    second = links.read()
    assert second["link/b/sent_bps"] == 1000 * 8 / 2
    assert second["link/c/sent_bps"] == 0
    now[0], peers[0] = 3.0, _peer("b", 0)  # a new process group counts from nothing
    assert links.read()["link/b/sent_bps"] == 0


def _step(step: int, seconds: float, exposed: dict[str, float] | None, wire: int | None = 1_000_000) -> dict[str, Any]:
    """exposed: seconds by site; None: the backend counts nothing."""
    sites = {
        site: {"step_seconds": seconds, "exposed_seconds": None if exposed is None else exposed[site]}
        for site in (exposed or {"a": 0, "b": 0})
    }
    mean = None if exposed is None else sum(exposed.values()) / len(exposed)
    return {
        "step": step,
        "loss": 4.0 / step,
        "step_seconds": seconds,
        "exposed_seconds": mean,
        "wire_bytes_sent": wire,
        "sites": sites,
    }


def _verdict(*entries: dict[str, Any], kind: str = "step") -> RunVerdict:
    verdict = RunVerdict(10)
    for entry in entries:
        verdict.add(kind, entry)
    return verdict


def test_run_that_waits_for_the_wan_is_wan_bound() -> None:
    # The first step, which connects, counts for the median alone.
    steps = [_step(1, 9.0, {"a": 0.0, "b": 0.0})] + [_step(n, 1.0, {"a": 0.9, "b": 0.5}) for n in range(2, 5)]
    verdict = _verdict(*steps)
    verdict.add("eval", {"step": 4, "loss": 1.25})
    assert verdict.text(4, complete=False).splitlines() == [
        "- stopped after step 4 of 10",
        "- loss: 4.0000 at step 1, 1.0000 at step 4; held-out 1.2500",
        "- step: 1 s, the median of 4",
        "- WAN: 4.0 MB sent by all sites together; 70% of the step time was exposed to it",
        "- slowest site: b, 0.5 s a step without its waiting; fastest: a, 0.1 s",
        "- WAN-bound: of 1 s a step, 0.7 s went by in waiting for other sites",
    ]


def test_run_that_computes_is_compute_bound() -> None:
    text = _verdict(*[_step(n, 2.0, {"a": 0.25, "b": 0.25}) for n in range(1, 11)]).text(10, complete=True)
    assert text.startswith("- complete after 10 steps\n")
    assert text.endswith("- compute-bound: of 2 s a step, a WAN without any delay would save 0.25 s")


def test_backend_without_counters_gives_no_guess() -> None:
    text = _verdict(_step(1, 1.0, None, None), _step(2, 1.0, None, None)).text(2, complete=True)
    assert text.endswith("the WAN's part is not known: the backend does not count it")
    assert "bound:" not in text


def test_with_local_steps_the_numbers_are_of_one_site_and_reports_of_all() -> None:
    verdict = _verdict(*[_step(n, 1.0, {"a": 0.1}) for n in (1, 2)])
    row = {"steps": 4, "step_seconds": 1.0}
    sites = {"a": row | {"exposed_seconds": 0.4}, "b": row | {"step_seconds": 3.0, "exposed_seconds": 0.0}}
    verdict.add("sites", {"step": 2, "sites": sites})
    text = verdict.text(2, complete=True)
    assert "2.0 MB sent by site a" in text
    assert "slowest site: b, 3 s a step without its waiting; fastest: a, 0.9 s" in text


def test_start_that_trained_nothing_says_so() -> None:
    assert RunVerdict(10).text(10, complete=True) == "- complete after 10 steps"

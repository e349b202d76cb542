"""The demo's figures out of the files of its runs, and what it draws of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from geocomm.lab.demo.demo_run import (
    DEFAULT_STEPS,
    VARIANTS,
    DemoError,
    DemoProgress,
    DemoResult,
    _update,
    bytes_at,
    read_entries,
    read_outcome,
    train_config,
)
from geocomm.lab.demo.demo_table import DemoView, draw, lateness_note, loopback_note, summary_table, write_summary
from geocomm.lab.emulator.emulated_links import EmulatedLink
from geocomm.lab.emulator.emulated_wan import WanReport
from geocomm.train.loop.train_config import RunConfig
from support.command_tree import APP

STEPS = 5
LINK = EmulatedLink(rate_bps=1e6, delay_s=0.05)
WAN = [{"time": float(second), "bytes": 1000 * second} for second in range(0, 200, 2)]


def metrics(**changes: Any) -> list[dict[str, Any]]:
    """The log of a run whose step k ends at second 100 + 10 k."""
    entries: list[dict[str, Any]] = [
        {
            "kind": "start",
            "time": 99.0,
            "parameters": 7,
            "sites": {"site0": 1, "site1": 1},
            "config": {"training": {"zero_stage": 1}},
        }
    ]
    for step in range(1, STEPS + 1):
        written = 100.0 + 10 * min(step + 1, STEPS)
        seconds = 30.0 if step == 1 else 10.0
        entries.append(
            {
                "kind": "step",
                "time": written,
                "step": step,
                "loss": 6.0 - step,
                "step_seconds": seconds,
                "tokens": 50,
                "sites": {"site0": {"ranks": 1}, "site1": {"ranks": 1}},
                "tokens_per_second": 50 / seconds,
            }
        )
    entries.append({"kind": "eval", "time": 151.0, "loss": 1.5})
    entries.append({"kind": "end", "time": 152.0, "complete": True})
    return [entry | changes.get(entry["kind"], {}) for entry in entries]


def report(*, reliable: bool = True) -> WanReport:
    late, worst = (0, 0.001) if reliable else (3, 0.008)
    return WanReport(("site0", "site1"), (0, 0), 1.0, worst, late, reliable, 0, ())


def outcome(number: int, *, reliable: bool = True) -> DemoResult:
    return read_outcome(VARIANTS[number], metrics(), WAN, STEPS, LINK, report(reliable=reliable))


def outcome_over_loopback(number: int) -> DemoResult:
    return read_outcome(VARIANTS[number], metrics(), WAN, STEPS, LINK, None)


def text_of(outcomes: list[DemoResult], width: int = 120) -> str:
    out = io.StringIO()
    Console(file=out, width=width).print(summary_table(outcomes))
    return out.getvalue()


def test_outcome_figures_come_from_the_logs() -> None:
    figures = outcome(0)
    assert figures.losses == (5.0, 4.0, 3.0, 2.0, 1.0)
    assert figures.median_step_s == 10.0
    assert figures.tokens_per_s == 5.0
    assert figures.held_out_loss == 1.5
    assert figures.wan_bytes_per_step == pytest.approx(10_000)
    assert figures.sizes == {"parameters": 7, "zero_stage": 1}


def test_tokens_are_those_of_all_sites_where_a_log_has_those_of_one() -> None:
    of_one_site = metrics(step={"tokens": 25, "sites": {"site0": {"ranks": 1}}})
    assert read_outcome(VARIANTS[-1], of_one_site, WAN, STEPS, LINK, report()).tokens_per_s == outcome(0).tokens_per_s
    progress = DemoProgress()
    _update(progress, of_one_site)
    assert progress.tokens_per_s == outcome(0).tokens_per_s


@pytest.mark.parametrize(
    "broken",
    [
        metrics()[:-1],
        metrics()[:3],
        metrics(step={"loss": None}),
        metrics(eval={"loss": float("nan")}),
        metrics(end={"complete": False}),
        [entry for entry in metrics() if entry["kind"] != "start"],
        [],
    ],
)
def test_outcome_of_a_run_that_is_not_whole_raises(broken: list[dict[str, Any]]) -> None:
    with pytest.raises(DemoError):
        read_outcome(VARIANTS[0], broken, WAN, STEPS, LINK, report())


def test_outcome_without_counters_raises() -> None:
    with pytest.raises(DemoError):
        read_outcome(VARIANTS[0], metrics(), [], STEPS, LINK, report())


@pytest.mark.parametrize(("when", "expected"), [(-5.0, 0), (3.0, 3000), (4.0, 4000), (999.0, 198_000)])
def test_bytes_at_interpolates_and_holds_the_ends(when: float, expected: float) -> None:
    assert bytes_at(WAN, when) == pytest.approx(expected)


def test_entries_of_a_growing_file_are_its_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_entries(path) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_entries(path) == [{"a": 1}, {"a": 2}]


def test_variants_train_alike_but_for_the_backend(tmp_path: Path) -> None:
    configs = [RunConfig.model_validate(train_config(variant, tmp_path, STEPS)) for variant in VARIANTS]
    assert [
        (each.distributed.backend, each.distributed.codec, each.sync.mode, each.sync.codec) for each in configs
    ] == [
        ("gloo", None, "gradients", None),
        ("geocomm", "none", "gradients", None),
        ("geocomm", "int8", "gradients", None),
        ("geocomm", "none", "gradients", "balanced"),
        ("geocomm", "none", "local", None),
    ]
    assert len({each.model_dump_json(exclude={"distributed", "sync"}) for each in configs}) == 1
    # Most of even a short run is compressed.
    assert configs[3].sync.warmup_steps < DEFAULT_STEPS / 4
    # Every weight crosses at least twice on the way.
    assert configs[4].joint_steps() + 2 * configs[4].sync.every < DEFAULT_STEPS


def test_progress_and_table_reckon_the_time_of_a_step_alike() -> None:
    progress = DemoProgress()
    _update(progress, metrics())
    figures = outcome(0)
    assert (progress.step_s, progress.tokens_per_s) == (figures.median_step_s, figures.tokens_per_s)
    _update(progress, [entry for entry in metrics() if entry["kind"] in ("start", "step")][:2])
    assert progress.step_s == outcome(0).step_s[0]


def test_table_and_summary_hold_every_run(tmp_path: Path) -> None:
    outcomes = [outcome(number) for number in range(len(VARIANTS))]
    text = text_of(outcomes)
    assert all(variant.name in text for variant in VARIANTS)
    write_summary(outcomes, "a link", tmp_path / "summary.json")
    runs = json.loads((tmp_path / "summary.json").read_text())["runs"]
    assert [run["losses"][-1] for run in runs] == [1.0] * len(VARIANTS)


def test_lateness_is_noted_with_its_count_and_worst() -> None:
    assert lateness_note([outcome(0), outcome(1)]) is None
    note = lateness_note([outcome(0), outcome(1, reliable=False)])
    assert note is not None
    assert "3 of" in note
    assert "8 ms" in note


@pytest.mark.parametrize("reliable", [True, False])
def test_picture_is_a_png_of_the_conditions(tmp_path: Path, reliable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    titles: list[str] = []
    original = Figure.suptitle
    monkeypatch.setattr(
        Figure, "suptitle", lambda figure, text, **style: titles.append(text) or original(figure, text, **style)
    )
    draw([outcome(number, reliable=reliable) for number in range(len(VARIANTS))], "a link", tmp_path / "demo.png")
    assert (tmp_path / "demo.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"
    assert "a link" in titles[0]
    assert ("8 ms" in titles[0]) != reliable


@pytest.mark.parametrize(
    ("made", "total", "caption"),
    [(outcome, "Gloo: 70 s in all", "30.0 s"), (outcome_over_loopback, "Gloo", "not a WAN's")],
)
def test_picture_shows_its_texts_whole_and_says_what_the_totals_hold(
    made: Callable[[int], DemoResult], total: str, caption: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from matplotlib import pyplot
    from matplotlib.figure import Figure
    from matplotlib.text import Text

    figures: list[Figure] = []
    monkeypatch.setattr(pyplot, "close", figures.append)
    draw([made(number) for number in range(len(VARIANTS))], "a link", tmp_path / "demo.png")
    (figure,) = figures
    figure.canvas.draw()
    texts = [text for text in figure.findobj(Text) if text.get_visible() and text.get_text()]
    inside = figure.bbox.padded(1)
    for text in texts:
        extent = text.get_window_extent()
        assert inside.contains(extent.x0, extent.y0), text
        assert inside.contains(extent.x1, extent.y1), text
    shown = [text.get_text() for text in texts]
    assert total in shown
    assert any(caption in text for text in shown)


def test_view_without_a_terminal_says_changes_in_lines() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=False)
    with DemoView(VARIANTS, STEPS, "a link", console) as view:
        for state, step in (("starting", 0), ("starting", 0), ("training", 1), ("training", 2), ("done", STEPS)):
            view.update(VARIANTS[0], DemoProgress(state, step, loss=2.5, step_s=0.5))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 4
    assert "loss 2.5000" in lines[-1]


def test_view_on_a_terminal_shows_all_variants() -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=True)
    with DemoView(VARIANTS, STEPS, "a link", console) as view:
        view.update(VARIANTS[1], DemoProgress("training", 2, 2.5, 0.5, 100.0, 10**7, 3.0))
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert all(variant.name in text for variant in VARIANTS)
    assert "2/5" in text


@pytest.mark.parametrize("arguments", [["--rtt", "long"], ["--steps", "1"], ["--out", "."]])
def test_command_line_bad_value_exits_2(arguments: list[str]) -> None:
    result = CliRunner().invoke(APP, ["demo", *arguments])
    assert result.exit_code == 2


@pytest.mark.parametrize("made", [outcome, outcome_over_loopback])
def test_table_of_80_columns_cuts_no_heading_and_no_name(made: Callable[[int], DemoResult]) -> None:
    text = text_of([made(number) for number in range(len(VARIANTS))], 80)
    assert "…" not in text
    assert all(variant.name in text for variant in VARIANTS)


@pytest.mark.parametrize(("number", "exchanges"), [(0, 1), (len(VARIANTS) - 1, 0.25)])
def test_line_takes_half_of_the_bytes_at_its_rate_and_a_delay_for_each_exchange(number: int, exchanges: float) -> None:
    # 10 kB a step: 5 kB, or 40 kbit, each way at 1 Mbit/s.
    assert outcome_over_loopback(number).line_s_per_step == pytest.approx(0.04 + exchanges * 0.05)


def test_table_over_loopback_tells_no_speed_but_what_the_line_takes() -> None:
    over_wan = text_of([outcome(number) for number in range(len(VARIANTS))])
    over_loopback = text_of([outcome_over_loopback(number) for number in range(len(VARIANTS))])
    for word in ("speed", "tokens", "WAN MB", "1.0 x"):
        assert word in over_wan
        assert word not in over_loopback
    assert "not a WAN's" in over_loopback
    assert "0.09" in over_loopback  # of Gloo
    assert "0.05" in over_loopback  # of local steps
    assert "0.09" not in over_wan
    assert "1 Mbit/s" in loopback_note(LINK)
    assert "100 ms" in loopback_note(LINK)


def test_summary_says_what_the_sites_had_between_them(tmp_path: Path) -> None:
    for made, over, late in ((outcome, "emulated WAN", 0), (outcome_over_loopback, "loopback", None)):
        write_summary([made(0)], "a link", tmp_path / "summary.json")
        (run,) = json.loads((tmp_path / "summary.json").read_text())["runs"]
        assert (run["over"], run["late_packets"]) == (over, late)
        assert run["line_seconds_per_step_at_least"] == pytest.approx(0.09)


def test_runs_over_loopback_were_not_late() -> None:
    assert lateness_note([outcome_over_loopback(0)]) is None

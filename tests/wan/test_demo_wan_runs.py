"""The demo over a real emulated link: a run that fails, and the whole of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from geocomm.lab.demo.demo_run import DemoError, DemoProgress, Variant, run_variant
from geocomm.lab.demo.weights_run import FOLLOWERS, SITE_NAMES, run_weights_demo
from geocomm.lab.emulator.emulated_keys import site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink
from support.wan_support import geocomm, require_wan


@pytest.fixture(autouse=True)
def _wan() -> None:
    require_wan()


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_run_that_fails_raises_with_the_end_of_its_log(tmp_path: Path) -> None:
    seen: list[DemoProgress] = []
    impossible = Variant("impossible", "impossible", "geocomm", "no-such-codec")
    with pytest.raises(DemoError, match="no-such-codec"):
        run_variant(impossible, tmp_path / "run", EmulatedLink(rate_bps=200e6), 4, seen.append)
    assert seen
    assert seen[-1].state != "done"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_command_ends_in_table_and_picture(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = geocomm("demo", "--steps", "4", "--rate", "1gbit", "--rtt", "20ms", "--loss", "0%", "--out", str(out))
    stdout, stderr = command.communicate(timeout=580)
    assert command.returncode == 0, stderr
    assert "geocomm, int8" in stdout
    assert (out / "demo.png").stat().st_size > 10_000
    gloo, exact, int8, feedback, _ = json.loads((out / "summary.json").read_text())["runs"]
    assert len(gloo["losses"]) == 4
    assert exact["losses"] == pytest.approx(gloo["losses"], abs=1e-3)
    assert int8["losses"] == pytest.approx(gloo["losses"], abs=0.05)
    assert int8["wan_bytes_per_step"] < 0.6 * exact["wan_bytes_per_step"]
    assert feedback["losses"] == pytest.approx(gloo["losses"], abs=0.2)
    assert feedback["wan_bytes_per_step"] < 0.6 * int8["wan_bytes_per_step"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_elastic_demo_tells_what_the_others_lost(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    command = geocomm("demo", "--elastic", "--steps", "40", "--out", str(out))
    stdout, stderr = command.communicate(timeout=580)
    assert command.returncode == 0, stderr
    assert "bit for bit" in stdout
    assert (out / "demo.png").stat().st_size > 10_000
    figures = json.loads((out / "summary.json").read_text())
    assert set(figures["seen_seconds"]) == {"site0", "site1"}
    assert figures["others"]["rounds_without_killed"] > 0
    assert figures["others"]["rounds_void"] == 0
    assert min(figures["anchors_compared"].values()) > 3


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_demo_of_weights_sends_one_copy_over_each_line(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    out = tmp_path / "demo"
    command = geocomm("demo", "--weights", "--steps", "4", "--rtt", "20ms", "--out", str(out))
    stdout, stderr = command.communicate(timeout=580)
    assert command.returncode == 0, stderr
    assert "bit for bit" in stdout
    figures = json.loads((out / "summary.json").read_text())
    first, *later = figures["versions"]
    assert len(later) == 4
    assert all(one["bytes"] < 0.03 * one["whole_bytes"] for one in later)
    assert {*later[-1]["folder_s"]} == {*later[-1]["answer_s"]} == {*FOLLOWERS}
    sent = first["bytes"] + sum(one["bytes"] for one in later)
    lines = figures["line_bytes"]
    for line in ("site0 to site1", "site1 to site2"):
        assert sent < lines[line] < 1.5 * sent  # headers, and what was lost on the way
    assert lines["site0 to site2"] < 0.01 * sent


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_demo_of_weights_that_cannot_publish_says_so(tmp_path: Path) -> None:
    (tmp_path / "stream").touch()
    with site_keys(SITE_NAMES, None, secure=True, readers=FOLLOWERS) as keys:
        assert keys is not None
        with pytest.raises(DemoError, match=r"(?s)ended with status 1; the end of .*stream"):
            run_weights_demo(tmp_path, EmulatedLink(), 4, keys, print, over_loopback=False)

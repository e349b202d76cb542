"""docs/project/versions.md names the numbers of the code."""

from __future__ import annotations

import re
from pathlib import Path

from geocomm import __version__
from geocomm.elastic.journal import messages
from geocomm.group.membership import rank_record
from geocomm.metrics import report_sender
from geocomm.sync.gradients import feedback_state
from geocomm.weights.stream_version import WeightVersion
from geocomm.wire.greeting import Greeting

ROOT = Path(__file__).resolve().parents[2]


def constant(header: str, name: str) -> str:
    found = re.search(rf"\b{name} = (\d+);", (ROOT / "csrc" / header).read_text(encoding="utf-8"))
    assert found is not None
    return found[1]


def test_page_of_versions_names_the_numbers_of_the_code() -> None:
    page = (ROOT / "docs/project/versions.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| ([^|,]+), `([^`]+)` \|", page, re.MULTILINE))
    assert {
        "Python package": __version__,
        "rank protocol": str(rank_record.PROTOCOL_VERSION),
        "wire": constant("transport/wire/wire.h", "kWireVersion"),
        "codec frame": constant("codec/frames/frame.h", "kFrameVersion"),
        "delta": constant("codec/delta/delta.h", "kDeltaVersion"),
        "weight stream": str(WeightVersion.model_fields["geocomm_weights"].default),
        "hub": str(Greeting.VERSION),
        "elastic runs": str(messages.PROTOCOL_VERSION),
        "report": str(report_sender.VERSION),
        "hook state": str(feedback_state.VERSION),
    }.items() <= told.items()

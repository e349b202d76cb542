"""The stream of a connection: what arrives is what was sent; and strangers' bytes."""

from __future__ import annotations

import json
import random
import zlib
from collections import deque
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geocomm.observe.telemetry import report_stream
from geocomm.observe.telemetry.report import PackedReport
from geocomm.observe.telemetry.report_lines import BadReportError, read_line
from geocomm.observe.telemetry.report_stream import ReportPacker, ReportUnpacker
from support import reports

HEAD: dict[str, Any] = {"site": "a", "rank": 0, "process": "0123456789abcdef", "sequence": 0, "time": 1.0, "now_ns": 1}
NUMBERS = st.one_of(
    st.integers(),
    st.integers(0, 10**15).map(lambda number: number * 100_000),
    st.floats(),
    st.floats(-1e6, 1e6).map(lambda number: round(number, 4)),
    st.floats(-1, 1).map(lambda number: float(f"{number:.5g}")),
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=9),
    lambda some: st.lists(some, max_size=5) | st.dictionaries(st.text(max_size=5), some, max_size=5),
    max_leaves=20,
)


def of(number: int, **content: Any) -> PackedReport:
    return reports.packed({**HEAD, "sequence": number, "time": 1.0 + number, **content})


def texts(found: Iterable[PackedReport]) -> list[list[bytes]]:
    return [[line.text for line in report.lines] for report in found]


def through(*batches: list[PackedReport]) -> list[PackedReport]:
    packer, unpacker = ReportPacker(), ReportUnpacker()
    sent = b""
    for batch in batches:
        waiting = deque(batch)
        while waiting:
            sent += packer.pack(waiting)
    found: list[PackedReport] = []
    for i in range(0, len(sent), 1000):
        found += [report for packet in unpacker.take(sent[i : i + 1000]) for report in packet]
    return found


def taken(*packets: bytes) -> list[PackedReport]:
    """What comes of the contents of packets."""
    stream, unpacker = zlib.compressobj(), ReportUnpacker()
    found: list[PackedReport] = []
    for content in packets:
        made = stream.compress(content) + stream.flush(zlib.Z_SYNC_FLUSH)
        for some in unpacker.take(len(made).to_bytes(4, "little") + made):
            found += some
    return found


@given(VALUES)
def test_a_line_is_its_shape_with_its_numbers(value: object) -> None:
    for text in (json.dumps({"stats": {"a_ns": value}}), json.dumps({"stats": {"a": value}}, ensure_ascii=False)):
        try:
            line = read_line(text.encode())
        except (BadReportError, UnicodeEncodeError):
            continue  # half of a surrogate pair
        assert line.text == text.encode()


@given(st.lists(st.lists(NUMBERS, min_size=40, max_size=40), min_size=1, max_size=6))
def test_reports_arrive_as_they_were_sent(rows: list[list[float]]) -> None:
    sent = [of(number, stats={"peers": row, "x": "1.5 a-3%d"}) for number, row in enumerate(rows)]
    found = through(sent[:2], sent[2:])
    assert texts(found) == texts(sent)
    assert [report.head for report in found] == [report.head for report in sent]


def test_what_repeats_travels_once_and_moments_that_move_alike_as_one_difference() -> None:
    def operation(number: int) -> dict[str, Any]:
        begin = (10**7 + 12_345 * number) * 100_000
        return {"number": number, "issued_ns": begin, "began_ns": begin + 300_000, "ended_ns": begin + 900_000}

    packer = ReportPacker()
    sizes = [
        len(packer.pack(deque([of(number, stats={"kind": "x" * 99}, operations=[operation(number)])])))
        for number in range(9)
    ]
    assert sizes[0] > 150
    assert max(sizes[2:]) < 40


def test_the_oldest_lines_are_forgotten_at_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_stream, "_MEMORY_BYTES", 20_000)
    monkeypatch.setattr(report_stream, "_MOST_LINES", 20)
    draw = random.Random(1)
    sent = [of(number, stats={"x" * draw.randrange(1, 40): number}) for number in range(300)]
    assert texts(through(*([report] for report in sent))) == texts(sent)


BAD_EDITS = {
    "no value": b"0 a",
    "an empty value": b"0 a ",
    "no number": b"0 a x",
    "one value of two": b"0 aa 1",
    "no letter": b"0 ? 1",
    "beyond the line": b"0 //////a 1",
    "an unknown line": b"7 a 1",
    "a line before the first": b"-1 a 1",
    "no line": b"x",
    "more than 64 bits": b"0 a 9" + b"9" * 30,
    "more digits than Python reads": b"0 a " + b"9" * 5000,
}


@pytest.mark.parametrize("edit", BAD_EDITS.values(), ids=BAD_EDITS.keys())
def test_what_edits_no_line_is_refused(edit: bytes) -> None:
    first = reports.text(HEAD) + b"\n\n"
    assert len(taken(first, b"0 a 1\n\n")) == 2
    with pytest.raises(BadReportError):
        taken(first, edit + b"\n\n")


def test_edits_that_make_a_head_of_a_line_false_are_refused() -> None:
    names = [*json.loads(read_line(reports.text(HEAD)).text)["head"]]
    before = sum(isinstance(HEAD[name], int | float) for name in names[: names.index("rank")])
    first = reports.text(HEAD) + b"\n\n"
    with pytest.raises(BadReportError):
        taken(first, b"0 %b -1\n\n" % b"abc"[before : before + 1])


def test_a_short_packet_does_not_become_long_in_memory() -> None:
    first = reports.text({**HEAD, "stats": {"x": list(range(100_000))}}) + b"\n\n"
    assert len(taken(first, b"0\n1\n\n")) == 2
    with pytest.raises(BadReportError, match="more than"):
        taken(first, b"0\n" + b"1\n" * 100 + b"\n")
    with pytest.raises(BadReportError, match="more than"):
        taken(first, b"0\n\n" * 1000)


@given(st.binary(max_size=200))
def test_any_content_is_reports_or_refused(content: bytes) -> None:
    first = reports.text({**HEAD, "stats": {"x": [1, 2.5, 3]}}) + b"\n\n"
    try:
        found = taken(first, content)
    except BadReportError:
        return
    assert all(json.loads(text) for report in texts(found) for text in report)


@given(st.data())
def test_any_edits_make_valid_lines(data: st.DataObject) -> None:
    values = [1, 2.5, 3e-7, "4-5", 10**12, -7, 0.0]
    first = reports.text({**HEAD, "stats": {"x_ns": values}}) + b"\n\n"
    letters = data.draw(st.text("abcABC/", max_size=7))
    changes = data.draw(st.lists(st.integers(-(10**19), 10**19), max_size=7))
    edits = f"1 {letters} {','.join(map(str, changes))}".encode()
    try:
        found = taken(first, b"0\n" + edits + b"\n\n")
    except BadReportError:
        return
    assert [json.loads(text) for text in texts(found)[-1]]

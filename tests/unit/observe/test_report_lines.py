"""The lines of reports: what arrives over a connection is what was sent; and strangers' bytes."""

from __future__ import annotations

import random
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geocomm.observe.telemetry.report import (
    MAX_BYTES,
    MAX_INFLATED_BYTES,
    BadReportError,
    ReportLine,
    ReportPacker,
    ReportUnpacker,
)
from support import reports

HEAD: dict[str, Any] = {"site": "a", "rank": 0, "process": "0123456789abcdef", "sequence": 0, "time": 1.0, "now_ns": 1}


def texts(count: int, seed: int = 1) -> list[bytes]:
    """Of reports of several sizes."""
    draw = random.Random(seed)
    return [reports.text({**HEAD, "sequence": i, "host": "y" * draw.randrange(250)}) for i in range(count)]


def taken(unpacker: ReportUnpacker, sent: bytes, size: int) -> list[list[ReportLine]]:
    """What comes of bytes that arrive in pieces."""
    return [found for i in range(0, len(sent), size) for found in unpacker.take(sent[i : i + size])]


def stream(content: bytes) -> bytes:
    packer = zlib.compressobj()
    return packer.compress(content) + packer.flush(zlib.Z_SYNC_FLUSH)


@given(st.lists(st.integers(0, 200), max_size=4), st.integers(1, 5000), st.integers())
def test_reports_arrive_as_they_were_sent_whatever_the_pieces(batches: list[int], size: int, seed: int) -> None:
    packer, unpacker = ReportPacker(), ReportUnpacker()
    said, came = texts(sum(batches), seed), list[ReportLine]()
    for count in batches:
        pieces = taken(unpacker, packer.pack(said[len(came) : len(came) + count]), size)
        assert all(0 < len(some) <= 64 for some in pieces)
        came += [line for some in pieces for line in some]
        assert [line.text for line in came] == said[: len(came)], "each flush brings all that was packed"
    assert [line.text for line in came] == said
    assert [line.report.sequence for line in came] == list(range(len(said)))


def test_what_repeats_travels_once() -> None:
    packer = ReportPacker()
    noise = random.Random(1).randbytes(2000).hex()
    sizes = [len(packer.pack([reports.text({**HEAD, "sequence": i, "stats": {"noise": noise}})])) for i in range(9)]
    assert sizes[0] > 2000
    assert max(sizes[1:]) < 80


BAD = {
    "nothing": b"",
    "no JSON": b"{",
    "no UTF-8": reports.text(HEAD).replace(b"a", b"\xff"),
    "no object": b"[]",
    "no fields": b"{}",
    "two reports": reports.text(HEAD) * 2,
    "a number for a name": reports.text({**HEAD, "site": 1}),
    "a path for a name": reports.text({**HEAD, "site": "../b"}),
    "a negative rank": reports.text({**HEAD, "rank": -1}),
    "a sequence of 64 bits": reports.text({**HEAD, "sequence": 1 << 63}),
    "no moment": reports.text({**HEAD, "time": float("nan")}),
    "another version": reports.text({**HEAD, "version": 3}),
    "a list for stats": reports.text({**HEAD, "stats": []}),
    "a row for rows": reports.text({**HEAD, "operations": {}}),
    "numbers for rows": reports.text({**HEAD, "events": [1]}),
    "deep JSON": reports.text({**HEAD, "stats": {}}).replace(b"{}", b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "more digits than Python reads": reports.text({**HEAD, "rank": 0}).replace(b":0", b":" + b"9" * 5000),
    "half of a character": reports.text({**HEAD, "host": "\ud800"}),
    "too long": reports.text(HEAD) + b" " * MAX_BYTES,
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD.keys())
def test_what_is_no_report_is_refused_alone_and_in_a_stream(text: bytes) -> None:
    for read in (
        lambda: ReportLine.read(text),
        lambda: ReportLine.unpack(zlib.compress(text)),
        lambda: list(ReportUnpacker().take(stream(text + b"\n"))),
    ):
        with pytest.raises(BadReportError):
            read()


def test_a_report_of_several_lines_is_refused_and_none_in_a_datagram_that_is_cut() -> None:
    with pytest.raises(BadReportError, match="several lines"):
        ReportLine.unpack(zlib.compress(reports.text(HEAD).replace(b",", b",\n")))
    with pytest.raises(BadReportError, match="cut off"):
        ReportLine.unpack(zlib.compress(reports.text(HEAD))[:-1])


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (stream(b" " * (MAX_INFLATED_BYTES + 1)), "inflates too far"),
        (stream(b" " * (MAX_BYTES + 1)), "longer than"),
        (zlib.compress(reports.text(HEAD) + b"\n"), "ends"),
        (stream(b"\n" * (MAX_INFLATED_BYTES - 1)), "no report"),
        (b"\x04\0\0\0abcd", "no stream"),
    ],
    ids=["inflates", "no end of a line", "the stream ends", "lines alone", "the form before"],
)
def test_a_stream_that_harms_is_refused(content: bytes, why: str) -> None:
    with pytest.raises(BadReportError, match=why):
        list(ReportUnpacker().take(content))


def test_a_line_that_grows_piece_by_piece_is_refused_once_it_is_too_long() -> None:
    unpacker, packer = ReportUnpacker(), zlib.compressobj()
    for _ in range(4):
        assert not list(unpacker.take(packer.compress(b" " * (MAX_BYTES // 4)) + packer.flush(zlib.Z_SYNC_FLUSH)))
    with pytest.raises(BadReportError, match="longer than"):
        list(unpacker.take(packer.compress(b" ") + packer.flush(zlib.Z_SYNC_FLUSH)))


@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_are_reports_or_refused(content: bytes, packed: bool) -> None:
    unpacker = ReportUnpacker()
    try:
        found = list(unpacker.take(stream(reports.text(HEAD) + b"\n" + content) if packed else content))
    except BadReportError:
        return
    assert [line.text for some in found for line in some] == [reports.text(HEAD)] * packed

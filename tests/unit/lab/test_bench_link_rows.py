"""The loopback benchmark's arithmetic and report, on numbers written here."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from geocomm.lab.bench import link_bench
from geocomm.lab.bench.link_bench import LinkBenchError, Sample, bench, cases, markdown, row_cells, rows_of
from support.command_tree import APP


def test_cases_channels_are_compared_with_the_bare_loop_of_their_kind() -> None:
    named = {case.name: case for case in cases()}
    assert len(named) == 8
    for case in named.values():
        if case.bare is not None:
            bare = named[case.bare]
            assert (bare.encrypted, bare.both_ways, bare.bare) == (case.encrypted, case.both_ways, None)


def test_rows_ratio_is_that_of_the_same_round() -> None:
    measured = cases([False])
    samples = {case.name: [Sample(10.0, 1.0, 0.5), Sample(20.0, 0.8, 0.7), Sample(40.0, 0.9, 0.6)] for case in measured}
    samples["channel"] = [Sample(5.0, 1, 1), Sample(16.0, 1, 1), Sample(20.0, 1, 1)]
    rows = {row.case.name: row for row in rows_of(samples, measured)}
    assert rows["bare TCP"].ratio is None
    assert rows["bare TCP"].gbit_s == 20.0
    assert rows["bare TCP"].cores == (0.9, 0.6)
    assert rows["channel"].ratio == 0.5
    assert row_cells(rows["channel"]) == ["channel", "3", "16.0", "5.0", "20.0", "1.00 + 1.00", "16.0", "0.50"]
    report = markdown(list(rows.values()), ["- date: today"])
    assert "| channel over TLS | 3 | 20.0 |" in report


def _program(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "link_bench"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(link_bench, "PROGRAM", path)


def test_bench_program_that_fails_is_an_error_in_its_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(tmp_path, "echo 'link_bench: no socket' >&2; exit 1", monkeypatch)
    with pytest.raises(LinkBenchError, match="bare TCP: link_bench: no socket"):
        bench(cases(), rounds=1, seconds=0.1)


def test_bench_program_that_is_missing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_bench, "PROGRAM", tmp_path / "none")
    with pytest.raises(LinkBenchError, match="GEOCOMM_TOOLS=ON"):
        bench(cases(), rounds=1, seconds=0.1)


def test_bench_encrypted_cases_get_keys_of_two_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _program(
        tmp_path,
        'case "$*" in *--keys-a*/a*--keys-b*/b*) rate=1;; *) rate=2;; esac\n'
        'echo "{\\"gbit_s\\": $rate, \\"cpu_a\\": 1, \\"cpu_b\\": 1}"',
        monkeypatch,
    )
    rows = bench(cases(), rounds=2, seconds=0.1)
    assert {row.case.encrypted: row.gbit_s for row in rows} == {True: 1.0, False: 2.0}


def test_bench_link_is_a_command() -> None:
    from typer.testing import CliRunner

    done = CliRunner().invoke(APP, ["bench", "link", "--help"])
    assert done.exit_code == 0
    assert "loopback" in done.output


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ('{"gbit_s": 1.5, "cpu_a": 1}', "cpu_b is missing"),
        ('{"gbit_s": "fast", "cpu_a": 1, "cpu_b": 1}', "gbit_s: "),
        ("", "cannot be read"),
    ],
)
def test_answer_of_another_program_is_refused_by_its_field(said: str, words: str) -> None:
    with pytest.raises(LinkBenchError, match=words):
        Sample.from_json(said, "channel")
    assert Sample.from_json('{"gbit_s": 1.5, "cpu_a": 1, "cpu_b": 0.5}', "channel") == Sample(1.5, 1.0, 0.5)

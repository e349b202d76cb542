"""The run store: the reports of a run in one SQLite file, which one process writes and any number read.

It keeps every report for an hour, one in ten seconds for two days, and one a minute for ever. Counters are totals, so
what is dropped costs detail and no sum. Operations and rounds are kept for an hour, of events the newest of each site.

All is JSON, not compressed: that would take half of the time of keeping it, and save a seventh of the file.

Moments are those at which the collector had a report, by its own clock. Senders' clocks are compared with nothing.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic_core import SchemaValidator, from_json, to_json

from geocomm.core.bad_input import BadInput
from geocomm.core.run_dir import RunDir
from geocomm.core.units import DAY_S
from geocomm.metrics.report_sender import VERSION
from geocomm.observe.telemetry.report import Report, Row
from geocomm.observe.telemetry.report_rows import OPERATION, ROUND, STEP, rows

FORMAT = 4
"""What those who write and read a file must agree on: its tables, and what a field that stays means. Reports of an
earlier `VERSION` are read as if they came now: what their fields lack is what a sender may leave out."""
_APPLICATION_ID = 0x67637465
_SQLITE = b"SQLite format 3\0"
_KEPT_S = ((3600.0, 10.0), (2 * DAY_S, 60.0))
"""(age, interval): of reports older than `age`, one in `interval` is kept."""
_FOR_EVER = 1e12
_DETAILS = ("operations", "rounds")
_KINDS = {
    kind: SchemaValidator(rows(one)) for kind, one in (("operations", OPERATION), ("rounds", ROUND), ("steps", STEP))
}
_APART = {"stats", "events", *_DETAILS}
"""Fields of a report that have a column, or rows, of their own; `said` has the others."""
_BEGIN = "substr(said, 1, 24)"
"""With the version of the report. Where a loss is NaN, SQLite cannot read the rest."""
_LOOK_EVERY_S = 3600.0
_MOST_EVENTS = 100_000
"""The most events that are kept of a site."""
_TOGETHER_S = 2.0
"""Ranks report once a second: one that said nothing for longer before another process of its site began to report was
not there any more."""
_WHO = (
    "who(site, rank) AS (SELECT site, rank FROM (SELECT site, rank FROM reports ORDER BY site, rank LIMIT 1) "
    "UNION ALL SELECT next.site, next.rank FROM who JOIN reports AS next ON next.rowid = coalesce("
    "(SELECT rowid FROM reports WHERE site = who.site AND rank > who.rank ORDER BY rank LIMIT 1), "
    "(SELECT rowid FROM reports WHERE site > who.site ORDER BY site, rank LIMIT 1)))"
)
"""All ranks: a step in the index for each, whereas DISTINCT would go through all reports."""


class NoStoreError(BadInput):
    """There is no run store, or it is none of this version; the message says what to do."""


@dataclass(frozen=True)
class _Numbering:
    """How far the numbers of a rank's reports have come: a gap is a report that was lost, wherever that was."""

    process: str = ""
    sequence: int = 0
    lost: int = 0

    def after(self, report: Report) -> _Numbering:
        """The same once this report is there too."""
        before = self if report.process == self.process else _Numbering(report.process)
        if report.sequence > before.sequence:
            return _Numbering(report.process, report.sequence, before.lost + report.sequence - before.sequence - 1)
        return _Numbering(report.process, before.sequence, max(0, before.lost - 1))  # it was only late


@dataclass(frozen=True)
class Rank:
    """A process that reports."""

    site: str
    rank: int
    process: str


@dataclass(frozen=True)
class Received:
    """A report, and when the collector had it, in Unix seconds of the collector's clock."""

    at: float
    report: Report
    lost: int = 0
    """How many reports of the process, of those with lower numbers, never came here."""

    @property
    def rank(self) -> Rank:
        """The rank that the report is of."""
        return Rank(self.report.site, self.report.rank, self.report.process)


class RunStore:
    """One connection to the file; used by one thread at a time."""

    def __init__(self, path: Path, *, write: bool = False) -> None:
        """path: the file, or the folder that it is in. write: make it where it is not there.

        Raises NoStoreError, and OSError or sqlite3.Error for what the disk says.
        """
        self.path = RunDir(path).telemetry if path.is_dir() else path
        if not write and not self.path.is_file():
            raise NoStoreError(
                f"{path} has no telemetry ({RunDir.TELEMETRY}): start the run with geocomm run --telemetry FOLDER "
                "or --elastic"
            )
        if not write and not _is_sqlite(self.path):
            raise NoStoreError(
                f"{self.path} is no run store: name the folder of --telemetry, or the --run-dir of an elastic run, "
                f"which has {RunDir.TELEMETRY} in it"
            )
        mode = "rwc" if write else "ro"
        self._db = sqlite3.connect(
            f"{self.path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None, check_same_thread=False
        )
        self._db.execute("PRAGMA busy_timeout=2000")
        if write:
            self._make()
        self._check()
        self._looked_at = 0.0
        self._numbering: dict[tuple[str, int], _Numbering] = {}

    def add(self, reports: Sequence[Report], at: float) -> None:
        """Keep reports that came at `at` (Unix seconds), or none of them. Raises sqlite3.Error, such as for a full
        disk."""
        numbering = dict[tuple[str, int], _Numbering]()
        self._db.execute("BEGIN IMMEDIATE")
        try:
            for report in reports:
                key = (report.site, report.rank)
                before = numbering.get(key) or self._numbering.get(key) or self._numbering_of(key)
                numbering[key] = self._insert(report, at, before)
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self._numbering |= numbering

    def _numbering_of(self, key: tuple[str, int]) -> _Numbering:
        row = self._db.execute(
            "SELECT process, sequence, lost FROM reports WHERE site = ? AND rank = ? ORDER BY at DESC LIMIT 1", key
        ).fetchone()
        return _Numbering(*row) if row else _Numbering()

    def _insert(self, report: Report, at: float, before: _Numbering) -> _Numbering:
        now = before.after(report)
        details = {name: rows for name in _DETAILS if (rows := getattr(report, name))}
        kept = self._db.execute(
            "INSERT OR IGNORE INTO reports VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                *(at, report.site, report.rank, report.process, report.sequence, now.lost),
                report.model_dump_json(exclude=_APART, exclude_unset=True),
                to_json(report.stats).decode(),
                to_json(details).decode() if details else None,
            ),
        )
        if kept.rowcount == 0:  # it came before
            return before
        for event in report.events:
            row = (at, report.site, report.rank, event["kind"], to_json(event).decode())
            self._db.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", row)
        return now

    def latest(self, until: float = _FOR_EVER, *, details: bool = False) -> list[Received]:
        """The last report of each rank of each site that came up to `until`; by site and rank. Not of a rank that a
        restart of its site left out. details: with `operations` and `rounds`."""
        rows = self._db.execute(
            f"WITH RECURSIVE {_WHO} SELECT (SELECT first.at FROM reports AS first WHERE first.site = reports.site "
            "AND first.rank = reports.rank AND first.process = reports.process ORDER BY first.sequence LIMIT 1), "
            f"at, lost, said, stats, {'details' if details else 'NULL'} "
            "FROM who JOIN reports ON reports.rowid = (SELECT rowid "
            "FROM reports AS own WHERE own.site = who.site AND own.rank = who.rank AND own.at <= ? "
            "ORDER BY own.at DESC LIMIT 1) ORDER BY reports.site, reports.rank",
            (until,),
        )
        return _of_last_start([(began, _received(*columns)) for began, *columns in rows.fetchall()])

    def reports(
        self, since: float = 0.0, until: float = _FOR_EVER, *, details: bool = False, site: str | None = None
    ) -> Iterator[Received]:
        """Reports that came after `since` and up to `until`, oldest first. details: with `operations` and `rounds`."""
        rows = self._db.execute(
            f"SELECT at, lost, said, stats, {'details' if details else 'NULL'} FROM reports "
            "WHERE at > ? AND at <= ? AND (? IS NULL OR site = ?) ORDER BY at",
            (since, until, site, site),
        )
        for columns in rows:
            yield _received(*columns)

    def sampled(self, since: float, until: float, interval_s: float) -> Iterator[Received]:
        """The last report of each rank in each interval, after `since` and up to `until`; oldest first.
        Intervals begin at multiples of their length."""
        rows = self._db.execute(
            f"WITH RECURSIVE {_WHO}, ends(at) AS (SELECT (CAST(:since / :interval AS INTEGER) + 1) * :interval "
            "UNION ALL SELECT at + :interval FROM ends WHERE at <= :until) "
            "SELECT reports.at, lost, said, stats FROM who JOIN ends JOIN reports ON reports.rowid = (SELECT rowid "
            "FROM reports AS own WHERE own.site = who.site AND own.rank = who.rank AND own.at < ends.at "
            "AND own.at >= ends.at - :interval AND own.at > :since AND own.at <= :until ORDER BY own.at DESC LIMIT 1) "
            "ORDER BY reports.at",
            {"since": since, "until": until, "interval": interval_s},
        )
        for columns in rows:
            yield _received(*columns)

    def span(self) -> tuple[float, float] | None:
        """When the first report came, and the last; None: there is none yet."""
        first, last = self._db.execute(
            "SELECT (SELECT min(at) FROM reports), (SELECT max(at) FROM reports)"  # each alone is found in the index
        ).fetchone()
        return None if first is None else (first, last)

    def begin_of_last(self, count: int, until: float = _FOR_EVER) -> float:
        """When the report came that `count` others followed up to `until`; 0: there are fewer."""
        row = self._db.execute(
            "SELECT at FROM reports WHERE at <= ? ORDER BY at DESC LIMIT 1 OFFSET ?", (until, count)
        ).fetchone()
        return 0.0 if row is None else row[0]

    def rows(self, kind: str, since: float = 0.0, until: float = _FOR_EVER) -> list[tuple[Rank, Row]]:
        """The `operations`, `rounds` or `steps` of all ranks in reports that came after `since` and up to `until`, each
        once, as it was said last; in the order in which they began at each rank."""
        key = {"operations": "number", "rounds": "number", "steps": "step"}[kind]
        found = {(rank, row.get(key)): row for _, rank, row in self.told(kind, since, until)}
        return [(rank, row) for (rank, _), row in found.items()]

    def told(self, kind: str, since: float = 0.0, until: float = _FOR_EVER) -> Iterator[tuple[float, Rank, Row]]:
        """Rows of a kind with the time of their report and their rank, each as often as it was reported; oldest
        first."""
        column = _column_of(kind)
        reports = self._db.execute(
            f"SELECT at, site, rank, process, {_BEGIN}, {column} FROM reports "
            f"WHERE at > ? AND at <= ? AND {column} IS NOT NULL ORDER BY at",
            (since, until),
        )
        for at, site, rank, process, begin, text in reports:
            for row in _rows_of(kind, begin, text):
                yield at, Rank(site, rank, process), row

    def newest(self, kind: str, rank: Rank, until: float = _FOR_EVER) -> Iterator[Row]:
        """Rows of a kind of one process, the newest first."""
        column = _column_of(kind)
        reports = self._db.execute(
            f"SELECT {_BEGIN}, {column} FROM reports WHERE site = ? AND rank = ? AND process = ? "
            f"AND at <= ? AND {column} IS NOT NULL ORDER BY at DESC",
            (rank.site, rank.rank, rank.process, until),
        )
        for begin, text in reports:
            yield from reversed(_rows_of(kind, begin, text))

    def events(
        self, since: float = 0.0, until: float = _FOR_EVER, *, site: str | None = None, kind: str = ""
    ) -> Iterator[Row]:
        """Events that came after `since` and up to `until`, newest first, each with `site`, `rank` and `at`; of one
        site or kind alone, where it is named. Each is read when it is asked for."""
        of_site, its_name = ("", ()) if site is None else ("AND site = ? ", (site,))
        rows = self._db.execute(
            "SELECT at, site, rank, said FROM events "
            f"WHERE at > ? AND at <= ? AND (? = '' OR kind = ?) {of_site}ORDER BY at DESC, rowid DESC",
            (since, until, kind, kind, *its_name),
        )
        for at, own, rank, said in rows:
            yield {**from_json(said), "at": at, "site": own, "rank": rank}

    def thin(self, now: float, back_s: float = math.inf) -> None:
        """Drop what is too old to be kept in full. back_s: how far back from each age to look, where what is older was
        thinned before."""
        for age, interval in _KEPT_S:
            first, last = now - age - back_s, now - age
            self._db.execute(
                "DELETE FROM reports WHERE at BETWEEN ? AND ? AND rowid NOT IN (SELECT max(rowid) FROM reports "
                "WHERE at BETWEEN ? AND ? GROUP BY site, rank, process, CAST(at / ? AS INTEGER))",
                (first, last, first, last, interval),
            )
        last = now - _KEPT_S[0][0]
        self._db.execute(
            "UPDATE reports SET details = NULL WHERE at BETWEEN ? AND ? AND details IS NOT NULL", (last - back_s, last)
        )
        if now - self._looked_at >= _LOOK_EVERY_S:
            self._looked_at = now
            self._drop_events()

    def _drop_events(self) -> None:
        """Drop the oldest of sites that have too many."""
        for (site,) in self._db.execute("SELECT site FROM events GROUP BY site HAVING count(*) > ?", (_MOST_EVENTS,)):
            self._db.execute(
                "DELETE FROM events WHERE site = ? AND at < (SELECT at FROM events WHERE site = ? ORDER BY at DESC "
                "LIMIT 1 OFFSET ?)",
                (site, site, _MOST_EVENTS - 1),
            )

    def close(self) -> None:
        """Give the file back."""
        self._db.close()

    def _make(self) -> None:
        if self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            return
        self._db.execute("PRAGMA journal_mode=WAL")
        self._db.executescript(
            "BEGIN IMMEDIATE;"
            "CREATE TABLE reports (at REAL, site TEXT, rank INTEGER, process TEXT, sequence INTEGER, "
            "lost INTEGER, said TEXT, stats TEXT, details TEXT, UNIQUE (site, rank, process, sequence)) STRICT;"
            "CREATE INDEX reports_at ON reports (at);"
            "CREATE INDEX reports_of_rank ON reports (site, rank, at);"
            "CREATE TABLE events (at REAL, site TEXT, rank INTEGER, kind TEXT, said TEXT) STRICT;"
            "CREATE INDEX events_at ON events (at);"
            "CREATE INDEX events_of_site ON events (site, at);"
            f"PRAGMA application_id={_APPLICATION_ID};"
            f"PRAGMA user_version={FORMAT};"
            "COMMIT;"
        )

    def _check(self) -> None:
        self._db.execute("PRAGMA synchronous=NORMAL")
        found, version = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
        )
        if (found, version) != (_APPLICATION_ID, FORMAT):
            self.close()
            raise NoStoreError(
                f"{self.path} is no run store of this version of geocomm (format {version}, not {FORMAT}): move the "
                "file away or name another folder for a new run; the version that wrote it reads it"
            )


def _is_sqlite(path: Path) -> bool:
    """Whether the file begins as one of SQLite. OSError: it may not be read."""
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) in (_SQLITE, b"")  # nothing is written to a new one yet


def _of_last_start(found: list[tuple[float, Received]]) -> list[Received]:
    """Without those of ranks that said nothing since others of their site started: these go on without them. found:
    with each the moment at which its process was heard first."""
    started: dict[str, float] = {}
    for began, one in found:
        started[one.report.site] = max(began, started.get(one.report.site, 0.0))
    return [one for _, one in found if one.at >= started[one.report.site] - _TOGETHER_S]


def _received(at: float, lost: int, said: str, stats: str, details: str | None = None) -> Received:
    values: Row = {**from_json(said), "stats": from_json(stats), **(from_json(details) if details else {})}
    if values.get("version", VERSION) != VERSION:
        return Received(at, Report.model_validate(values | {"version": VERSION}), lost)
    return Received(at, Report.model_construct(**values), lost)


def _rows_of(kind: str, begin: str, text: str) -> list[Row]:
    found: list[Row] = from_json(text).get(kind, [])
    version = re.match(r'{"version":(\d+)', begin)
    return found if version is None or int(version[1]) == VERSION else _KINDS[kind].validate_python(found)


def _column_of(kind: str) -> str:
    return "details" if kind in _DETAILS else "said"

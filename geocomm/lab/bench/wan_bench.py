"""All-reduce benchmark: geocomm and Gloo over one emulated link in one run, verified, as time over floor.

Time is latest end minus latest start over the ranks, after a barrier and a pause; data is normal; a row is the median
of its valid operations. The floor is what an exact fp32 all-reduce cannot beat on that link, headers ignored. An
operation during which the emulator delivered a packet over 5 ms late is void and repeated.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any, Self

import pydantic.dataclasses
from pydantic import NonNegativeInt, PositiveInt, TypeAdapter

from geocomm.codecs.codec_facts import FACTS, facts_of
from geocomm.codecs.codec_spec import AUTO
from geocomm.core.bad_input import BadInput, UserError
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.units import rate_text
from geocomm.lab.emulator.emulated_keys import site_environment
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanControl, WanRun
from geocomm.lab.emulator.local_job import bare_environment, run_local_ranks

GLOO = "gloo"
GLOO_SLICED = "gloo8"
"""Gloo with its interface named eight times, and the tensor in eight slices at once: the most it can be brought to."""
GLOO_CASES = (GLOO, GLOO_SLICED)
EXACT = "none"
_MAX_NMSE_OF_AUTO = 1e-3
"""The cap under which codec=auto chooses where no other is set."""
_TAIL_LINES = 25


class BenchError(UserError, RuntimeError):
    """A run failed, or a result was wrong; the message has the case and, of a failed run, the end of its output."""


@dataclass(frozen=True)
class WanRow:
    """One case at one size on one link. Seconds and bytes."""

    link: str
    sites: int
    case: str
    size_bytes: int
    times_s: tuple[float, ...]
    """Times of the valid operations, in order."""
    voided: int
    """Operations left out because a packet was late."""
    void: bool
    """Every operation had a late packet: the times are of those, and mean nothing."""
    floor_s: float | None
    """The least time that an exact all-reduce can take; None without a WAN."""
    wire_bytes: float | None
    """Sent per site and operation, headers, acknowledgements and resent segments included; None without a WAN."""
    nmse: float
    max_lateness_s: float | None
    ranks_per_site: int = 1
    beside_bytes: int = 0
    """The most memory of a rank during an operation, beside the process before the groups, and the tensors."""
    descriptors: int = 0
    """The most open file descriptors of a rank after an operation."""
    gloo_ratio: float | None = None
    """Median of the paired ratios to Gloo; only of one site, where the cases alternate."""
    target: float | None = None
    encrypted: bool = False
    """Over TLS; Gloo never is."""
    pacing: float | None = None
    """GEOCOMM_MAX_PACING_BPS as a part of the link's rate; None: no cap, as by default."""

    @property
    def median_s(self) -> float:
        """The median time of the valid operations."""
        return statistics.median(self.times_s)

    @property
    def ratio(self) -> float | None:
        """What the target speaks of: time over floor, or over Gloo's where there is no WAN."""
        return self.gloo_ratio if self.floor_s is None else self.median_s / self.floor_s

    def to_dict(self) -> dict[str, Any]:
        """All fields, and the numbers that follow from them."""
        return asdict(self) | {"median_s": self.median_s, "ratio": self.ratio}


@dataclass(frozen=True)
class Effort:
    """How long to measure."""

    repeats: int = 5
    warmup: int = 1
    pause_s: float = 0.5
    seed: int = 1

    def plan(
        self, cases: Sequence[str], sizes_bytes: Sequence[int], *, interleave: bool, ranks_per_site: int = 1
    ) -> WanBenchPlan:
        """The settings of the workers."""
        return WanBenchPlan(
            cases=tuple(cases),
            sizes_bytes=tuple(sizes_bytes),
            repeats=self.repeats,
            warmup=self.warmup,
            pause_s=self.pause_s,
            interleave=interleave,
            seed=self.seed,
            ranks_per_site=ranks_per_site,
        )


def floor_s(size_bytes: int, sites: int, link: EmulatedLink) -> float:
    """Seconds below which no exact all-reduce of `size_bytes` over `sites` sites with such links can be."""
    direct = size_bytes * 8 / link.rate_bps + link.delay_s
    if sites == 2:
        return direct
    return min(direct, 2 * size_bytes * 8 / (sites * link.rate_bps) + 2 * link.delay_s)


def max_nmse(case: str) -> float:
    """The largest squared error over squared norm of a verified sum; 0: it is bit-exact. BadInput: not known."""
    if case in GLOO_CASES:
        return 0.0
    if case == AUTO:
        return _MAX_NMSE_OF_AUTO
    try:
        facts = facts_of(case)
    except InvalidArgumentError as error:
        raise BadInput(str(error)) from None
    if facts is None or facts.sum_nmse is None:
        known = ", ".join(name for name, one in FACTS.items() if one.sum_nmse is not None)
        raise BadInput(f"codec {case!r}: the error of its sums is not known; known: {known}, {AUTO}")
    return facts.sum_nmse


def describe_link(link: EmulatedLink) -> str:
    """`1 Gbit/s, 100 ms RTT, 0.1 % loss`."""
    loss = f"{link.loss * 100:g} % loss" if link.loss else "no loss"
    return f"{rate_text(link.rate_bps)}, {link.delay_s * 2e3:g} ms RTT, {loss}"


def bench_link(
    link: EmulatedLink,
    cases: Sequence[str],
    sizes_bytes: Sequence[int],
    *,
    sites: int = 2,
    ranks_per_site: int = 1,
    effort: Effort | None = None,
    keys: Path | None = None,
    pacing: float | None = None,
    changing: Callable[[WanControl, tuple[str, ...]], AbstractContextManager[None]] | None = None,
) -> list[WanRow]:
    """Measure `cases` (GLOO, GLOO_SLICED or codecs of geocomm) with `ranks_per_site` ranks at each of `sites` sites
    (site0, ...), over TLS where `keys` has a folder for each; Gloo is plaintext always. `pacing`: geocomm's streams to
    a peer are capped at this part of the link's rate. `changing`: changes the links of these sites while the run lasts.

    Raises BadInput, BenchError, WanConfigError, WanUnavailableError.
    """
    for case in cases:
        max_nmse(case)
    environment = bare_environment()
    if pacing is not None:
        environment["GEOCOMM_MAX_PACING_BPS"] = str(round(pacing * link.rate_bps))
    with tempfile.TemporaryDirectory(prefix="geocomm-bench-") as folder, tempfile.TemporaryFile("w+") as log:
        plan = (effort or Effort()).plan(cases, sizes_bytes, interleave=False, ranks_per_site=ranks_per_site)
        command = _worker_command(Path(folder), plan)
        with (
            WanRun(
                EmulatedWan.uniform(sites, link),
                command,
                environment=site_environment(environment, keys) | {"GEOCOMM_SECURITY": "insecure"},  # for Gloo
                keys=keys,
                stdout=log,
                stderr=log,
                master_port=29511,
            ) as run,
            changing(run.control, run.topology.sites) if changing else contextlib.nullcontext(),
        ):
            status = run.wait()
        _check_status(status, log, describe_link(link))
        operations = _read_operations(Path(folder), sites * ranks_per_site)
    rows = _rows(operations, describe_link(link), sites)
    return [
        replace(
            row,
            floor_s=floor_s(row.size_bytes, sites, link),
            ranks_per_site=ranks_per_site,
            encrypted=keys is not None and row.case not in GLOO_CASES,
            pacing=pacing if row.case not in GLOO_CASES else None,
        )
        for row in rows
    ]


def bench_one_site(sizes_bytes: Sequence[int], *, effort: Effort | None = None) -> list[WanRow]:
    """Measure geocomm against Gloo between two processes of this machine that name no site: plain delegation."""
    with tempfile.TemporaryDirectory(prefix="geocomm-bench-") as folder, tempfile.TemporaryFile("w+") as log:
        command = _worker_command(Path(folder), (effort or Effort()).plan([GLOO, EXACT], sizes_bytes, interleave=True))
        statuses = run_local_ranks(command, [None, None], log)
        _check_status(next((s for s in statuses if s), 0), log, "one site")
        operations = _read_operations(Path(folder), 2)
    rows = _rows(operations, "one site of 2 ranks, loopback", 1)
    gloo = {row.size_bytes: row.times_s for row in rows if row.case == GLOO}
    return [
        row if row.case == GLOO else replace(row, gloo_ratio=paired_ratio(row.times_s, gloo[row.size_bytes]))
        for row in rows
    ]


def paired_ratio(times_s: Iterable[float], base_s: Iterable[float]) -> float:
    """Median of the ratios of operations that ran next to each other: what drifts with the machine cancels."""
    return statistics.median(own / base for own, base in zip(times_s, base_s, strict=True))


def _worker_command(folder: Path, plan: WanBenchPlan) -> list[str]:
    (folder / "plan.json").write_text(plan.to_json(), encoding="utf-8")
    return [sys.executable, "-m", "geocomm.lab.bench.wan_bench_worker", str(folder / "plan.json"), str(folder)]


def _check_status(status: int, log: IO[str], where: str) -> None:
    if status != 0:
        log.seek(0)
        tail = "".join(log.readlines()[-_TAIL_LINES:])
        raise BenchError(f"the benchmark of {where} ended with status {status}; the end of its output:\n{tail}")


def _read_operations(folder: Path, ranks: int) -> list[list[dict[str, Any]]]:
    """The operations in order, each as its lines by rank."""
    by_rank = []
    for rank in range(ranks):
        text = (folder / f"rank-{rank}.jsonl").read_text(encoding="utf-8")
        by_rank.append([json.loads(line) for line in text.splitlines()])
    return [list(lines) for lines in zip(*by_rank, strict=True)]


def verify_operation(lines: Sequence[Mapping[str, Any]]) -> None:
    """Raise BenchError unless all ranks ended with the same bytes, and those are the sum within the case's bound."""
    case, size = lines[0]["case"], lines[0]["size_bytes"]
    if len({line["digest"] for line in lines}) > 1:
        raise BenchError(f"{case}, {size} bytes: the ranks ended with different results")
    bound = max_nmse(case)
    for rank, line in enumerate(lines):
        if bound == 0 and not line["exact"]:
            raise BenchError(f"{case}, {size} bytes: rank {rank} has a wrong sum (relative error {line['nmse']:.2g})")
        if bound > 0 and not line["nmse"] <= bound:
            raise BenchError(
                f"{case}, {size} bytes: error of rank {rank} is {line['nmse']:.2g}, allowed is {bound:.2g}"
            )


def _rows(operations: Sequence[Sequence[Mapping[str, Any]]], link: str, sites: int) -> list[WanRow]:
    grouped: dict[tuple[str, int], list[Sequence[Mapping[str, Any]]]] = {}
    for lines in operations:
        verify_operation(lines)
        if not lines[0]["warmup"]:
            grouped.setdefault((lines[0]["case"], lines[0]["size_bytes"]), []).append(lines)
    rows = []
    for (case, size), measured in grouped.items():
        on_time = [lines for lines in measured if lines[0]["on_time"]]
        valid = on_time or measured
        first = [lines[0] for lines in valid]
        wire = [line["wire_bytes"] / sites for line in first if "wire_bytes" in line]
        rows.append(
            WanRow(
                link=link,
                sites=sites,
                case=case,
                size_bytes=size,
                times_s=tuple(
                    max(line["end"] for line in lines) - max(line["start"] for line in lines) for lines in valid
                ),
                voided=len(measured) - len(on_time),
                void=not on_time,
                floor_s=None,
                wire_bytes=statistics.median(wire) if wire else None,
                nmse=max(line["nmse"] for lines in valid for line in lines),
                beside_bytes=max(line["beside_bytes"] for lines in measured for line in lines),
                descriptors=max(line["descriptors"] for lines in measured for line in lines),
                max_lateness_s=first[-1].get("max_lateness_s"),
            )
        )
    return rows


@pydantic.dataclasses.dataclass(frozen=True)
class WanBenchPlan:
    """What to measure. Every rank gets the same."""

    cases: tuple[str, ...]
    """"gloo", "gloo8", or a geocomm codec."""
    sizes_bytes: tuple[PositiveInt, ...]
    repeats: PositiveInt
    """Valid operations wanted of each case and size."""
    warmup: NonNegativeInt
    pause_s: float
    """Between the barrier and the operation."""
    interleave: bool
    """Alternate the cases, in turning order, rather than finish one before the next."""
    seed: int
    ranks_per_site: PositiveInt = 1

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`; pydantic's ValidationError for anything else."""
        return TypeAdapter(cls).validate_json(text)

    def to_json(self) -> str:
        """The plan as JSON, for the workers."""
        return TypeAdapter(type(self)).dump_json(self).decode()

    def rounds(self) -> Iterator[tuple[int, tuple[str, ...]]]:
        """The sizes, each with the cases that are measured together."""
        for size in self.sizes_bytes:
            for group in (self.cases,) if self.interleave else ((case,) for case in self.cases):
                yield size, group

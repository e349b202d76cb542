"""What a channel of geocomm moves over loopback, beside a bare loop over one TCP connection and one over OpenSSL.

The rate of loopback is that of the machine's cores, so only the ratios of one run mean something: they say what the
transport costs on top of the kernel, and on top of encryption.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from geocomm.core.bad_input import UserError, first_problem, problem_text
from geocomm.lab.bench.bench_report import table_lines
from geocomm.security.job_ca import JobCa

PROGRAM = Path(__file__).resolve().parents[2] / "_bin" / "link_bench"
_GRACE_S = 60
_NOTES = """\
Two processes; the rate is what the receivers took in, in Gbit/s, both directions together; median of n measurements
that took turns. cores: CPU of the two processes; per core: Gbit/s for each core of the busier one. Ratio: median of the
paired ratios to the bare loop of the same kind, which sends 256 KiB at a time over one blocking connection (TLS:
records of 16 KiB, as OpenSSL makes them). The channel sends operations of 64 chunks of 1 MiB; the first operation is
compared with what was sent.
"""


class LinkBenchError(UserError, RuntimeError):
    """A measurement failed; the message has the program's words."""


@dataclass(frozen=True)
class LinkCase:
    """What is measured."""

    name: str
    what: str
    """The name by which the program calls it."""
    encrypted: bool
    both_ways: bool
    bare: str | None = None
    """Name of the case that it is compared with."""


@dataclass(frozen=True)
class Sample:
    """One measurement."""

    gbit_s: float
    cpu_a: float
    cpu_b: float

    @classmethod
    def from_json(cls, text: str, name: str) -> Self:
        """What the program said of case `name`. LinkBenchError: another version's program said it."""
        try:
            return TypeAdapter(cls).validate_json(text)
        except ValidationError as error:
            raise LinkBenchError(
                f"{name}: what {PROGRAM} says cannot be read: {problem_text(first_problem(error))}; build it anew"
            ) from None


@dataclass(frozen=True)
class LinkRow:
    """All measurements of a case."""

    case: LinkCase
    samples: tuple[Sample, ...]
    ratio: float | None
    """The rate over that of the bare loop; None for bare loops."""

    @property
    def gbit_s(self) -> float:
        """The median."""
        return statistics.median(sample.gbit_s for sample in self.samples)

    @property
    def cores(self) -> tuple[float, float]:
        """CPU of the two processes, medians."""
        return (
            statistics.median(sample.cpu_a for sample in self.samples),
            statistics.median(sample.cpu_b for sample in self.samples),
        )

    @property
    def gbit_s_per_core(self) -> float:
        """What a core of the process that had more to do moved: tells more than the rate where others use the cores."""
        return statistics.median(one.gbit_s / max(one.cpu_a, one.cpu_b, 1e-9) for one in self.samples)

    def to_dict(self) -> dict[str, Any]:
        """The fields and the numbers derived from them, for JSON."""
        return asdict(self) | {"gbit_s": self.gbit_s, "gbit_s_per_core": self.gbit_s_per_core}


def cases(both_ways: Sequence[bool] = (False, True)) -> list[LinkCase]:
    """Plain and TLS, one way and both."""
    made = []
    for both in both_ways:
        suffix = ", both ways" if both else ""
        for kind, encrypted in (("tcp", False), ("tls", True)):
            bare = f"bare {kind.upper()}{suffix}"
            made.append(LinkCase(bare, kind, encrypted, both))
            name = f"channel{' over TLS' if encrypted else ''}{suffix}"
            made.append(LinkCase(name, "channel", encrypted, both, bare))
    return made


def rows_of(samples: dict[str, list[Sample]], measured: Sequence[LinkCase]) -> list[LinkRow]:
    """Medians, and the ratios of measurements of the same round."""
    rows = []
    for case in measured:
        own = samples[case.name]
        ratio = None
        if case.bare is not None:
            pairs = zip(own, samples[case.bare], strict=True)
            ratio = statistics.median(one.gbit_s / max(bare.gbit_s, 1e-9) for one, bare in pairs)
        rows.append(LinkRow(case, tuple(own), ratio))
    return rows


def bench(
    measured: Sequence[LinkCase],
    *,
    rounds: int = 5,
    seconds: float = 2,
    streams: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[LinkRow]:
    """Measure every case once in each round. Raises LinkBenchError."""
    samples: dict[str, list[Sample]] = {case.name: [] for case in measured}
    with tempfile.TemporaryDirectory(prefix="geocomm-bench-") as folder:
        ca = JobCa.create(Path(folder) / "ca", "bench", ["a", "b"], days=1)
        keys = [ca.folder / site for site in ("a", "b")]
        for number in range(rounds):
            for case in measured:
                progress(f"round {number + 1} of {rounds}: {case.name}")
                samples[case.name].append(_measure(case, keys, seconds, streams))
    return rows_of(samples, measured)


def _measure(case: LinkCase, keys: Sequence[Path], seconds: float, streams: int | None) -> Sample:
    command = [str(PROGRAM), case.what, "--seconds", f"{seconds:g}"]
    if case.encrypted:
        command += ["--keys-a", str(keys[0]), "--keys-b", str(keys[1])]
    if case.both_ways:
        command.append("--both-ways")
    if streams is not None and case.what == "channel":
        command += ["--streams", str(streams)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _GRACE_S, check=False)
    except FileNotFoundError:
        raise LinkBenchError(
            f"{PROGRAM} is missing: this geocomm was built without its programs (CMake option GEOCOMM_TOOLS=ON, the "
            "default); install geocomm again"
        ) from None
    except subprocess.TimeoutExpired:
        raise LinkBenchError(f"{case.name}: no end after {seconds + _GRACE_S:g} s") from None
    if done.returncode != 0:
        raise LinkBenchError(f"{case.name}: {done.stderr.strip() or f'exit status {done.returncode}'}")
    return Sample.from_json(done.stdout, case.name)


HEADINGS = ("what", "n", "Gbit/s", "min", "max", "cores", "per core", "ratio")


def row_cells(row: LinkRow) -> list[str]:
    """The cells of a row, in the order of HEADINGS."""
    rates = [sample.gbit_s for sample in row.samples]
    sender, receiver = row.cores
    return [
        row.case.name,
        f"{len(rates)}",
        f"{row.gbit_s:.1f}",
        f"{min(rates):.1f}",
        f"{max(rates):.1f}",
        f"{sender:.2f} + {receiver:.2f}",
        f"{row.gbit_s_per_core:.1f}",
        "" if row.ratio is None else f"{row.ratio:.2f}",
    ]


def markdown(rows: Sequence[LinkRow], header: Sequence[str]) -> str:
    """The report; `header`: lines about the conditions."""
    table = table_lines(HEADINGS, map(row_cells, rows))
    return "\n".join(["# A channel over loopback", "", *header, "", *table, "", _NOTES])

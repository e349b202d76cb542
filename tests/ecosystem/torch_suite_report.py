"""The results of `run_torch_suite.py` as text: a table, and every test that went otherwise than over Gloo."""

from __future__ import annotations

import datetime
import platform
from dataclasses import dataclass, field
from typing import Any

from run_torch_suite import ranks_of

Results = dict[str, dict[str, dict[str, Any]]]  # layout → test → record

# Tests that ask for Gloo's name or words, by the beginnings of their names, and how.
INHERENT = {
    "test_monitored_barrier_gloo_rank_0_timeout": "expects the words of Gloo's error; geocomm's "
    "OperationTimeoutError names the barrier and the rank that is missing",
    "test_monitored_barrier_": "torch refuses monitored_barrier to every backend that is not named gloo",
    "test_ddp_logging_data_cpu": 'torch logs every backend from outside as "custom"',
}


@dataclass
class Differences:
    """(layout, test, reason) of what failed, and of what was skipped over sites though Gloo ran it."""

    failures: list[tuple[str, str, str]] = field(default_factory=list)
    refused: list[tuple[str, str, str]] = field(default_factory=list)  # UnsupportedError: reference/compatibility.md
    inherent: list[tuple[str, str, str]] = field(default_factory=list)
    skips: list[tuple[str, str, str]] = field(default_factory=list)


def counts(records: dict[str, dict[str, Any]]) -> dict[str, int]:
    outcomes = [record["outcome"] for record in records.values()]
    return {name: outcomes.count(name) for name in ("passed", "skipped", "failed")}


def differences(results: Results) -> Differences:
    found = Differences()
    for layout, records in results.items():
        for test, record in records.items():
            entry = (layout, test, _last_line(record["reason"]))
            peer = over_gloo(results, layout).get(test, {}).get("outcome")
            if record["outcome"] == "failed" and layout.startswith("gloo"):
                found.inherent.append((layout, test, f"over Gloo itself: {entry[2]}"))
            elif record["outcome"] == "failed" and peer == "failed":
                found.inherent.append((layout, test, "over Gloo too"))
            elif record["outcome"] == "failed" and _inherent(test):
                found.inherent.append((layout, test, _inherent(test)))
            elif record["outcome"] == "failed":
                (found.refused if "UnsupportedError" in entry[2] else found.failures).append(entry)
            elif record["outcome"] == "skipped" and peer == "passed":
                found.skips.append(entry)
    return found


def _inherent(test: str) -> str:
    return next((reason for beginning, reason in INHERENT.items() if test.startswith(beginning)), "")


def over_gloo(results: Results, layout: str) -> dict[str, dict[str, Any]]:
    """The records of Gloo with as many ranks."""
    return results.get(f"gloo:{ranks_of(layout)}", {})


def summary(results: Results) -> list[str]:
    lines = [
        "| layout (ranks per site) | passed | skipped | failed | passed over Gloo, with as many ranks | seconds |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for layout, records in results.items():
        number = counts(records)
        peer = counts(over_gloo(results, layout))["passed"]
        seconds = sum(record["seconds"] for record in records.values())
        name = f"Gloo, {ranks_of(layout)} ranks" if layout.startswith("gloo") else layout
        lines.append(
            f"| {name} | {number['passed']} | {number['skipped']} | {number['failed']} | {peer} | {seconds:.0f} |"
        )
    return lines


def report(results: Results) -> str:
    """Markdown, with what it was run with."""
    import torch

    found = differences(results)
    over_sites = [records for layout, records in results.items() if not layout.startswith("gloo")]
    commits = sorted({record["commit"] for records in over_sites for record in records.values()})
    tests = max((len(records) for records in results.values()), default=0)
    lines = [
        "# PyTorch's own distributed tests over sites",
        "",
        f"- date: {datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')}",
        f"- torch {torch.__version__}, Python {platform.python_version()}, Linux {platform.release()}; CPU only",
        f"- commit: {', '.join(commits)}",
        "- command: `python tests/ecosystem/run_torch_suite.py`, in pieces",
        f"- `torch.testing._internal.distributed.distributed_test`, {tests} tests; codec none, loopback, no TLS;",
        "  what is skipped needs CUDA, torchvision or more ranks, but for what is listed",
        "",
        *summary(results),
        "",
        "## Failed over sites",
        *_list(found.failures),
        "",
        "## Refused over sites, with a reason",
        *_list(found.refused),
        "",
        "## Failed for reasons that are not geocomm's",
        *_list(found.inherent),
        "",
        "## Skipped over sites, though Gloo runs it",
        *_list(found.skips),
        "",
    ]
    return "\n".join(lines)


def _list(entries: list[tuple[str, str, str]]) -> list[str]:
    together: dict[tuple[str, str], list[str]] = {}
    for layout, test, reason in entries:
        together.setdefault((test, reason), []).append(layout)
    return [f"- `{test}` ({', '.join(layouts)}): {reason}" for (test, reason), layouts in together.items()] or ["none"]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "Error: " in line and not line.startswith("RuntimeError: Process ")]
    # What Gloo says where another rank has ended is not why that one did.
    causes = [line for line in errors if "caused by a remote worker" not in line]
    return ((causes or errors or lines or [""])[-1])[:300]

"""`geocomm hang`: who has not come to which operation."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import AsJson, TelemetryFolder, open_store, say, wait_option
from geocomm.core.units import duration_text

if TYPE_CHECKING:
    from geocomm.observe.diagnosis.stuck_operations import GroupRank, Hang, StuckOperation
    from geocomm.observe.telemetry.overview_rounds import RoundState


_MOST_LINES = 8

app = typer.Typer()


@app.command()
def hang(
    folder: TelemetryFolder = Path(),
    after: Annotated[float, wait_option("--after", "How long an operation or a round may be under way.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Say who has not come to which operation, while a job hangs or after it.

    Compares the operations between sites of all ranks: who has not called one, who called another, and whose bytes are
    missing. Of local steps: which rounds wait for whom. After the run: as of its last report.

    Exit status: 0 if nothing hangs, 1 if something does.

    Example:

        geocomm hang telemetry
    """
    from geocomm.observe.diagnosis.stuck_operations import find_hang
    from geocomm.observe.telemetry.overview import moment

    store = open_store(folder)
    now = time.time()
    found = find_hang(store, moment(store, now), after)
    if as_json:
        typer.echo(json.dumps({"found": found.found, **dataclasses.asdict(found)}))
    else:
        for line in told(found, now):
            say(line)
    raise typer.Exit(int(found.found))


def told(found: Hang, now: float) -> Iterator[str]:
    """What hangs, in plain words."""
    if now - found.at > 1:
        yield f"The last report came {duration_text(now - found.at)} ago. What follows was so then."
    groups = len({stuck.operation.group for stuck in found.operations})
    for stuck in found.operations:
        yield from _told_operation(stuck, several_groups=groups > 1)
    for state in found.rounds:
        yield _told_round(state)
    if not found.found:
        yield f"Nothing hangs: no operation has been under way for more than {duration_text(found.after_seconds)}."
    named = {(member.site, member.rank) for stuck in found.operations for member in stuck.members}
    for site, rank, seconds in found.silent:
        if (site, rank) not in named:
            yield f"rank {rank} (site {site}) has been silent for {duration_text(seconds)}."
    if not found.ranks:
        yield "No rank reports any more: all have ended."


def _told_operation(stuck: StuckOperation, *, several_groups: bool) -> Iterator[str]:
    from geocomm.observe.diagnosis.stuck_operations import CallState

    failed = [member for member in stuck.members if member.standing is CallState.FAILED]
    group = f" of group {stuck.operation.group & 0xFFFF:04x}" if several_groups else ""
    state = "failed" if failed else "is under way"
    yield f"{stuck.operation}{group} {state}; it was called {duration_text(stuck.seconds)} ago."
    if len(stuck.calls) > 1:
        for called, members in stuck.calls.items():
            yield f"  {_listed(members)} called {called}."
    for member in stuck.absent:
        yield f"  {member} has not come: {_why(member)}."
    for member in stuck.silent:
        yield f"  {member} had come, and has been silent for {duration_text(member.report_age_seconds)}."
    waiting = [
        member
        for member in stuck.members
        if member.standing in (CallState.WAITS, CallState.WAITS_INSIDE) and not member.is_silent
    ]
    for member in waiting[:_MOST_LINES]:
        yield f"  {member} {_waits(member)}."
    if len(waiting) > _MOST_LINES:
        yield f"  {len(waiting) - _MOST_LINES} more ranks wait."
    if failed:
        yield f"  It failed on {_listed(failed)}."
    if stuck.later:
        yield f"  {stuck.later} later operations of the group are under way behind it."


def _listed(members: Sequence[GroupRank]) -> str:
    more = f" and {len(members) - _MOST_LINES} more" if len(members) > _MOST_LINES else ""
    return ", ".join(map(str, members[:_MOST_LINES])) + more


def _why(member: GroupRank) -> str:
    if member.has_ended:
        reason = f"it has ended, {duration_text(member.report_age_seconds)} ago"
    elif member.is_silent:
        reason = f"it has been silent for {duration_text(member.report_age_seconds)}"
    else:
        reason = "it reports, so its program is elsewhere"
    if member.last is None or member.last_seconds is None:
        return f"{reason}; no operation of it is known"
    last = f"{reason}; its last operation was {member.last}"
    if member.last_runs:
        return f"{last}, called {duration_text(member.last_seconds)} ago and still under way"
    return f"{last}, which ended {duration_text(member.last_seconds)} ago"


def _waits(member: GroupRank) -> str:
    from geocomm.observe.diagnosis.stuck_operations import CallState

    where = " inside its site" if member.standing is CallState.WAITS_INSIDE else ""
    senders = [f"{'the rest' if sender.has_begun else 'bytes'} from {sender.peer}" for sender in member.waits_for]
    whom = f" for {', '.join(senders)}" if senders and not where else ""
    since = "" if member.seconds is None else f", since {duration_text(member.seconds)}"
    return f"waits{where}{whom}{since}"


def _told_round(state: RoundState) -> str:
    from geocomm.observe.telemetry.overview_rounds import Phase

    name = f"round {state.round} of fragment {state.fragment}"
    age = duration_text(state.age_seconds or 0)
    if state.phase is Phase.DUE:
        return f"{name} has been due for {age}, and has not begun at every site."
    if state.waits_for:
        return f"{name} has been under way for {age}: it waits for {', '.join(state.waits_for)}."
    return f"{name} has been under way for {age}: all frames are there, and it is not over."

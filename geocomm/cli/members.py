"""`geocomm members`: the sites of an elastic run."""

from __future__ import annotations

import asyncio
import json
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import AsJson, fail, journal_in, say
from geocomm.cli.run_options import (
    AddressOption,
    DataOption,
    DoubtOption,
    HeldOutOption,
    HubOption,
    JournalOption,
    KeysOption,
    LengthOption,
    ListenOption,
    MinSitesOption,
    WaitForOption,
    check_meeting,
    leader_settings,
    load_keys,
)
from geocomm.core.console import table_of
from geocomm.core.units import count_text, large_text

if TYPE_CHECKING:
    from geocomm.core.addresses import Address
    from geocomm.elastic.journal.run_state import RunState, SiteRecord
    from geocomm.elastic.leading.questions import LeaderAnswer, MembersAsked, RemovalAsked, SeenSite
    from geocomm.security.key_folder import Keys

_HELP = """Show the sites of an elastic run, remove one, or have another one lead.

Works at any site, with its run folder. The leader tells what the sites are doing now, if it answers.
"""
_RunDir = Annotated[Path, typer.Option(metavar="FOLDER", help="This site's folder of the run.")]

_MOVES_SHOWN = 20
_ROUNDS_SHOWN = 50
_ENTRIES_READ = 20_000

app = typer.Typer(name="members", help=_HELP, no_args_is_help=True)


@app.command()
def ls(run_dir: _RunDir, as_json: AsJson = False) -> None:
    """List the sites: what they are, where they stand, and what counted of them.

    since: the entry of the journal that made it so. tokens: read by its last frame that counted. dealt: tokens that it
    reads next, of a run with --data. in: fragments whose last round counted the site. heard: ago.

    Example:

        geocomm members ls --run-dir run
    """
    state = _state(run_dir)
    answer, seen = _asked(run_dir, state)
    problem = answer.problem
    rows = [_row(record, state, seen.get(record.name)) for record in sorted(state.sites.values(), key=lambda r: r.name)]
    if as_json:
        told = {"head": state.head.index, "step": state.step, "sites": rows, "leader": problem or "ok"}
        typer.echo(json.dumps(told | {"waits": answer.waits, "undealt_tokens": answer.undealt_tokens}))
        return
    run = "-" if state.genesis is None else state.genesis.run[:8]
    tokens = sum(record.taken for record in state.sites.values())
    counted = f", {count_text(tokens, 'token')}" if tokens else ""
    if answer.undealt_tokens is not None:
        left = answer.undealt_tokens + sum(state.left_tokens(name) for name in state.sites)
        counted += f", {large_text(left)} left of this pass"
    ended = ", ended" if state.ended else ""
    title = f"run {run}, entry {state.head.index}{counted}{ended}"
    cells = [[_cell(row[name]) for name in _COLUMNS] for row in rows]
    say(table_of(_COLUMNS, cells, title=title, text=("state",), folds=("why",)))
    for wait in answer.waits:
        say(wait, "yellow")
    if problem and not state.ended:
        _say_leader_is_away(problem)


def _say_leader_is_away(problem: str) -> None:
    advice = "Start its site again; if that is gone, promote another one: geocomm members promote --help"
    say(f"The leader does not answer: {problem}. {advice}", "yellow", err=True)


_COLUMNS = (
    *("site", "state", "since", "rounds", "weight", "tokens", "dealt"),
    *("in", "step", "heard", "s/step", "GiB", "why"),
)


def _cell(value: str | int | float | None) -> str:
    """80 columns hold a row. --json has all digits."""
    return large_text(value) if isinstance(value, int) else "" if value is None else str(value)


def _row(record: SiteRecord, state: RunState, seen: SeenSite | None) -> dict[str, str | int | float | None]:
    listed = [one for one in state.rounds.values() if record.name in [member.site for member in one.members]]
    beat = None if seen is None or not seen.connected else seen.beat
    return {
        "site": record.name,
        "state": str(record.standing),
        "since": record.since,
        "rounds": record.rounds,
        "weight": record.weight,
        "tokens": record.taken or None,
        "dealt": None if state.data_in_force is None else state.left_tokens(record.name),
        "in": f"{len(listed)}/{len(state.versions)}",
        "step": None if beat is None else beat.step,
        "heard": None if seen is None else f"{seen.heard_s:.0f} s",
        "s/step": None if beat is None else round(beat.step_s, 3),
        "GiB": None if beat is None else round(beat.free_bytes / 2**30, 1),
        "why": record.why if seen is None else seen.waits or record.why,
    }


@app.command()
def show(
    site: Annotated[str, typer.Argument(metavar="SITE")],
    run_dir: _RunDir,
    as_json: AsJson = False,
) -> None:
    """Show one site: what it does now, when it came and went, and in how many of the last rounds it counted.

    The last 20,000 entries of the journal are read.

    Example:

        geocomm members show tokyo --run-dir run
    """
    from geocomm.cli.log import told
    from geocomm.elastic.journal.entries import AnyRound, Away, Deal, Join, Left, Ready, Removed, TakenBack

    state, moves, rounds = _state(run_dir), deque[str](maxlen=_MOVES_SHOWN), deque[AnyRound](maxlen=_ROUNDS_SHOWN)
    record = state.sites.get(site)
    if record is None:
        fail("members show", f"the run has no site {site}; it has {', '.join(sorted(state.sites)) or 'none'}")
    with journal_in(run_dir) as journal:
        for entry in journal.read(max(0, state.head.index - _ENTRIES_READ)):
            if isinstance(entry, AnyRound):
                rounds.append(entry)
            elif isinstance(entry, Join | Ready | Away | Left | Removed | Deal | TakenBack) and entry.site == site:
                moves.append(f"{entry.index:>6} {told(entry)}")
    answer, seen = _asked(run_dir, state)
    problem = answer.problem
    row = _row(record, state, seen.get(site))
    row["address"] = seen[site].fetch if site in seen else None
    row["store"] = record.store
    row[f"of the last {count_text(len(rounds), 'round')}"] = sum(
        site in [one.site for one in entry.members] for entry in rounds
    )
    if as_json:
        typer.echo(json.dumps(row | {"moves": list(moves), "leader": problem or "ok"}))
        return
    for name, value in row.items():
        if value not in (None, ""):
            say(f"{name:>24}  {value}")
    say("\n".join(moves))
    if problem and not state.ended:
        _say_leader_is_away(problem)


@app.command()
def remove(
    site: Annotated[str, typer.Argument(help="It may not come back.")],
    run_dir: _RunDir,
    why: Annotated[str, typer.Option(help="For the journal.")] = "removed by hand",
) -> None:
    """Remove a site from the run for good: what counted of it stays.

    Example:

        geocomm members remove virginia --run-dir run --why "sold"
    """
    from geocomm.elastic.leading.questions import RemovalAsked

    answer = _ask(run_dir, _state(run_dir), RemovalAsked(site=site, why=why))
    if isinstance(answer, str):
        fail("members", f"the leader does not answer: {answer}")
    if answer.problem:
        fail("members", answer.problem)
    say(f"{site} is removed")


@app.command()
def lead(
    run_dir: _RunDir,
    hub: HubOption = None,
    journal: JournalOption = "",
    address: AddressOption = "",
    listen: ListenOption = None,
    keys: KeysOption = None,
    wait_for: WaitForOption = "",
    min_sites: MinSitesOption = 1,
    data: DataOption = "",
    sequence_length: LengthOption = 0,
    held_out_fraction: HeldOutOption = 0.0,
    doubt: DoubtOption = 60,
) -> None:
    """Lead a run from a machine that trains nothing itself.

    SIGTERM ends it, with exit status 0.

    Example:

        geocomm members lead --hub 192.0.2.10:29400 --run-dir run --wait-for frankfurt,virginia
    """
    from geocomm.elastic.agent_process import AgentConfig

    if (hub is None) == (not journal):
        fail("members", "--hub HOST:PORT says where this machine leads; --journal may instead")
    check_meeting(hub, address, journal)
    config = AgentConfig(
        leader=hub or "",
        journal=journal,
        address=address,
        keys=str(load_keys(keys).folder.resolve()),
        run_dir=str(run_dir),
        listen=listen,
        lead=not journal,
        ranks=False,
        terms=leader_settings(wait_for, min_sites, data, sequence_length, held_out_fraction, doubt),
    )
    command = config.command()
    os.execv(command[0], command)


@app.command()
def promote(
    run_dir: _RunDir,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where other sites reach this one, if not at its own address.")
    ] = "",
    force: Annotated[
        bool, typer.Option("--force", help="Also where half of the sites or more are not reached.")
    ] = False,
) -> None:
    """Have this site lead the run, since its leader is gone for good.

    Its agent has to run. It takes the longest journal among the sites that it reaches. The others follow within 20 s,
    the former leader when it comes back.

    Exit status: 0; 2 where it is refused: the leader answers, or half of the sites or more are not reached.

    Example:

        geocomm members promote --run-dir run
    """
    from geocomm.elastic.leading.questions import PROMOTION_LIMIT_S, PromotionAnswer, PromotionAsked, ask

    _state(run_dir)
    try:
        _, agent, keys = _about(run_dir)
        asked = PromotionAsked(address=address, force=force)
        answer = asyncio.run(ask(agent, keys, asked, PromotionAnswer, PROMOTION_LIMIT_S))
    except (OSError, ValueError, KeyError) as error:
        fail(
            "members",
            f"the agent of this site does not answer ({str(error) or type(error).__name__}): start geocomm run "
            "--elastic with this run folder first",
        )
    if answer.problem:
        fail("members", answer.problem)
    say(f"This site leads the run at {answer.address}, term {answer.term}.")
    say(f"Sites that join from now on need --hub {answer.address}; those of the run find it.")
    if answer.away:
        say(f"Not reached: {', '.join(answer.away)}. What only they had is lost.")


def _state(run_dir: Path) -> RunState:
    with journal_in(run_dir) as journal:
        return journal.state()


def _asked(run_dir: Path, state: RunState) -> tuple[LeaderAnswer, dict[str, SeenSite]]:
    """What the leader sees, or in its answer's `problem` why it does not answer; and the sites of that by name."""
    from geocomm.elastic.leading.questions import LeaderAnswer, MembersAsked

    told = _ask(run_dir, state, MembersAsked())
    answer = LeaderAnswer(problem=told) if isinstance(told, str) else told
    return answer, {one.site: one for one in answer.sites}


def _ask(run_dir: Path, state: RunState, question: MembersAsked | RemovalAsked) -> LeaderAnswer | str:
    """The leader's answer, or why there is none."""
    from geocomm.core.addresses import Address
    from geocomm.elastic.leading.questions import LeaderAnswer, ask

    try:
        hub, _, keys = _about(run_dir)
        leader = hub if state.taken_over is None else Address.parse(state.taken_over.address)
        return asyncio.run(ask(leader, keys, question, LeaderAnswer))
    except (OSError, ValueError, KeyError) as error:
        return str(error) or type(error).__name__


def _about(run_dir: Path) -> tuple[Address, Address, Keys]:
    """Where the leader was at the start, where this site's agent is, and the site's keys."""
    from geocomm.core.addresses import Address
    from geocomm.elastic.files.known_agents import About
    from geocomm.security.key_folder import Keys

    said = About.read(run_dir)
    return Address.parse(said.leader), Address.parse(said.agent), Keys.load(said.keys)

"""The process of an agent: its sockets, its lock on the run folder, and how it ends.

`python -m geocomm.elastic.agent_process CONFIG`, where CONFIG is an `AgentConfig` as JSON. SIGTERM: the site leaves; a
second one: at once. Its supervisor says the same by signals of its own, LEAVE and AT_ONCE.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import NoReturn

from geocomm.core.addresses import Address, AddressError, is_loopback, reached_here
from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
from geocomm.core.file_systems import FolderInUseError, held_by_one
from geocomm.core.message_log import add_field, log, tell
from geocomm.core.records import Record, line_of
from geocomm.data.deal_records import DealtSet
from geocomm.elastic.files.fragment_store import FragmentStore, StoreError
from geocomm.elastic.files.known_agents import About, KnownAgents, TermNotKeptError
from geocomm.elastic.files.snapshot_copies import SnapshotCopies, copy_kept_snapshots
from geocomm.elastic.files.snapshots import SnapshotError
from geocomm.elastic.journal.entries import BadLineError
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import RunState
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from geocomm.elastic.leading.etcd import EtcdAddress, EtcdAddressError, LeaderSaid
from geocomm.elastic.leading.etcd_leadership import EtcdLeadership
from geocomm.elastic.leading.leader import Leader, LeaderChanged
from geocomm.elastic.leading.leadership import Begun, HubLeadership, Leadership
from geocomm.elastic.site.agent import Agent
from geocomm.elastic.site.journal_of_others import fetch_if_damaged
from geocomm.elastic.site.rank_socket import RankServer
from geocomm.elastic.site.run_view import AgentEnded
from geocomm.group.membership.own_address import own_addresses
from geocomm.group.planning.regions import regions_text
from geocomm.metrics.own_counters import keep_counters
from geocomm.security.key_folder import Keys, KeysError
from geocomm.wire.doorway import Doorway, raise_descriptor_limit

DEFAULT_PORT = 29400
LAST_STEPS_S = 30.0
"""How long the ranks of a site that leaves have to make their last steps count."""
LEAVE_LIMIT_S = 35.0
"""How long a site that leaves gives its last offers to count."""
_QUIET_S = 4.0
"""An agent that has left ends once nobody has asked it for a frame for this time: others miss one after a second of
silence, and dial three round trips."""
_LEAST_QUIET_S = 0.001
"""A wait that rounding leaves may be shorter than a clock's tick: no time passes in it."""
_LINGER_S = 60.0
"""And after this time in any case: a frame of its last round may be on no other disk."""
_ALONE_LIMIT_S = 3.0
_SENT_LIMIT_S = 5.0
_SAME_SIGTERM_S = 1.0
LEAVE, AT_ONCE = signal.SIGUSR1, signal.SIGUSR2
"""What a supervisor tells its agent by. LEAVE may come again, and beside a SIGTERM to all processes of a site."""
TOLD_BY = (signal.SIGTERM, LEAVE, AT_ONCE)
"""The signals that are held back until the agent can leave in good order."""
_DISK_PAUSE_S = 5.0


class AgentConfig(Record):
    """What an agent is to do: what `geocomm run --elastic` and `geocomm members lead` were told of the run."""

    leader: str = ""
    """host:port, the same at all sites; empty: etcd says who leads."""
    journal: str = ""
    """In etcd, etcd://host:port,host:port/name."""
    address: str = ""
    """With `journal`: host:port where the other sites reach this one; empty: its own address."""
    may_lead: bool = True
    """With `journal`: the other sites reach this one, so that it may lead."""
    keys: str
    run_dir: str
    """Where the site keeps its part of the run."""
    listen: str | None = None
    """address:port; None: the leader's port number on all addresses, or 29400."""
    lead: bool = False
    """It leads, though the leader's host is no address of this machine (a translated one). With `journal`: etcd may get
    from its run folder what it lacks of the run."""
    ranks: bool = True
    """False: it leads without ranks of its own, and is no member of the run."""
    terms: LeaderSettings = LeaderSettings()
    """Of the run, where this agent leads it."""
    snapshot_url: str = ""
    """Where each kept snapshot is copied to; empty: nowhere."""
    again: bool = False
    """The agent of this run folder has just died: who led a moment ago leads on, and asks the others meanwhile."""

    @property
    def own_hosts(self) -> list[str]:
        """This machine's addresses on the way to where the sites meet; loopback only where there is no other."""
        meeting = EtcdAddress.parse(self.journal).servers[0] if self.journal else Address.parse(self.leader)
        hosts = own_addresses(meeting.host)
        return [host for host in hosts if not is_loopback(host)] or hosts

    def command(self) -> list[str]:
        """What runs such an agent."""
        return [sys.executable, "-m", "geocomm.elastic.agent_process", line_of(self)]


def leadership_of(config: AgentConfig, store: FragmentStore, keys: Keys) -> Leadership:
    """The leadership of the kind that the run has. EtcdAddressError: etcd cannot be used."""
    if not config.journal:
        lead = config.lead or not config.ranks
        return HubLeadership(config.leader, config.listen, store.run_dir, keys, lead=lead, again=config.again)
    listen = config.listen or f"[::]:{DEFAULT_PORT}"
    address = config.address or str(Address(config.own_hosts[0], int(listen.rpartition(":")[2])))
    own = LeaderSaid(site=keys.identity.site, store=store.store_id, address=address)
    return EtcdLeadership(
        EtcdAddress.parse(config.journal), own, listen, keys, log, may_lead=config.may_lead, fills=config.lead
    )


async def run_agent(config: AgentConfig, store: FragmentStore, keys: Keys) -> None:
    """Run it until the site's part is over. AgentEnded where that is not in good order, and what may be raised by its
    sockets and files."""
    leaving = asyncio.Event()
    _leave_on_signals(leaving)
    leadership = leadership_of(config, store, keys)
    try:
        while await fetch_if_damaged(store, config.leader, keys, leaving):
            try:
                with contextlib.closing(SqliteJournal(store.files.journal)) as journal:
                    known = KnownAgents(store.run_dir, log)
                    begun = await leadership.begin(journal, known, leaving)
                    if begun is not None:
                        await _run_once(config, store, keys, journal, known, leaving, leadership, begun)
                return
            except LeaderChanged as change:
                log(str(change))
    finally:
        await leadership.resign()


def _leave_on_signals(leaving: asyncio.Event) -> None:
    """systemd sends SIGTERM to every process of a site, and the supervisor says so too, a moment later: that is one."""
    loop = asyncio.get_running_loop()
    is_told, again_from = False, math.inf

    def leave() -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            leaving.set()

    def terminate() -> None:
        nonlocal again_from
        if loop.time() >= again_from:
            leaving.set()
        elif again_from == math.inf:
            again_from = loop.time() + _SAME_SIGTERM_S
            leave()

    loop.add_signal_handler(signal.SIGTERM, terminate)
    loop.add_signal_handler(LEAVE, leave)
    loop.add_signal_handler(AT_ONCE, leaving.set)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD_BY)  # the supervisor has them held back until here


async def _run_once(
    config: AgentConfig,
    store: FragmentStore,
    keys: Keys,
    journal: SqliteJournal,
    known: KnownAgents,
    leaving: asyncio.Event,
    leadership: Leadership,
    begun: Begun,
) -> None:
    """Until another site leads, or this one: LeaderChanged."""
    await _require_data(config.terms.data, begun)
    own_at = reached_here(begun.listener)
    About(
        leader=begun.leader,
        agent=str(own_at),
        keys=str(Path(config.keys).resolve()),
        site=keys.identity.site,
        leads=begun.leads,
        journal=config.journal,
    ).write(store.run_dir)
    add_field("site", lambda: keys.identity.site)
    add_field("term", lambda: begun.state.term)
    add_field("entry", lambda: begun.state.head.index)
    leader = None
    if begun.leads:
        at = known.leader or begun.leader
        log(f"this site's agent leads the run at {at}")
        if config.terms.regions:
            log(f"between regions goes one copy of each frame: {regions_text(config.terms.regions)}")
        leader = Leader(journal, config.terms, at, known, log, begun.shared, begun.term)
    elif not config.ranks and not leadership.passes_on:
        raise AgentEnded(
            f"another site leads the run since term {known.term}, at {known.leader}: a machine without ranks has "
            "nothing to do",
            refused=True,
        )
    agent = Agent(
        begun.leader,
        known,
        keys,
        store,
        journal,
        begun.state,
        own_at,
        leader,
        ranks=config.ranks,
        passes_on=leadership.passes_on,
    )
    works = [
        Doorway(begun.listener, keys, agent.serve_connection, log).serve(),
        leadership.watch(begun, journal, known, agent.following.hear),
        keep_counters(store.run_dir, "agent", agent.counted),
    ]
    if leader is not None:
        works += [leader.lead(), agent.following.tell_others()]
    if config.ranks:
        ranks = RankServer(store.files.agent_socket, agent.rank_came, agent.rank_said, agent.rank_gone, log)
        works.append(ranks.serve())
    if config.terms.data is not None:
        works.append(_refuse_other_data(config.terms.data, begun.state))
    tasks = [asyncio.create_task(work) for work in works]
    following: asyncio.Task[None] | None = None
    if config.ranks or leader is None:  # one without ranks has what it needs to lead, once nobody does
        following = asyncio.create_task(agent.run())
        tasks.append(following)
    tasks.append(asyncio.create_task(_leave(agent, leader, config.ranks, leaving, leadership.passes_on)))
    sent_limit_s = _SENT_LIMIT_S
    try:
        await asyncio.wait([*tasks, agent.life.ended], return_when=asyncio.FIRST_COMPLETED)
        for done in (agent.life.ended, *tasks):
            if done.done():
                done.result()
    except AgentEnded as end:
        if end.refused:
            await agent.stop_ranks(str(end))
            raise
        if others := agent.others:
            # The leader has closed the connection: who dials again would join, and leave once more.
            if following is not None:
                following.cancel()
                await asyncio.gather(following, return_exceptions=True)
            log(f"this site has left; it gives out its last frames to {', '.join(others)}")
            await _give_out(agent, leaving)
    except LeaderChanged:
        sent_limit_s = 0.0
        if agent.asked_to_leave:
            leaving.set()
        raise
    finally:
        if leader is not None:
            await leader.sent(sent_limit_s)
        for task in tasks:
            task.cancel()
        agent.life.ended.cancel()
        await asyncio.gather(*tasks, agent.life.ended, return_exceptions=True)


async def _require_data(data: DealtSet | None, begun: Begun) -> None:
    """AgentEnded: this site is to lead with a data set that the run cannot have."""
    if data is None:
        return
    from geocomm.data.catalog import Catalog  # brings numpy, which agents do without

    _require_equal(data, begun.state)
    if begun.leads and not begun.state.data:
        if any(begun.state.versions):
            raise _without_data(data)
        try:
            await asyncio.to_thread(Catalog(data.set).read)
        except (BadInput, OSError) as error:
            raise AgentEnded(f"--data: {error}", refused=True) from None


async def _refuse_other_data(data: DealtSet, state: RunState) -> None:
    """AgentEnded: the run that this site comes into has another data set."""
    while not state.data:
        if state.head.index > 0:  # a run's data set comes with its first entry
            raise _without_data(data)
        await asyncio.sleep(0.2)
    _require_equal(data, state)
    await asyncio.Event().wait()


def _without_data(data: DealtSet) -> AgentEnded:
    return AgentEnded(
        f"--data {data.set}: this run has begun without a data set. Leave --data out, or begin a new run, whose first "
        "leader has --data",
        refused=True,
    )


def _require_equal(data: DealtSet, state: RunState) -> None:
    if (run := state.data_in_force) is None:
        return
    for what, here, there in (
        ("--data", data.set, run.set),
        ("--sequence-length", data.sequence_length, run.sequence_length),
        ("--held-out-fraction: one of", data.held_out_every, run.held_out_every),
    ):
        if here != there:
            raise AgentEnded(
                f"{what} {here} here, and {there} in the run: say what the run has, or nothing", refused=True
            )


async def _leave(agent: Agent, leader: Leader | None, has_ranks: bool, asked: asyncio.Event, passes_on: bool) -> None:
    """Returns when a site that was asked to leave, by SIGTERM, need not wait any more."""
    await asked.wait()
    asked.clear()
    agent.asked_to_leave = True
    if has_ranks:
        if agent.ask_ranks_to_leave():
            log("this site leaves, once its last steps have counted; a second signal: at once")
            await _either(asked, LAST_STEPS_S, agent.left, agent.ranks_ended)
        agent.leave()
        await _either(asked, LEAVE_LIMIT_S if agent.is_followed else _ALONE_LIMIT_S, agent.left)
    if not (others := agent.others):
        return
    if leader is not None and (connected := leader.others_connected(agent.site)):
        waits = "until nobody asks for its last frames"
        what = waits if passes_on else "a second signal ends it, and rounds stand until it is back"
        log(f"this agent leads on for {', '.join(connected)}; {what}")
    else:
        log(f"this agent gives out its last frames to {', '.join(others)}")

    def leads_on() -> bool:
        return leader is not None and not passes_on and bool(leader.others_connected(agent.site))

    is_over = False
    while not is_over:
        while leads_on():
            if await _either(asked, 1.0):
                return
        # An agent that has just died comes back.
        is_over = await _give_out(agent, asked) or not leads_on()


async def _give_out(agent: Agent, asked: asyncio.Event) -> bool:
    """Wait until nobody gets frames here any more, or for `asked`: whether that came."""
    begin = time.monotonic()
    while (now := time.monotonic()) < begin + _LINGER_S:
        quiet_s = now - max(begin, agent.files.idle_since)
        if quiet_s >= _QUIET_S:
            break
        if await _either(asked, max(_LEAST_QUIET_S, _QUIET_S - quiet_s)):
            return True
    return False


async def _either(asked: asyncio.Event, limit_s: float, *done: asyncio.Event) -> bool:
    """Wait for one of these; whether it was `asked`."""
    waits = [asyncio.create_task(event.wait()) for event in (asked, *done)]
    await asyncio.wait(waits, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    return asked.is_set()


def main() -> None:
    """Entry of the process. Exits with 0: the site has left; 2: it cannot take part, which a line says; another status:
    an error, after which the next agent goes on."""
    config = AgentConfig.model_validate_json(sys.argv[1])
    # A signal to the whole group is for the supervisor, which tells this process what to do.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise_descriptor_limit()
    try:
        keys = Keys.load(config.keys)
        store = FragmentStore(config.run_dir)
        with held_by_one(store.files.agent_lock):
            store.sweep()
            if config.snapshot_url:
                copy_kept_snapshots(SnapshotCopies(config.snapshot_url), store, log)
            asyncio.run(run_agent(config, store, keys))
    except FolderInUseError as error:
        _refuse(f"{config.run_dir} is in use by another agent ({error}): give each site a run folder of its own")
    except (
        SnapshotError,
        StoreError,
        NoJournalError,
        KeysError,
        AddressError,
        EtcdAddressError,
        AgentEnded,
    ) as error:
        _refuse(str(error))
    except (sqlite3.OperationalError, TermNotKeptError, OSError) as error:
        what = f"the journal in {config.run_dir}: " if isinstance(error, sqlite3.Error) else ""
        log(
            f"{what}{error}. This site trains on and does not count. The agent starts again in {_DISK_PAUSE_S:g} s; if "
            "a disk is full, free room there"
        )
        time.sleep(_DISK_PAUSE_S)
        sys.exit(1)
    except (sqlite3.DatabaseError, BadLineError) as error:
        log(f"the journal in {config.run_dir} cannot be read: {error}. The next agent looks at all of it")
        sys.exit(1)


def _refuse(why: str) -> NoReturn:
    tell("agent", why)
    sys.exit(EXIT_BAD_INPUT)


if __name__ == "__main__":
    main()

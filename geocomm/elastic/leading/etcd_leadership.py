"""How an agent of a run whose journal is in etcd learns who leads, and leads where nobody does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from geocomm.core.addresses import listen_on
from geocomm.core.patience import Waiting, until_one_ends
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.journal.entries import EMPTY, BadLineError, Head
from geocomm.elastic.journal.journal import HeadMovedError, NoJournalError, SqliteJournal
from geocomm.elastic.leading.etcd import Election, Etcd, EtcdAddress, EtcdAwayError, EtcdJournal, LeaderSaid, Leading
from geocomm.elastic.leading.leader import LeaderChanged
from geocomm.elastic.leading.leadership import Begun
from geocomm.elastic.leading.questions import StandingAsked, standings
from geocomm.security.key_folder import Keys

LOOK_S = 1.0
"""From one look at etcd to the next."""
_ASK_LIMIT_S = 3.0


class EtcdLeadership:
    """Leads who has the lease in etcd."""

    passes_on = True

    def __init__(
        self,
        address: EtcdAddress,
        own: LeaderSaid,
        listen: str,
        keys: Keys,
        log: Callable[[str], None],
        *,
        may_lead: bool,
        fills: bool,
    ) -> None:
        """listen: address:port. fills: etcd may get from this run folder what it lacks of the run. EtcdAddressError:
        the client library, or a file of TLS, is missing."""
        self._own, self._may_lead, self._fills, self._log = own, may_lead, fills, log
        self._keys = keys
        self._address, self._listen = address, listen
        # Two, since each is used by one thread at a time.
        self._for_election, self._for_entries = Etcd(address), Etcd(address)
        self._election = Election(self._for_election, own)
        if not self._for_election.encrypted:
            log(f"{address} is spoken to without TLS: GEOCOMM_ETCD_CA names the file of its authority")

    async def begin(self, journal: SqliteJournal, known: KnownAgents, leaving: asyncio.Event) -> Begun | None:
        """Lead where nobody does: the own journal has all of the run's then. Where etcd is away, the leader is the last
        known one."""
        waiting = Waiting(self._log)
        while not leaving.is_set():
            reason = "nobody leads, and this site may not"
            try:
                await self._check(journal)
                leading = await self._leader_now(journal, known)
                if leading is not None:
                    known.saw(leading.term, leading.said.address)
                    if not self._is_own(leading):
                        return self._begun(journal, leading.said.address)
                    taking_over = asyncio.ensure_future(self._take_over(journal, leading))
                    await until_one_ends(taking_over, self._keep(leading.term))  # a long journal takes long
                    return self._begun(journal, leading.said.address, leading.term, taking_over.result())
            except HeadMovedError as error:
                reason = str(error)
            except EtcdAwayError as error:
                reason = str(error)
                if known.leader:
                    return self._begun(journal, known.leader)
            waiting.tell(lambda reason=reason: f"{self._address} to name a leader ({reason})")
            await asyncio.sleep(LOOK_S)
        return None

    def _begun(self, journal: SqliteJournal, leader: str, term: int = 0, shared: EtcdJournal | None = None) -> Begun:
        return Begun(journal.state(), listen_on(self._listen), leader, bool(term), term, shared)

    async def _check(self, journal: SqliteJournal, *, to_lead: bool = False) -> None:
        """Check that etcd has all of `journal`. EtcdAwayError: it lacks the end; or, to lead, the next entry was
        deleted. NoJournalError: it has another run."""
        own = journal.head
        found = await asyncio.to_thread(EtcdJournal, self._for_election)
        common = min(own.index, found.head.index)
        first = await asyncio.to_thread(lambda: found.first)
        if first > own.index + 1:
            if to_lead:
                raise EtcdAwayError(
                    f"its entries before {first} were deleted, and this run folder has {own.index + 1}: a site that "
                    "has them leads first, and gives them"
                )
        elif 0 <= common < journal.base.index:
            raise NoJournalError(
                f"{self._address} has {common + 1} entries, and this run folder none before {journal.base.index + 1} "
                "any more: name another one after the last / of --journal"
            )
        elif (there := await asyncio.to_thread(found.hash_at, common)) is None:
            raise EtcdAwayError(f"its entries have changed while this site looked for entry {common}")
        elif there != journal.hash_at(common):
            raise NoJournalError(
                f"{self._address} has {found.head.index + 1} entries, and another entry {common} than this run folder: "
                "it is another run, or has gone on from a backup. Name another one after the last / of --journal, or "
                "take an empty run folder"
            )
        if common < own.index and not self._fills:
            raise EtcdAwayError(
                f"it has {common + 1} entries of this run, and this run folder {own.index + 1}: start the site that "
                "has the most entries with --lead, which gives them to etcd"
            )

    async def _leave_it_to_others(self, journal: SqliteJournal, known: KnownAgents) -> None:
        """EtcdAwayError: etcd lacks entries, and another site has more of them: this one was told to give its own when
        etcd had lost some before."""
        head, state = journal.head, journal.state()
        found = await asyncio.to_thread(EtcdJournal, self._for_election)
        if found.head.index >= head.index or state.genesis is None:
            return
        asked = StandingAsked(run=state.genesis.run, term=known.term, leader=known.leader)
        others = {address for name, address in known.addresses.items() if name != self._own.site}
        for one in (await standings(others, self._keys, asked, _ASK_LIMIT_S)).values():
            if one.run == asked.run and (one.chain, one.head) > (state.term, head.index):
                raise EtcdAwayError(
                    f"it has {found.head.index + 1} entries of this run, this run folder {head.index + 1}, and site "
                    f"{one.site} {one.head + 1}: start that one with --lead, which gives them to etcd"
                )

    def _is_own(self, leading: Leading) -> bool:
        return self._may_lead and leading.said.store == self._own.store

    async def _keep(self, term: int) -> None:
        """Keep the lease of a term."""
        while True:
            await asyncio.sleep(LOOK_S)
            with contextlib.suppress(EtcdAwayError):
                await asyncio.to_thread(self._election.keep, term)

    async def _take_over(self, journal: SqliteJournal, leading: Leading) -> EtcdJournal:
        """Bring the own journal to the end of the run's, and begin the term there."""
        shared = await asyncio.to_thread(EtcdJournal, self._for_entries, leading.revision)
        if shared.head == EMPTY:
            before = max([journal.base.index, *(kept - 1 for kept in journal.state().kept)])
            await asyncio.to_thread(shared.begin_after, Head(before, journal.hash_at(before) or ""))
        own = list(journal.read(shared.head.index + 1))
        await asyncio.to_thread(shared.append_all, own, shared.head)
        for entry in await asyncio.to_thread(lambda: list(shared.read(journal.head.index + 1))):
            journal.append(entry, journal.head)
        if (head := journal.head) != EMPTY and not journal.state().ended:
            try:
                entry = journal.term_begun(leading.term, self._own.site, self._own.address)
            except BadLineError as error:
                raise EtcdAwayError(
                    f"{error}: it was restored from a backup; start the site that has the most entries with --lead, "
                    "which gives them to etcd"
                ) from None
            await asyncio.to_thread(shared.append, entry, head)
            journal.append(entry, head)
        return shared

    async def watch(
        self, begun: Begun, journal: SqliteJournal, known: KnownAgents, hear: Callable[[int, str], None]
    ) -> None:
        """Keep the lease of this agent's term, or lead where nobody does."""
        term, waiting = begun.term, Waiting(self._log)
        while True:
            await asyncio.sleep(LOOK_S)
            try:
                if term:
                    if not await asyncio.to_thread(self._election.keep, term):
                        raise LeaderChanged(f"this site leads no more: etcd has no lease of term {term} any more")
                elif (leading := await self._leader_now(journal, known)) is not None:
                    if self._is_own(leading):
                        raise LeaderChanged("nobody led the run: this site's agent takes over")
                    hear(leading.term, leading.said.address)
                waiting = Waiting(self._log)
            except EtcdAwayError as error:
                if not term:  # else what waits for an entry says so
                    waiting.tell(
                        lambda error=error: (
                            f"{self._address} ({error}); rounds stand still if the leader waits for it too, and "
                            "training goes on meanwhile"
                        )
                    )

    async def _leader_now(self, journal: SqliteJournal, known: KnownAgents) -> Leading | None:
        leading = await asyncio.to_thread(self._election.leader)
        if self._may_lead and (leading is None or self._is_own(leading)):  # that was this site's last agent
            await self._check(journal, to_lead=True)
            if self._fills:
                await self._leave_it_to_others(journal, known)
            leading = await asyncio.to_thread(self._election.stand)
        term = max(known.term, journal.state().term)
        if leading is not None and leading.term < term:  # etcd was restored, or is new: nobody follows such a term
            await asyncio.to_thread(self._election.stand_again, leading, term)
            leading = await asyncio.to_thread(self._election.leader)
        return leading

    async def resign(self) -> None:
        """End the lease."""
        await asyncio.to_thread(self._election.resign)

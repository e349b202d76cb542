"""An agent whose journal's file is damaged fetches the journal whole from another site, before it leads or follows.

From the leader, where one answers. Else from the site that has most, once so many sites have answered that an entry
which most members hold is at one of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from geocomm.core.addresses import Address, AddressError
from geocomm.core.message_log import log
from geocomm.core.patience import Waiting, comes
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.files.known_agents import KnownAgents
from geocomm.elastic.files.snapshots import Snapshots
from geocomm.elastic.journal.admission import are_most, members_of
from geocomm.elastic.journal.entries import BadLineError, Entry
from geocomm.elastic.journal.journal import DamagedJournalError, NoJournalError, SqliteJournal, is_of_disk
from geocomm.elastic.leading.questions import AgentStanding, StandingAsked, read_journal, standings
from geocomm.elastic.site.join_states import said_digests
from geocomm.security.key_folder import Keys, KeysError

_ASK_LIMIT_S = 5.0
_PAUSE_S = 1.0


async def fetch_if_damaged(store: FragmentStore, hub: str, keys: Keys, leaving: asyncio.Event) -> bool:
    """Have a journal here that is whole, or none. hub: where all sites look for the leader at the start; empty: etcd
    says that. False: the site was asked to leave before. NoJournalError: it is damaged, and no other site is known."""
    path, site = store.files.journal, keys.identity.site
    known = KnownAgents(store.run_dir, log)
    has_run = any(name != site for name in known.addresses)  # else there may be no journal yet, or something else
    if not (why := await asyncio.to_thread(_damage, path, has_run=has_run)):
        return True
    addresses = {at for name, at in known.addresses.items() if name != site} | {known.leader or hub, hub} - {""}
    told = (
        f"{path} is damaged ({why}). geocomm snapshot restore goes back to a snapshot. Where another site leads, or is "
        "promoted, this one may start with an empty run folder"
    )
    if not addresses - {known.addresses.get(site, "")}:
        raise NoJournalError(f"{told}. No other site is known that has it")
    log(f"{told}. It is fetched from another site")
    waiting = Waiting(log)
    part = path.with_name(f".{path.name}.part")
    while not leaving.is_set():
        asked = StandingAsked(run=None, term=known.term, leader=known.leader or hub)
        answered = await standings(addresses, keys, asked, _ASK_LIMIT_S)
        found = {
            at: one for at, one in answered.items() if one.run == (known.run or one.run or "") and one.site != site
        }
        reason = "" if found else "none that answers has a journal of this run" if answered else "none answers"
        order = sorted(found.items(), key=lambda one: (_leads(one[1], known), one[1].chain, one[1].head), reverse=True)
        for at, one in order:
            _remove(part)
            try:
                with contextlib.closing(SqliteJournal(part)) as made:
                    add = partial(_add, made)
                    await read_journal(Address.parse(at), keys, 0, made.begin_at, add)
                    state = made.state()
                    # One that came last may be in this site's journal, which is lost, and not in that of the other yet.
                    members = {*members_of(state), *(known.addresses.keys() - state.sites.keys())}
                    held = [(p, v) for p in range(len(state.versions)) for v in store.states(p)]
                    unsure = [(p, v) for p, v in held if v not in said_digests(made, state, p, [v])]
            except (OSError, KeysError, AddressError, BadLineError, sqlite3.Error) as error:
                if is_of_disk(error):  # of this site: whoever is asked, it could not be kept
                    raise
                reason = f"{one.site}: {str(error) or 'silent'}"
                continue
            has = state.term, state.head.index
            missing = members - {other.site for other in found.values() if (other.chain, other.head) <= has}
            if not _leads(one, known) and are_most(missing, members):
                names = ", ".join(sorted(missing - {site}))
                lack = (
                    f"nobody leads, and too few of {len(members)} members answer to know what counted: start {names}, "
                    "or where their journals are damaged too, promote a site that has one, with --force"
                )
                reason = reason or lack
                break
            known.lose_journal()
            # They may be of entries that only this site's journal had. Where nobody else trains, there are no others.
            for fragment, version in unsure if members - {site} else []:
                store.remove_state(fragment, version)
            Snapshots(store).remove_from(state.head.index + 1)
            aside = _put_in_place(part, path)
            kept = f"; the damaged file is {aside.name}" if aside.exists() else ""
            log(f"{path} is whole again, with the {state.head.index + 1} entries that {one.site} has{kept}")
            return True
        waiting.tell(lambda reason=reason: f"another site's journal, since that of this one is damaged ({reason})")
        await comes(leaving, _PAUSE_S)
    _remove(part)
    return False


def _leads(one: AgentStanding, known: KnownAgents) -> bool:
    return one.leads and one.term >= known.term


def _add(journal: SqliteJournal, entries: Sequence[Entry]) -> None:
    journal.append_all(entries, journal.head)


def _damage(path: Path, *, has_run: bool) -> str:
    """What is wrong with the file; empty: nothing, or who opens it to write says so. has_run: this site takes part in a
    run, so that a file which is no journal, or none at all, is damage too."""
    if not path.exists():
        return "it is gone" if has_run else ""
    try:
        with contextlib.closing(SqliteJournal(path, read_only=True)) as journal:
            journal.check()
    except DamagedJournalError as error:
        return str(error) if has_run or "malformed" in str(error) else ""
    except NoJournalError:
        return ""
    except (sqlite3.DatabaseError, UnicodeDecodeError, BadLineError) as error:
        return str(error)
    return ""


def _put_in_place(part: Path, path: Path) -> Path:
    """Returns where the damaged file is kept for a person to look at."""
    number = 1
    while (aside := path.with_name(f"{path.stem}-damaged-{number}.sqlite")).exists():
        number += 1
    for end in ("", "-wal", "-shm"):
        with contextlib.suppress(FileNotFoundError):
            os.replace(f"{path}{end}", f"{aside}{end}")
    os.replace(part, path)
    _remove(part)
    return aside


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").unlink(missing_ok=True)

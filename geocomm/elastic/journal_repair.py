"""An agent whose journal is damaged takes the damaged entries from the agents of other sites, before it begins.

What its own file still has says what these have to be: each entry has the hash of the one before, so a site that makes
one up is not believed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path

from geocomm.core.addresses import HubAddress, HubAddressError
from geocomm.core.message_log import log
from geocomm.core.patience import Waiting
from geocomm.elastic.journal.damaged_journal import Damage, damage_of, sound_after, write_anew
from geocomm.elastic.journal.entries import BadLineError, Entry
from geocomm.elastic.journal.journal import NoJournalError
from geocomm.elastic.known_agents import KnownAgents
from geocomm.elastic.questions import EntriesAnswer, EntriesAsked, ask
from geocomm.security.key_folder import Keys, KeysError

_ASK_LIMIT_S = 5.0
_LIMIT_S = 30.0
"""The others may start at the same time."""
_PAUSE_S = 1.0


async def repair(path: Path, site: str, hub: str, keys: Keys) -> None:
    """Where the journal at `path` is damaged, put a sound one in its place. hub: where all sites look for the leader at
    the start; empty: etcd says that. NoJournalError: nobody has what is damaged."""
    if not path.exists() or (damage := await asyncio.to_thread(damage_of, path)) is None:
        return
    log(f"{path} is damaged: entry {damage.first}: {damage.why}. It is taken from other sites")
    known = KnownAgents(path.parent, log)
    addresses = {at for name, at in known.addresses.items() if name != site} | {known.leader or hub, hub} - {""}
    sound = await asyncio.to_thread(sound_after, path, damage.first)
    waiting, end = Waiting(log), asyncio.get_running_loop().time() + _LIMIT_S
    while True:
        for at in sorted(addresses):
            mended = await _mended(at, keys, damage, sound)
            if mended is not None:
                with contextlib.suppress(BadLineError):  # they do not go on from what is left here
                    aside = await asyncio.to_thread(write_anew, path, damage, mended)
                    log(f"{path} is whole again, with what the agent at {at} has; the damaged file is kept in {aside}")
                    return
        if asyncio.get_running_loop().time() > end:
            raise NoJournalError(
                f"{path} is damaged: entry {damage.first}: {damage.why}. No other site that answers has it; asked "
                f"were {', '.join(sorted(addresses)) or 'none, since none is known'}. Start another site of the run "
                "first, and this one again. Where another site leads, or is promoted, this one may start with an empty "
                "run folder. geocomm snapshot restore goes back to a snapshot"
            )
        waiting.tell(lambda: f"entry {damage.first} of the journal from another site")
        await asyncio.sleep(_PAUSE_S)


async def _mended(at: str, keys: Keys, damage: Damage, sound: dict[int, Entry]) -> list[Entry] | None:
    """The entries from the damaged one on, as an agent has them; None: it has not got them, or others."""
    entries: list[Entry] = []
    needed = max(sound, default=damage.first)
    try:
        while True:
            asked = EntriesAsked(first=damage.first + len(entries))
            answer = await ask(HubAddress.parse(at), keys, asked, EntriesAnswer, _ASK_LIMIT_S)
            for entry in answer.entries:
                own = sound.get(entry.index)
                if entry.index != damage.first + len(entries) or (own is not None and own.hash != entry.hash):
                    return None
                entries.append(entry)
            if not answer.entries or damage.first + len(entries) > needed:
                break
    except (OSError, KeysError, HubAddressError):
        return None
    own_end = [sound[index] for index in sorted(sound) if index >= damage.first + len(entries)]
    return [*entries, *own_end] if entries and _is_chain([*entries, *own_end]) else None


def _is_chain(entries: list[Entry]) -> bool:
    return all(
        entry.index == before.index + 1 and entry.prev == before.hash for before, entry in itertools.pairwise(entries)
    )

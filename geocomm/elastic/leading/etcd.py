"""A run's journal in etcd, and who may append to it: the engine for a run that nobody watches.

Each call blocks, for TRY_S at each server at most: an event loop makes it in a thread, one at a time per `Etcd`. What a
name has in etcd: `entries/INDEX`, `head` (the last index and its hash), `leader`, which goes with its lease, and
`base`, above which the terms are: revisions of another etcd may have been higher.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from geocomm.core.addresses import Address, AddressError
from geocomm.core.bad_input import BadInput
from geocomm.core.environment import etcd_tls_files
from geocomm.core.records import Record, Text, line_of
from geocomm.data.deal_records import StoreId
from geocomm.elastic.journal.entries import EMPTY, BadLineError, Entry, Head, SiteName, entry_of
from geocomm.elastic.journal.journal import HeadMovedError

if TYPE_CHECKING:
    from etcd3gw.client import Etcd3Client

LEASE_S = 6
"""A leader that is silent for this time leads no more."""
TRY_S = 2.0
_SCHEME = "etcd://"
_PORT = 2379
_READ_AT_ONCE = 500

_T = TypeVar("_T")


class EtcdAddressError(BadInput, ValueError):
    """What names no journal in etcd; the message says what one looks like, or what is missing here."""


class EtcdAwayError(ConnectionError):
    """No etcd server has done what it was asked for. It may have, and the answer was lost."""


class LeaderSaid(Record):
    """What a leader writes of itself."""

    site: SiteName
    store: StoreId
    """The id of its run folder."""
    address: Text
    """Where it listens: host:port."""


@dataclass(frozen=True)
class Leading:
    """A leader as etcd knows it."""

    said: LeaderSaid
    revision: int
    """At which it began: higher than that of any leader before."""
    term: int


@dataclass(frozen=True)
class EtcdAddress:
    """The servers, and the name of the run there."""

    servers: tuple[Address, ...]
    name: str

    @classmethod
    def parse(cls, text: str) -> EtcdAddress:
        """Read "etcd://HOST:PORT,HOST:PORT/NAME"; the ports and the name may be left out."""
        rest, slash, name = text.removeprefix(_SCHEME).partition("/")
        if not text.startswith(_SCHEME) or not rest or not re.fullmatch(r"[\w.-]+", name if slash else "run"):
            raise EtcdAddressError(f"{text!r} is not of the kind etcd://HOST:{_PORT},HOST:{_PORT}/NAME")
        try:
            servers = [Address.parse(one if re.search(r":\d+$", one) else f"{one}:{_PORT}") for one in rest.split(",")]
        except AddressError as error:
            raise EtcdAddressError(str(error)) from None
        return cls(tuple(servers), name if slash else "run")

    def __str__(self) -> str:
        return f"{_SCHEME}{','.join(map(str, self.servers))}/{self.name}"


class Etcd:
    """A few servers of etcd. The next one is asked where one does not answer."""

    def __init__(self, address: EtcdAddress) -> None:
        """EtcdAddressError: the client library, or a file of TLS, is missing."""
        try:
            import requests
            from etcd3gw.client import Etcd3Client
        except ImportError:
            raise EtcdAddressError("a journal in etcd needs a client library: pip install 'geocomm[etcd]'") from None
        ca, certificate, key = etcd_tls_files()
        if (certificate is None) != (key is None) or (certificate is not None and ca is None):
            raise EtcdAddressError("GEOCOMM_ETCD_CERT and GEOCOMM_ETCD_KEY go together, and with GEOCOMM_ETCD_CA")
        for file in filter(None, (ca, certificate, key)):
            if not os.access(file, os.R_OK):
                raise EtcdAddressError(f"cannot read {file}, which GEOCOMM_ETCD_CA, _CERT or _KEY names")
        self.address = address
        self._turn = threading.Lock()
        self.encrypted = ca is not None
        session = requests.Session()
        # Variables of the environment would put proxies between, and other authorities in the place of etcd's.
        session.trust_env = False
        session.verify = ca or True
        session.cert = None if certificate is None or key is None else (certificate, key)
        self._clients = [
            Etcd3Client(
                host=server.host,
                port=server.port,
                protocol="https" if ca else "http",
                timeout=TRY_S,
                api_path="/v3/",
                session=session,
            )
            for server in address.servers
        ]

    def key(self, name: str) -> str:
        """The key of something of the run."""
        return f"geocomm/{self.address.name}/{name}"

    def call(self, work: Callable[[Etcd3Client], _T]) -> _T:
        """What `work` gets from the first server that answers. EtcdAwayError: none does."""
        import requests
        from etcd3gw.exceptions import Etcd3Exception

        reason = ""
        with self._turn:  # who was cancelled may still be at it, in a thread
            for _ in self._clients:
                try:
                    return work(self._clients[0])
                except (Etcd3Exception, requests.RequestException, ValueError, KeyError) as error:
                    reason = f"{getattr(error, 'detail_text', None) or error}".strip()
                    self._clients.append(self._clients.pop(0))
        raise EtcdAwayError(_short(reason))

    def transact(self, compare: list[dict[str, Any]], *requests: dict[str, Any]) -> int:
        """Do all of `requests` where all of `compare` is so. The revision with them; 0: it was not so."""
        transaction = {"compare": compare, "success": list(requests), "failure": []}
        answer = self.call(lambda client: client.transaction(transaction))
        # An answer without `succeeded` is no.
        return int(answer["header"]["revision"]) if answer.get("succeeded", False) else 0

    def put(self, name: str, value: str, lease: int = 0) -> dict[str, Any]:
        """A request that writes a key."""
        return {"request_put": {"key": _b64(self.key(name)), "value": _b64(value), "lease": lease}}

    def compact(self, revision: int) -> None:
        """Have etcd forget what was overwritten or deleted up to a revision, of all its keys."""
        self.call(lambda client: client.post(client.get_url("/kv/compaction"), json={"revision": revision}))

    def lease_of(self, name: str) -> int:
        """The lease with which a key goes; 0: there is none."""
        found = self.call(lambda client: client.get(self.key(name), metadata=True))
        return int(found[0][1].get("lease", 0)) if found else 0

    def get(self, name: str) -> tuple[str, int] | None:
        """The value of a key, and the revision that wrote it."""
        found = self.call(lambda client: client.get(self.key(name), metadata=True))
        return (found[0][0].decode(), int(found[0][1]["mod_revision"])) if found else None


class Election:
    """Who leads the run: at most one has the key `leader`, which goes when its lease has run out."""

    def __init__(self, etcd: Etcd, own: LeaderSaid) -> None:
        self._etcd, self._own = etcd, own
        self._lease: int | None = None

    def leader(self) -> Leading | None:
        """Who leads now; None: nobody does."""
        found = self._etcd.get("leader")
        if found is None:
            return None
        base = self._etcd.get("base")
        try:
            said = LeaderSaid.model_validate_json(found[0])
            return Leading(said, found[1], found[1] + (0 if base is None else int(base[0])))
        except ValueError:  # ValidationError is one
            raise EtcdAwayError(
                f"{self._etcd.key('leader')} there is no leader's word, but {found[0][:80]!r}"
            ) from None

    def stand(self) -> Leading | None:
        """Lead where nobody does, or a process of this run folder did, which is dead then. Who leads now; None: it is
        about to be known."""
        found = self.leader()
        if found is not None and found.said.store != self._own.store:
            return found
        lease = self._etcd.call(lambda client: client.lease(LEASE_S)).id
        put = self._etcd.put("leader", line_of(self._own), lease)
        self._etcd.transact([compare_leader(self._etcd, 0 if found is None else found.revision)], put)
        # Not by the answer: an attempt whose answer was lost may have been it, which the next server then denies.
        if self._etcd.lease_of("leader") == lease:
            self._lease = lease
        return self.leader()

    def stand_again(self, leading: Leading, term: int) -> None:
        """Terms are to be higher than this one from now on, also that of who leads now, which it finds out and stands
        again."""
        self._etcd.transact([compare_leader(self._etcd, leading.revision)], self._etcd.put("base", str(term)))

    def keep(self, term: int) -> bool:
        """Go on leading. False: another one may."""
        from etcd3gw.lease import Lease

        lease = self._lease
        if lease is None or self._etcd.call(lambda client: Lease(lease, client).refresh()) <= 0:
            return False
        found = self.leader()
        return found is not None and found.term == term

    def resign(self) -> None:
        """Another one may lead at once."""
        from etcd3gw.lease import Lease

        lease, self._lease = self._lease, None
        if lease is not None:
            with contextlib.suppress(EtcdAwayError):  # then the lease runs out
                self._etcd.call(lambda client: Lease(lease, client).revoke())


class EtcdJournal:
    """The chain of entries of a run in etcd, to which the leader alone appends that began at `revision`."""

    def __init__(self, etcd: Etcd, revision: int = 0) -> None:
        """revision: 0: to read. EtcdAwayError: no server answers."""
        self._etcd, self._revision = etcd, revision
        self._head = self._read_head()

    def __str__(self) -> str:
        return str(self._etcd.address)

    @property
    def head(self) -> Head:
        """The end of the chain, as this process knows it."""
        return self._head

    def append(self, entry: Entry, expected_head: Head) -> None:
        """Write an entry, once: it may be tried again after EtcdAwayError. HeadMovedError: another one leads, or has
        appended."""
        self.append_all([entry], expected_head)

    def append_all(self, entries: Sequence[Entry], expected_head: Head) -> None:
        """As `append`. Others see all of them or none: the head moves with the last one."""
        etcd, head = self._etcd, expected_head
        for entry in entries:
            head = head.then(entry)
            compare, puts = [compare_leader(etcd, self._revision)], [etcd.put(_entry_name(entry.index), entry.line)]
            if entry is entries[-1]:
                compare.append(_compare_head(etcd, expected_head))
                puts.append(etcd.put("head", _head_text(head)))
            if not etcd.transact(compare, *puts):
                self._head = self._read_head()
                if self._head != head:  # else an attempt before was written, and its answer lost
                    raise HeadMovedError(
                        f"{etcd.address}: entry {entry.index} is not written, since this one leads no "
                        f"more: another site does. The head is entry {self._head.index}"
                    )
        self._head = head

    def begin_after(self, head: Head) -> None:
        """Have a journal without entries go on after `head`. HeadMovedError: it has some, or another one leads."""
        etcd = self._etcd
        compare = [_compare_head(etcd, EMPTY), compare_leader(etcd, self._revision)]
        written = head == EMPTY or etcd.transact(compare, etcd.put("head", _head_text(head)))
        if not written and self._read_head() != head:  # else an attempt before was written, and its answer lost
            raise HeadMovedError(f"{etcd.address}: another site has begun to write there")
        self._head = head

    def forget(self, before: int) -> None:
        """Delete the entries before this index, and what etcd keeps of all that was overwritten. Nothing happens where
        another one leads."""
        etcd = self._etcd
        span = {"key": _b64(etcd.key(_entry_name(0))), "range_end": _b64(etcd.key(_entry_name(before)))}
        if revision := etcd.transact([compare_leader(etcd, self._revision)], {"request_delete_range": span}):
            etcd.compact(revision)

    @property
    def first(self) -> int:
        """The index of the first entry that was not deleted."""
        found = self._entries(0, 1)
        return found[0].index if found else self._head.index + 1

    def read(self, first: int = 0) -> Iterator[Entry]:
        """The entries from index `first` on, up to the head at that time. BadLineError for what is none. EtcdAwayError:
        the first ones were deleted."""
        self._head, begun = self._read_head(), first
        while True:
            found = self._entries(first, _READ_AT_ONCE)
            for number, entry in enumerate(found, first):
                if entry.index > number == begun:
                    raise EtcdAwayError(f"its entries before {entry.index} were deleted")
                if entry.index != number:
                    raise BadLineError(f"{self._etcd.address}: entry {entry.index} lies in the place of entry {number}")
                yield entry
            if len(found) < _READ_AT_ONCE:
                return
            first += len(found)

    def hash_at(self, index: int) -> str | None:
        """The hash of an entry, also of the last deleted one; FIRST_PREV for -1, and None where there is no such
        entry."""
        if index in (EMPTY.index, self._head.index):
            return EMPTY.hash if index == EMPTY.index else self._head.hash
        found = self._entries(index, 1)
        if not found or found[0].index > index + 1:
            return None
        return found[0].hash if found[0].index == index else found[0].prev

    def _entries(self, first: int, limit: int) -> list[Entry]:
        """The next ones that there are. What lies behind the head was not given to its end."""
        etcd = self._etcd
        found = etcd.call(
            lambda client: client.get(
                etcd.key(_entry_name(first)),
                sort_order="ascend",
                sort_target="key",
                range_end=etcd.key("entries0"),  # "0" follows "/"
                limit=limit,
            )
        )
        entries = (entry_of(line.decode(errors="replace")) for line in found)
        return [entry for entry in entries if entry.index <= self._head.index]

    def _read_head(self) -> Head:
        found = self._etcd.get("head")
        if found is None:
            return EMPTY
        index, _, said = found[0].partition(" ")
        if not index.isdigit() or not re.fullmatch(r"[0-9a-f]{64}", said):
            raise BadLineError(f"{self._etcd.address}: its head is {found[0][:80]!r}")
        return Head(int(index), said)


def compare_leader(etcd: Etcd, revision: int) -> dict[str, Any]:
    """A comparison: the leader that began at this revision leads; 0: nobody does."""
    return {"key": _b64(etcd.key("leader")), "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def _compare_head(etcd: Etcd, head: Head) -> dict[str, Any]:
    compare = {"key": _b64(etcd.key("head")), "result": "EQUAL"}
    if head == EMPTY:
        return compare | {"target": "MOD", "mod_revision": 0}
    return compare | {"target": "VALUE", "value": _b64(_head_text(head))}


def _entry_name(index: int) -> str:
    return f"entries/{index:016}"


def _head_text(head: Head) -> str:
    return f"{head.index} {head.hash}"


def _b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _short(reason: str) -> str:
    """The text of the first of a chain of errors."""
    cause = re.search(r"\[(?:Errno|SSL)[^\]]*\] ([^'\")]*)", reason) or re.search(r'"error": *"([^"]*)"', reason)
    return (cause.group(1) if cause else reason)[:200] or "silent"

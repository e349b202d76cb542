"""etcd as its gateway answers geocomm's client: transactions, leases, and what goes wrong with them.

A request that nobody answers in time may have been done, may be done later, or never. A restored etcd has the keys, the
revision and the leases of the time of its backup; leases begin anew then.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import copy
import enum
import json as json_text
import random
from collections import Counter
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any

from etcd3gw.exceptions import ConnectionFailedError, ConnectionTimeoutError

from geocomm.elastic.leading.etcd import TRY_S
from support.whole_run.machines import current
from support.whole_run.virtual_loop import VirtualLoop

SERVER = "etcd.simulated:2379"
_ANSWER_S = 0.003, 0.06
_LATE_S = 0.2, 8.0
_BACKUP_S = 2.0
_MOST_OF_OTHERS = 1000


class Fate(enum.Enum):
    """What becomes of a request whose answer is lost."""

    DONE = "done"
    LATE = "done later"
    NEVER = "never done"


@dataclass
class _Key:
    value: str
    revision: int
    lease: int


@dataclass
class _Content:
    """What a backup has."""

    keys: dict[str, _Key] = field(default_factory=dict[str, _Key])
    revision: int = 1
    leases: dict[int, int] = field(default_factory=dict[int, int])
    """Their seconds to live, by id."""


class EtcdModel:
    """The servers of an etcd, which are one here. Keys and values are in base64, as the gateway has them."""

    def __init__(self, chance: random.Random, now: Callable[[], float]) -> None:
        self._chance, self._now = chance, now
        self._content = _Content()
        self._until: dict[int, float] = {}
        self._was_restored = False
        self._backups: list[tuple[float, _Content]] = []
        self.away = 0
        """How many have made it unreachable for all."""
        self.cut: Counter[str] = Counter()
        """The machines that do not reach it."""
        self.doubtful = 0.0
        """The share of requests whose answer is lost."""

    @property
    def head_index(self) -> int:
        """Of the last entry that it has; -1: it has none."""
        return _head_index(self._content)

    def head_index_before(self, age_s: float) -> int:
        """That of a backup of so long ago."""
        return _head_index(self._backup(age_s))

    def restore(self, age_s: float) -> None:
        """Go on with what there was so long ago. Nobody restores a later backup after that: it may have entries in the
        place of others that came since."""
        self._was_restored = True
        self._backups = [(at, content) for at, content in self._backups if at <= self._now() - age_s]
        self._content = copy.deepcopy(self._backup(age_s))
        self._until = {lease: self._now() + ttl for lease, ttl in self._content.leases.items()}

    def _backup(self, age_s: float) -> _Content:
        found = [content for at, content in self._backups if at <= self._now() - age_s]
        return found[-1] if found else _Content()

    def post(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        """What a request of the process that asks is answered."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        if self.away or self.cut[current().machine.name]:
            if refused := self._chance.random() < 0.5:
                loop.work_takes_s += 0.01
            else:
                loop.work_takes_s += TRY_S
            raise ConnectionFailedError("refused" if refused else "no route")
        if self._chance.random() < self.doubtful:
            loop.work_takes_s += TRY_S
            match self._chance.choice(list(Fate)):
                case Fate.DONE:
                    self._do(path, asked)
                case Fate.LATE:
                    loop.call_later(self._chance.uniform(*_LATE_S), self._do_late, path, asked, context=Context())
                case Fate.NEVER:
                    pass
            raise ConnectionTimeoutError("timed out")
        loop.work_takes_s += self._chance.uniform(*_ANSWER_S)
        return self._do(path, asked)

    def _do_late(self, path: str, asked: dict[str, Any]) -> None:
        if not self.away:
            with contextlib.suppress(ConnectionFailedError):  # nobody hears of it
                self._do(path, asked)

    def _do(self, path: str, asked: dict[str, Any]) -> dict[str, Any]:
        self._expire()
        content = self._content
        match path:
            case "kv/range":
                return {"kvs": [self._told(key) for key in self._range(asked)[: asked.get("limit")]]}
            case "kv/txn":
                holds = all(map(self._is_so, asked["compare"]))
                if holds:
                    self._write(asked["success"])
                return {"header": {"revision": str(content.revision)}} | ({"succeeded": True} if holds else {})
            case "lease/grant":
                lease = self._chance.getrandbits(62)
                content.leases[lease], self._until[lease] = asked["TTL"], self._now() + asked["TTL"]
                return {"ID": str(lease), "TTL": str(asked["TTL"])}
            case "lease/keepalive":
                if (ttl := content.leases.get(asked["ID"])) is None:
                    return {"result": {"ID": str(asked["ID"])}}
                self._until[asked["ID"]] = self._now() + ttl
                return {"result": {"ID": str(asked["ID"]), "TTL": str(ttl)}}
            case "kv/lease/revoke":
                self._until[asked["ID"]] = 0.0
                self._expire()
                return {}
            case "kv/compaction":
                return {}
            case _:
                raise AssertionError(f"the model has no {path}")

    def _written_by_others(self) -> int:
        """What has them write ends with the first restore: revisions then take long to come to where they were."""
        return 0 if self._was_restored else self._chance.randint(0, _MOST_OF_OTHERS)

    def _expire(self) -> None:
        content, now = self._content, self._now()
        for lease in [one for one in content.leases if self._until[one] <= now]:
            del content.leases[lease], self._until[lease]
            for key in [name for name, found in content.keys.items() if found.lease == lease]:
                content.revision += 1
                del content.keys[key]

    def _range(self, asked: dict[str, Any]) -> list[str]:
        first = _text(asked["key"])
        if "range_end" not in asked:
            return [first] if first in self._content.keys else []
        return sorted(key for key in self._content.keys if first <= key < _text(asked["range_end"]))

    def _told(self, key: str) -> dict[str, str]:
        found = self._content.keys[key]
        name = base64.b64encode(key.encode()).decode()
        return {"key": name, "value": found.value, "mod_revision": str(found.revision), "lease": str(found.lease)}

    def _is_so(self, compare: dict[str, Any]) -> bool:
        found = self._content.keys.get(_text(compare["key"]))
        assert compare["result"] == "EQUAL"
        if compare["target"] == "MOD":
            return (0 if found is None else found.revision) == compare["mod_revision"]
        assert compare["target"] == "VALUE"
        return found is not None and found.value == compare["value"]

    def _write(self, requests: list[dict[str, Any]]) -> None:
        content, now = self._content, self._now()
        content.revision += self._written_by_others() + 1
        for request in requests:
            if (put := request.get("request_put")) is not None:
                if put["lease"] and put["lease"] not in content.leases:
                    raise ConnectionFailedError("requested lease not found")
                content.keys[_text(put["key"])] = _Key(put["value"], content.revision, put["lease"])
            else:
                for key in self._range(request["request_delete_range"]):
                    del content.keys[key]
        if not self._backups or self._backups[-1][0] + _BACKUP_S <= now:
            self._backups.append((now, copy.deepcopy(content)))


def client_of(model: EtcdModel) -> type:
    """A class in the place of the library's, which asks the model."""
    from etcd3gw.client import Etcd3Client

    class Client(Etcd3Client):
        def post(self, url: str, *args: Any, json: Any = None, **kwargs: Any) -> Any:
            path = url.partition(self.api_path)[2]
            return model.post(path, json_text.loads(kwargs["data"]) if json is None else json)

    return Client


def _head_index(content: _Content) -> int:
    found = content.keys.get("geocomm/run/head")
    return -1 if found is None else int(_text(found.value).split()[0])


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()

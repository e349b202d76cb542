"""Shards of buckets and web servers: fetched ahead, whole, from any store that has them, by who may read them alone."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from geocomm.core.bad_input import BadInput
from geocomm.data import places
from geocomm.data.catalog import Rules, Shard, Version
from geocomm.data.shard_cache import ShardCache
from geocomm.data.shard_stores import ShardStores
from support.log_lines import once_said
from support.object_servers import S3Server, WebServer, s3_server, web_server, write_tables

pytestmark = pytest.mark.timeout(240)
TOKENS = 3 << 19  # three ranges of 1 MiB


def ids_of(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 257, TOKENS).astype("<u2")


def shard_of(number: int, store: str, labels: tuple[str, ...] = ()) -> Shard:
    content = ids_of(number).tobytes()
    return Shard(hashlib.sha256(content).hexdigest(), store, f"{number}.ds", 0, TOKENS, labels)


def stores_of(shards: list[Shard], site: str = "frankfurt", **tables: dict[str, object]) -> ShardStores:
    rules = {
        "sites": {"frankfurt": "eu", "virginia": "us"},
        "stores": tables,
        "labels": {"personal": {"readers": ["eu"]}},
    }
    version = Version(
        number=1, tokenizer="byte", vocabulary=257, dtype="<u2", rules=Rules.model_validate(rules), parts=()
    )
    return ShardStores(version, shards, site)


@pytest.fixture(autouse=True)
def cache_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("GEOCOMM_DATA_CACHE", str(folder))
    return folder


@pytest.fixture
def web() -> Iterator[WebServer]:
    with web_server({f"/{number}.ds": ids_of(number).tobytes() for number in range(6)}) as server:
        yield server


def cached(folder: Path) -> set[str]:
    return {one.name for one in folder.iterdir() if len(one.name) == 64}


def wait_for(folder: Path, shards: list[Shard]) -> None:
    while not {one.sha256 for one in shards} <= cached(folder):
        time.sleep(0.05)


def test_what_is_wanted_is_fetched_ahead_in_ranges_four_at_a_time(web: WebServer, cache_folder: Path) -> None:
    shards = [shard_of(number, "web") for number in range(3)]
    web.bytes_per_second = 4e6
    cache = ShardCache(stores_of(shards, web={"url": web.url, "price": 50.0}))
    cache.want(shards)
    wait_for(cache_folder, shards)
    assert [cache.ids(one).tolist() for one in shards] == [ids_of(number).tolist() for number in range(3)]
    counts = cache.counts()
    cache.close()
    assert counts["waited_seconds"] == 0
    assert counts["fetched_bytes"] == 3 * TOKENS * 2
    assert counts["fetched_dollars"] == pytest.approx(3 * TOKENS * 2 * 50e-9)
    assert web.most_at_once <= 4
    assert len(web.asked) == 9
    web.asked.clear()
    again = ShardCache(stores_of(shards, web={"url": web.url}))
    again.ids(shards[2])
    again.close()
    assert not web.asked  # a file with its name and its size is trusted


def test_store_that_lies_is_asked_once_and_another_one_gives_the_bytes(web: WebServer, cache_folder: Path) -> None:
    shards = [shard_of(0, "lies"), shard_of(0, "tells")]
    with web_server({"/0.ds": ids_of(1).tobytes()}) as liar:
        tables = {"lies": {"url": liar.url, "near": ["frankfurt"]}, "tells": {"url": web.url}}
        cache = ShardCache(stores_of(shards, **tables))
        assert cache.ids(shards[0]).tolist() == ids_of(0).tolist()
        cache.close()
        assert len(liar.asked) == 3
        alone = ShardCache(stores_of(shards[:1], **tables), folder=cache_folder / "alone")
        with pytest.raises(BadInput, match=r"0\.ds of store lies: other bytes"):
            alone.ids(shards[0])
        alone.close()
        assert len(liar.asked) == 3 + 2 * 3
    assert not list((cache_folder / "alone").iterdir())


def test_dead_store_is_waited_for_by_its_name_while_others_serve(
    web: WebServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geocomm.core.patience.FIRST_WORD_S", 1.0)
    with web_server({"/5.ds": ids_of(5).tobytes()}) as other:
        shards = [shard_of(5, "other"), shard_of(0, "web"), shard_of(1, "web")]
        other.dead = True
        tables = {"other": {"url": other.url}, "web": {"url": web.url}}
        cache = ShardCache(stores_of(shards, **tables))
        cache.want(shards)
        assert len(cache.ids(shards[2])) == TOKENS  # behind the one that cannot be fetched
        with (
            caplog.at_level(logging.WARNING),
            once_said(caplog, "5.ds of store other", lambda: setattr(other, "dead", False)),
        ):
            assert cache.ids(shards[0]).tolist() == ids_of(5).tolist()
        assert cache.counts()["waited_seconds"] > 1
        cache.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that wait for longer than a test may."""
    monkeypatch.setattr(places, "_TIMEOUTS", {"timeout": "3600s", "connect_timeout": "5s"})


@pytest.mark.usefixtures("patient")
def test_store_that_hangs_holds_up_nothing_of_others(web: WebServer, cache_folder: Path) -> None:
    with web_server({"/5.ds": ids_of(5).tobytes()}) as other:
        shards = [shard_of(5, "other"), *(shard_of(number, "web") for number in range(4))]
        other.hangs = True
        cache = ShardCache(stores_of(shards, other={"url": other.url}, web={"url": web.url}))
        cache.want(shards)
        wait_for(cache_folder, shards[1:])
        for shard in shards[1:]:
            cache.ids(shard)
        assert cache.counts()["waited_seconds"] == 0
        other.hangs = False
        assert cache.ids(shards[0]).tolist() == ids_of(5).tolist()
        cache.close()


@pytest.mark.usefixtures("patient")
def test_one_shard_finds_out_whether_a_store_is_back_and_others_come_from_the_next(
    web: WebServer, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geocomm.data.shard_cache._FIRST_PAUSE", 0.0)
    with web_server(web.files) as near:
        tables = {"near": {"url": near.url, "near": ["frankfurt"]}, "web": {"url": web.url}}
        shards = [shard_of(number, "near") for number in range(6)]
        copies = [shard_of(number, "web") for number in range(6)]
        near.dead = True
        cache = ShardCache(stores_of([*shards, *copies], **tables))
        cache.want(shards[:1])
        wait_for(cache_folder, shards[:1])
        near.dead, near.hangs = False, True
        cache.want(shards[1:])
        while not near.hanging:
            time.sleep(0.01)
        (number,) = {int(path[1:-3]) for path in near.hanging}
        wait_for(cache_folder, [one for one in shards[1:] if one is not shards[number]])
        near.hangs = False
        assert cache.ids(shards[number]).tolist() == ids_of(number).tolist()
        assert {path for path, _, _ in near.asked} == {f"/{number}.ds"}
        cache.close()


def test_store_that_died_in_the_middle_is_replaced_by_another(web: WebServer) -> None:
    with web_server({"/0.ds": ids_of(0).tobytes()}) as first:
        first.bytes_per_second = 1e6
        shards = [shard_of(0, "first"), shard_of(0, "web")]
        cache = ShardCache(stores_of(shards, first={"url": first.url, "near": ["frankfurt"]}, web={"url": web.url}))
        cache.want(shards[:1])
        while not first.asked:
            time.sleep(0.01)
        first.dead = True
        assert cache.ids(shards[0]).tolist() == ids_of(0).tolist()
        cache.close()


def test_shard_that_no_store_has_is_an_error(web: WebServer) -> None:
    shard = shard_of(0, "web")._replace(path="none.ds")
    cache = ShardCache(stores_of([shard], web={"url": web.url}))
    with pytest.raises(BadInput, match=r"none\.ds of store web"):
        cache.ids(shard)
    cache.close()


def test_what_was_read_last_goes_when_room_is_needed(
    web: WebServer, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("geocomm.data.shard_cache.SHARDS_AT_LEAST", 1)
    monkeypatch.setenv("GEOCOMM_DATA_CACHE_SIZE", str(3 * TOKENS * 2))
    shards = [shard_of(number, "web") for number in range(5)]
    cache = ShardCache(stores_of(shards, web={"url": web.url}))
    cache.want(shards[:3])
    wait_for(cache_folder, shards[:3])
    for number in (1, 0):  # 2 was not read
        cache.ids(shards[number])
        time.sleep(0.05)
    cache.want([shards[3]])
    wait_for(cache_folder, [shards[3]])
    assert cached(cache_folder) == {shards[number].sha256 for number in (1, 2, 3)}
    cache.want([shards[number] for number in (1, 2, 3, 4, 0)])  # more than there is room for
    time.sleep(1)
    assert len(cache.ids(shards[4])) == TOKENS  # in place of what is read later
    assert len(cached(cache_folder)) == 3
    monkeypatch.setattr("geocomm.data.shard_cache.SHARDS_AT_LEAST", 16)
    [gone] = (shards[number] for number in (2, 3) if shards[number].sha256 not in cached(cache_folder))
    with pytest.raises(BadInput, match=f"the cache {cache_folder} cannot be used: no room"):
        cache.ids(gone)
    cache.close()


def test_cache_below_two_deals_is_refused_in_gb(
    web: WebServer, cache_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shards = [shard_of(number, "web") for number in range(5)]
    monkeypatch.setenv("GEOCOMM_DATA_CACHE_SIZE", "10mb")
    with pytest.raises(BadInput, match=r"may hold 0\.01 GB.*take 0\.02 GB"):
        ShardCache(stores_of(shards, web={"url": web.url}))
    cache_folder.rmdir()
    cache_folder.write_text("a file")
    with pytest.raises(BadInput, match=f"the cache {cache_folder} cannot be used"):
        ShardCache(stores_of(shards, web={"url": web.url}))


@pytest.mark.parametrize(("row_bytes", "far_rate"), [(1, math.inf), (1 << 50, 1 << 20)])
def test_what_is_not_near_is_fetched_at_twice_the_eaten_rate_and_no_faster_than_lines_allow(
    web: WebServer, cache_folder: Path, row_bytes: int, far_rate: float
) -> None:
    shards = [shard_of(number, "web") for number in range(6)]
    cache = ShardCache(stores_of(shards, web={"url": web.url}), row_bytes=row_bytes, far_rate=far_rate)
    cache.ids(shards[0])  # reads from now on, slowly: the cap is the least there is; or fast: the line's
    began = time.monotonic()
    cache.want(shards)
    wait_for(cache_folder, shards)
    # Of 15 MiB four are a burst; the rest cannot come faster than the cap, however slow this machine is.
    assert time.monotonic() - began > 10
    cache.close()


_READER = """
import sys
sys.path.insert(0, sys.argv[1])
from test_shard_fetching import ShardCache, ids_of, shard_of, stores_of
shards = [shard_of(number, "web") for number in range(6)]
cache = ShardCache(stores_of(shards, web={"url": sys.argv[2]}))
cache.want(shards)
assert all((cache.ids(one) == ids_of(number)).all() for number, one in enumerate(shards))
cache.close()
"""


def test_processes_that_share_a_folder_fetch_once(web: WebServer, cache_folder: Path) -> None:
    web.bytes_per_second = 8e6
    command = [sys.executable, "-c", _READER, str(Path(__file__).parent), web.url]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    readers = [subprocess.Popen(command, env=os.environ | {"PYTHONPATH": paths}) for _ in range(3)]
    assert [one.wait() for one in readers] == [0, 0, 0]
    assert len(web.asked) == 6 * 3
    assert len(list(cache_folder.iterdir())) == 6


def test_process_that_ends_while_it_fetches_ends_soon(web: WebServer) -> None:
    web.bytes_per_second = 2e5  # five seconds a range
    text = _READER.partition("assert")[0] + "import time; time.sleep(1)\n"
    command = [sys.executable, "-c", text, str(Path(__file__).parent), web.url]
    paths = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    reader = subprocess.run(command, env=os.environ | {"PYTHONPATH": paths}, check=False)
    assert reader.returncode == 0
    assert len(web.asked) <= 4  # what was in flight came; nothing was asked for after it


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, S3Server]]:
    folder = tmp_path_factory.mktemp("s3")
    with ExitStack() as stack:
        found = {name: stack.enter_context(s3_server(folder, name)) for name in ("eu", "us")}
        right = write_tables(folder / "stores.toml", {name: server.table for name, server in found.items()})
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("GEOCOMM_STORES", str(right))
        _forget_keys()
        for number, name in enumerate(found):
            places.open_place(found[name].url, name).create(f"{number}.ds", ids_of(number).tobytes())
        yield found
    _forget_keys()


def _forget_keys() -> None:
    places.open_place.cache_clear()
    places._tables.cache_clear()


def test_two_buckets_are_read_with_two_keys(servers: dict[str, S3Server]) -> None:
    shards = [shard_of(0, "eu"), shard_of(1, "us")]
    tables = {name: {"url": server.url} for name, server in servers.items()}
    cache = ShardCache(stores_of(shards, **tables))
    for number, shard in enumerate(shards):
        assert cache.ids(shard).tolist() == ids_of(number).tolist()
    cache.close()


@pytest.mark.parametrize("wrong_key", [False, True])
def test_labelled_shard_is_never_asked_for_from_outside(
    servers: dict[str, S3Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_key: bool
) -> None:
    if wrong_key:
        keys = {"eu": servers["eu"].table | {"secret_access_key": "wrong"}, "us": servers["us"].table}
        monkeypatch.setenv("GEOCOMM_STORES", str(write_tables(tmp_path / "wrong.toml", keys)))
    _forget_keys()
    before = len(servers["eu"].requests())
    shards = [shard_of(0, "eu", ("personal",)), shard_of(1, "us")]
    tables = {name: {"url": server.url} for name, server in servers.items()}
    cache = ShardCache(stores_of(shards, "virginia", **tables))
    cache.want(shards)  # whoever deals made a mistake
    assert len(cache.ids(shards[1])) == TOKENS
    with pytest.raises(BadInput, match="virginia may not read"):
        cache.ids(shards[0])
    with pytest.raises(BadInput, match="virginia may not read"):
        cache.stores.read(shards[0], 0, 1)
    cache.close()
    assert len(servers["eu"].requests()) == before
    monkeypatch.undo()
    _forget_keys()

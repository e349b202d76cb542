"""What is read of shards: only right bytes, only by who may, from any store that has them."""

from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geocomm.core.bad_input import BadInput
from geocomm.data.catalog import Rules, Shard, Version
from geocomm.data.shard_cache import ShardCache
from geocomm.data.shard_stores import ShardStores

pytestmark = pytest.mark.timeout(120)
IDS = np.arange(64, dtype="<u2")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEOCOMM_DATA_CACHE", str(tmp_path / "cache"))


def version_of(**stores: object) -> Version:
    """Of a data set whose label `personal` is read in the EU alone; stores: name -> URL, or all of its table."""
    tables = {name: one if isinstance(one, dict) else {"url": str(one)} for name, one in stores.items()}
    rules = {
        "sites": {"frankfurt": "eu", "virginia": "us"},
        "stores": tables,
        "labels": {"personal": {"readers": ["eu"]}},
    }
    return Version(number=1, tokenizer="byte", vocabulary=257, dtype="<u2", rules=Rules.model_validate(rules), parts=())


def shard_of(ids: np.ndarray, store: str, path: str, offset: int = 0, labels: tuple[str, ...] = ()) -> Shard:
    return Shard(hashlib.sha256(ids.tobytes()).hexdigest(), store, path, offset, len(ids), labels)


def test_shards_of_a_folder_are_mapped_where_they_lie(tmp_path: Path) -> None:
    (tmp_path / "a.ds").write_bytes(IDS.tobytes())
    shards = [shard_of(IDS[:32], "disk", "a.ds"), shard_of(IDS[32:], "disk", "a.ds", 64)]
    cache = ShardCache(ShardStores(version_of(disk=tmp_path), shards, "frankfurt"))
    cache.want(shards)
    assert cache.ids(shards[1]).tolist() == list(range(32, 64))
    assert cache.ids(shards[0]).tolist() == list(range(32))
    cache.close()


def test_wrong_bytes_are_read_from_another_store_or_refused(tmp_path: Path) -> None:
    for store, ids in {"lies": IDS + 1, "tells": IDS}.items():
        (tmp_path / store).mkdir()
        (tmp_path / store / "a.ds").write_bytes(ids.tobytes())
    lies, tells = (shard_of(IDS, store, "a.ds") for store in ("lies", "tells"))
    version = version_of(
        lies={"url": str(tmp_path / "lies"), "near": ["frankfurt"]}, tells=tmp_path / "tells", gone=tmp_path / "gone"
    )
    cache = ShardCache(ShardStores(version, [tells, lies], "frankfurt"))
    assert cache.ids(lies).tolist() == IDS.tolist()
    cache.close()
    gone = shard_of(IDS, "gone", "a.ds")
    cache = ShardCache(ShardStores(version, [gone, lies], "virginia"))
    with pytest.raises(BadInput, match=r"No such file.*lies: other bytes"):
        cache.ids(gone)
    cache.close()


@pytest.mark.parametrize("cached", [False, True])
def test_label_that_a_newer_version_gives_a_shard_holds_for_what_is_mapped_and_cached(
    tmp_path: Path, *, cached: bool
) -> None:
    (tmp_path / "a.ds").write_bytes(IDS.tobytes())
    shard = shard_of(IDS, "disk", "a.ds")
    labelled = shard_of(IDS, "disk", "a.ds", labels=("personal",))
    version = version_of(disk=tmp_path)
    if cached:  # as after a fetch from a bucket
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / shard.sha256).write_bytes(IDS.tobytes())
    for site, may_read in (("frankfurt", True), ("virginia", False)):
        cache = ShardCache(ShardStores(version, [shard], site))
        assert len(cache.ids(shard)) == 64
        cache.read_from(ShardStores(version, [labelled], site), lambda: [shard])
        assert cached is (tmp_path / "cache" / shard.sha256).exists() or not may_read
        if may_read:
            assert len(cache.ids(shard)) == 64
        else:
            with pytest.raises(BadInput, match="virginia may not read"):
                cache.ids(shard)
        cache.close()


class TakenBackError(Exception):
    """As the rounds of a site fail with it."""


@pytest.mark.parametrize("newest", ["without", "labelled"])
def test_shard_that_is_gone_and_that_the_newest_version_denies_waits_for_the_leader(
    tmp_path: Path, newest: str
) -> None:
    shard, other = shard_of(IDS, "disk", "gone.ds"), shard_of(IDS + 1, "disk", "a.ds")
    version = version_of(disk=tmp_path)
    shards = [other] if newest == "without" else [other, shard._replace(labels=("personal",))]
    asked = list[str]()

    def newest_stores() -> ShardStores:
        asked.append("newest")
        return ShardStores(version, shards, "virginia")

    def hear() -> None:
        if asked:
            raise TakenBackError

    cache = ShardCache(ShardStores(version, [shard, other], "virginia"), newest=newest_stores, hear=hear)
    with pytest.raises(TakenBackError):
        cache.ids(shard)
    cache.close()
    shards.append(shard)  # the newest version has it: the store is at fault
    cache = ShardCache(ShardStores(version, [shard, other], "virginia"), newest=newest_stores)
    with pytest.raises(BadInput, match="No such file"):
        cache.ids(shard)
    cache.close()


@pytest.mark.parametrize("denied", ["without", "labelled"])
def test_copy_of_what_a_newer_version_denies_is_removed_and_nothing_else(tmp_path: Path, denied: str) -> None:
    kept, gone, foreign = (shard_of(IDS + i, "disk", f"{i}.ds") for i in range(3))
    (tmp_path / "cache").mkdir(exist_ok=True)
    for one in (kept, gone, foreign):
        (tmp_path / "cache" / one.sha256).write_bytes(b"as fetched")
    version = version_of(disk=tmp_path)
    shards = [kept] if denied == "without" else [kept, gone._replace(labels=("personal",))]
    cache = ShardCache(ShardStores(version, [kept, gone], "virginia"))
    cache.read_from(ShardStores(version, shards, "virginia"), lambda: [kept, gone])
    here = {path.name for path in (tmp_path / "cache").iterdir()}
    assert here == {kept.sha256, foreign.sha256}  # the last one is of another data set
    cache.close()


def test_shard_that_is_removed_before_it_is_mapped_is_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by another process that makes room in the cache."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.ds").write_bytes(IDS.tobytes())
    shards = [shard_of(IDS, name, "a.ds") for name in ("a", "b")]
    version = version_of(a={"url": str(tmp_path / "a"), "near": ["frankfurt"]}, b=tmp_path / "b")
    cache = ShardCache(ShardStores(version, shards, "frankfurt"))
    memmap = np.memmap

    def late(path: Path, *args: Any, **more: Any) -> Any:
        path.unlink() if path.parent.name == "a" else None
        return memmap(path, *args, **more)

    monkeypatch.setattr(np, "memmap", late)
    assert cache.ids(shards[0]).tolist() == IDS.tolist()
    cache.close()


def test_full_disk_of_the_cache_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shard = shard_of(IDS, "web", "a.ds")
    version = version_of(web={"url": "https://127.0.0.1:9/"})
    room = list[str]()

    def fetched(stores: object, copy: object, partial: int, *_: object) -> str:
        if len(room) < 2:
            room.append("none")
            raise OSError(errno.ENOSPC, "No space left on device")
        os.write(partial, IDS.tobytes())
        return shard.sha256

    monkeypatch.setattr("geocomm.data.shard_cache.fetch", fetched)
    monkeypatch.setattr("geocomm.data.shard_cache._FIRST_PAUSE", 0.1)
    cache = ShardCache(ShardStores(version, [shard], "frankfurt"))
    assert cache.ids(shard).tolist() == IDS.tolist()
    assert room == ["none", "none"]
    cache.close()


def test_labelled_shard_is_not_opened_from_outside(tmp_path: Path) -> None:
    (tmp_path / "a.ds").write_bytes(IDS.tobytes())
    shard = shard_of(IDS, "disk", "a.ds", labels=("personal",))
    version = version_of(disk=tmp_path)
    cache = ShardCache(ShardStores(version, [shard], "frankfurt"))
    assert len(cache.ids(shard)) == 64
    cache.close()
    for site in ("virginia", "tokyo", "local"):
        with pytest.raises(BadInput, match="may not read"):
            ShardCache(ShardStores(version, [shard], site)).ids(shard)


def test_hash_of_a_folders_shard_is_compared_once_until_the_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "a.ds"
    file.write_bytes(IDS.tobytes())
    shard = shard_of(IDS, "disk", "a.ds")
    stores = ShardStores(version_of(disk=tmp_path), [shard], "frankfurt")
    first = ShardCache(stores)
    first.ids(shard)
    first.close()
    again = ShardCache(stores)
    again.ids(shard)
    assert again.counts()["waited_seconds"] == 0  # nothing was hashed
    again.close()
    file.write_bytes((IDS + 1).tobytes())
    changed = ShardCache(stores)
    with pytest.raises(BadInput, match="other bytes"):
        changed.ids(shard)
    changed.close()

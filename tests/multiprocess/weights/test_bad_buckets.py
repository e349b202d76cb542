"""A bucket (moto's, with its signatures) that is slow, dies in the middle, or lies: readers and relays stay at the
version that they have, whole, say why in a sentence, and go on once the bucket is well."""

from __future__ import annotations

import resource
import shutil
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from geocomm.core.errors import DataError
from geocomm.data import places
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Keys
from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader
from geocomm.weights.relay import StreamRelay
from geocomm.weights.stream_sources import StreamSources
from geocomm.weights.stream_version import NEWEST, frame_folder, version_path
from support.object_servers import S3Server, s3_server, write_tables
from support.store_between import StoreBetween, store_between
from support.weight_relays import serving
from support.weight_streams import equal, model_tensors, moved

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("bucket"), "eu") as server:
        yield server


class BadBucket:
    """A stream of two versions in a bucket, and a folder that has the first."""

    def __init__(self, between: StoreBetween, url: str, folder: Path) -> None:
        self.between, self.url, self.into = between, url, folder / "model"
        self.ca = JobCa.create(folder / "keys", "run7", ["a"], 30)
        self.ca.add("reader", 30, reader=True)
        self.place = places.open_place(self.url, self.url)
        self.tensors = model_tensors()
        self.versions: dict[int, dict[str, torch.Tensor]] = {}
        self.publisher = WeightPublisher(self.url, self.tensors, keys=self.ca.folder / "a")
        self.publish()
        self.files = self.read()
        with self.reader() as reader:
            assert reader.update() == 1
        self.publish()
        self.old, self.files = self.files, self.read()

    def publish(self) -> None:
        moved(self.tensors, 0.05)
        self.publisher.publish(wait=True)
        self.versions[self.publisher.last()] = {name: one.clone() for name, one in self.tensors.items()}

    def read(self) -> dict[str, bytes]:
        """All files of the stream."""
        return {name: self.place.read(name) for name in self.place.names()}

    @property
    def frame(self) -> str:
        """Path of the second version's largest."""
        frames = (name for name in self.files if name.startswith(frame_folder(2)))
        return max(frames, key=lambda name: len(self.files[name]))

    def keys(self) -> Keys:
        return Keys.load(self.ca.folder / "reader", readers=True)

    def reader(self, source: str = "", wait_s: float = 0.3) -> WeightReader:
        return WeightReader(source or self.url, self.into, keys=self.keys().folder, wait_s=wait_s)

    def require(self, version: int) -> None:
        """The folder is this version, whole, and nothing else lies beside it."""
        assert self.into.resolve().name == f".model.{version}"
        assert equal(load_file(self.into / "model.safetensors"), self.versions[version])
        assert not (self.into.parent / ".model.partial").exists()
        assert not list(self.into.parent.rglob("*.partial"))


@pytest.fixture
def bad(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BadBucket]:
    with store_between(server.endpoint) as between:
        table = server.table | {"endpoint": between.endpoint, "client_options": {"timeout": "2s"}}
        url = f"s3://tokens/{uuid.uuid4().hex}"
        tables = write_tables(tmp_path / "stores.toml", {url: table})
        monkeypatch.setenv("GEOCOMM_STORES", str(tables))
        monkeypatch.setattr(places, "_RETRIES", {"max_retries": 0, "retry_timeout": timedelta(seconds=1)})
        for cached in (places.open_place, places._tables):
            cached.cache_clear()
        made = BadBucket(between, url, tmp_path)
        yield made
        between.well()
        made.publisher.close()
        for cached in (places.open_place, places._tables):
            cached.cache_clear()


def _said(run: Callable[[], object]) -> str:
    """What went wrong; empty: nothing."""
    try:
        run()
    except DataError as error:
        return str(error)
    return ""


def _flipped(content: bytes) -> bytes:
    return content[:100] + bytes([content[100] ^ 1]) + content[101:]


def _frame(change: Callable[[bytes], bytes]) -> Callable[[BadBucket], None]:
    return lambda bad: bad.between.instead.update({bad.frame: change(bad.files[bad.frame])})


def _version(change: Callable[[bytes], bytes]) -> Callable[[BadBucket], None]:
    path = version_path(2)
    return lambda bad: bad.between.instead.update({path: change(bad.files[path])})


def _lacks_newest(bad: BadBucket) -> None:
    bad.place.remove(NEWEST)
    bad.between.hidden = {version_path(2)}


def _slow(bad: BadBucket) -> None:
    bad.between.bytes_per_second = 100.0


def _dead(bad: BadBucket) -> None:
    bad.between.dies_after = 5000


LIES: list[Any] = [
    pytest.param(_frame(_flipped), "has other bytes than its version says", id="wrong bytes"),
    pytest.param(_frame(lambda content: content[:-1]), "is shorter than its version says", id="truncated"),
    pytest.param(_frame(lambda _: b""), "frames/000000002/|416|range", id="empty"),
    pytest.param(_version(lambda content: content[:-9]), "version 2 of .* cannot be read", id="truncated version"),
    pytest.param(_version(_flipped), "version 2 ", id="wrong version"),
    pytest.param(_version(lambda _: b"[" * 99999), "version 2 of .* cannot be read", id="nonsense"),
    pytest.param(
        lambda bad: bad.between.instead.update({version_path(2): bad.old[version_path(1)]}),
        "says that it is version 1",
        id="an old version again",
    ),
    pytest.param(lambda bad: bad.between.instead.update({NEWEST: bad.old[NEWEST]}), "", id="an old hint again"),
    pytest.param(_lacks_newest, "", id="a list without the newest"),
    pytest.param(
        lambda bad: bad.between.endless.add(version_path(2)),
        "more than|body error",
        id="endless version",
    ),
    pytest.param(_slow, "timed out|timeout|body|error", id="slow"),
    pytest.param(_dead, "error", id="dead"),
]


@pytest.mark.parametrize(("lie", "said"), LIES)
def test_folder_stays_whole_and_goes_on_once_the_bucket_is_well(
    bad: BadBucket, lie: Callable[[BadBucket], None], said: str
) -> None:
    lie(bad)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with bad.reader() as reader:
        if said:
            with pytest.raises(DataError, match=said) as caught:
                reader.update()
            assert "\n" not in str(caught.value)
        assert reader.version == 1 if said else reader.update() == 1
        bad.require(1)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10
        bad.between.well()
        assert reader.update() == 2
        bad.require(2)


@pytest.mark.parametrize(("lie", "said"), LIES)
def test_relay_gives_out_nothing_that_is_wrong_and_goes_on_once_the_bucket_is_well(
    bad: BadBucket, lie: Callable[[BadBucket], None], said: str, tmp_path: Path
) -> None:
    keys, lines = bad.keys(), list[str]()
    sources = StreamSources([bad.place], tmp_path / "relay", keys=keys, wait_s=0.3)
    with serving(StreamRelay(sources, keys, lines.append)) as url, bad.reader(url) as reader:
        lie(bad)
        for _ in range(2):
            assert "\n" not in _said(reader.update)
        bad.require(1)
        assert all("\n" not in line for line in lines)
        bad.between.well()
        while reader.version < 2:  # the relay looks once a second
            if _said(reader.update):
                bad.require(1)
        bad.require(2)


def test_frames_and_hints_that_do_not_end_take_no_memory(bad: BadBucket) -> None:
    bad.between.endless = {bad.frame, NEWEST}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with bad.reader() as reader:
        assert reader.update() == 2
    bad.require(2)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_bucket_that_dies_and_comes_back_while_it_is_waited_for(bad: BadBucket) -> None:
    shutil.rmtree(bad.into.resolve())
    bad.into.unlink()
    bad.between.dies_after, bad.between.revives_after = 100_000, 4
    with bad.reader(wait_s=60) as reader:
        assert reader.update(first_within_s=60) == 2
    assert bad.between.closed >= 4
    bad.require(2)


def test_publisher_to_a_bucket_that_dies_in_the_middle_leaves_the_version_out(bad: BadBucket) -> None:
    bad.between.dies_after = 5000
    moved(bad.tensors, 0.05)
    with pytest.raises(DataError, match="cannot be written"):
        bad.publisher.publish(wait=True)
    bad.between.well()
    with bad.reader() as reader:
        assert reader.update() == 2
        bad.require(2)
        bad.publish()
        assert reader.update() == bad.publisher.last() == 3
        bad.require(3)


def test_publisher_whose_bucket_takes_a_version_and_does_not_say_so_goes_on_after_it(bad: BadBucket) -> None:
    bad.between.loses = {version_path(3)}
    with bad.reader() as reader:
        for version, said in ((2, "cannot be written"), (3, "took version 3 after all"), (4, "")):
            moved(bad.tensors, 0.05)
            assert said in _said(lambda: bad.publisher.publish(wait=True))
            bad.between.well()
            assert reader.update() == version
    assert equal(load_file(bad.into / "model.safetensors"), bad.tensors)

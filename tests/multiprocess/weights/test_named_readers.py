"""Versions that name their readers: others get no weights, whatever they ask."""

from __future__ import annotations

import pytest

from geocomm.core.addresses import Address
from geocomm.core.errors import DataError, InvalidArgumentError
from geocomm.security.key_folder import Keys
from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader
from geocomm.weights.relay_place import RelayPlace
from geocomm.weights.stream_version import frame_path, layout_path, read_version, version_path
from support.weight_relays import Region, serving
from support.weight_streams import equal, model_tensors

pytestmark = pytest.mark.timeout(120)


def test_weights_that_name_their_readers_are_had_by_those_alone(region: Region) -> None:
    region.publish()  # for all
    region.publisher.close()
    region.publisher = WeightPublisher(
        region.folder / "stream", region.tensors, keys=region.keys("a"), readers=["relay", "engine"]
    )
    region.publish()
    stranger = Keys.load(region.keys("stranger"), readers=True)
    with serving(region.relay()) as url:
        reader, into = region.reader(url)
        with reader:
            assert reader.update() == 2
        assert equal(into, region.tensors)
        for source in (url, str(region.folder / "stream")):
            with (
                WeightReader(source, model_tensors(), keys=stranger.folder, wait_s=0.1) as other,
                pytest.raises(DataError, match="version 2 is for engine, relay, and these keys are those of stranger"),
            ):
                other.update()
        # One that does not refuse itself gets what is no weights, and what is for all.
        place = RelayPlace(url, Address.parse(url.partition("://")[2]), stranger)
        mine = RelayPlace(url, Address.parse(url.partition("://")[2]), Keys.load(region.keys("engine"), readers=True))
        content = place.read(version_path(2))
        version = read_version(content, 2, url)
        assert place.read(layout_path(version.layout)) == mine.read(layout_path(version.layout))
        for frame in version.frames:
            assert mine.read(frame_path(2, frame))
            with pytest.raises(FileNotFoundError):
                place.read(frame_path(2, frame))
        for frame in read_version(place.read(version_path(1)), 1, url).frames:
            assert place.read(frame_path(1, frame))
        place.close()
        mine.close()
    with (
        WeightReader(str(region.folder / "stream"), model_tensors()) as other,
        pytest.raises(DataError, match="version 2 names who may read it: set GEOCOMM_KEYS"),
    ):
        other.update()


@pytest.mark.parametrize(
    ("readers", "keyed", "said"),
    [
        (["engine"], False, "readers needs keys"),
        ([], True, "must be a list of names"),
        ("engine", True, "must be a list of names"),
        (["a b"], True, "readers: site 'a b'"),
        ([f"engine{number}" for number in range(10_001)], True, "readers has 10001 names; 10000 is the most"),
    ],
)
def test_readers_that_nobody_can_be_are_refused(region: Region, readers: list[str], keyed: bool, said: str) -> None:
    keys = region.keys("a") if keyed else None
    with pytest.raises(InvalidArgumentError, match=said):
        WeightPublisher(region.folder / "new", region.tensors, keys=keys, readers=readers)


def test_version_that_is_for_others_is_fetched_once_however_often_one_looks(region: Region) -> None:
    region.publish()
    region.publisher.close()
    region.publisher = WeightPublisher(
        region.folder / "stream", region.tensors, keys=region.keys("a"), readers=["engine"]
    )
    sources = region.sources("cache")
    assert (newest := sources.newest()) is not None
    assert newest.number == 1
    region.publish()
    region.source.reads.clear()
    for _ in range(3):
        with pytest.raises(DataError, match="version 2 is for engine, and these keys are those of relay"):
            sources.newest()
    assert region.source.reads.count(version_path(2)) == 1


def test_relay_that_is_not_named_says_why_it_gives_out_nothing(region: Region) -> None:
    region.publisher.close()
    region.publisher = WeightPublisher(
        region.folder / "stream", region.tensors, keys=region.keys("a"), readers=["engine"]
    )
    region.publish()
    with serving(region.relay()) as url:
        reader, _ = region.reader(url)
        with reader:
            assert reader.update() == 0
    assert region.lines == [
        "this relay gives out no version: version 1 is for engine, and these keys are those of relay: its publisher "
        "names them"
    ]

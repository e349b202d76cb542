"""A reader of a damaged stream, of another one, or into a folder that is not its own: one sentence, and it stays."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from geocomm.core.errors import DataError, InvalidArgumentError
from geocomm.core.records import line_of
from geocomm.weights import stream_sources
from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import StreamFollower, WeightReader
from geocomm.weights.reader_targets import TensorsInPlace
from geocomm.weights.relay_place import open_source
from geocomm.weights.stream_sources import StreamSources
from geocomm.weights.stream_version import Hint
from support.weight_relays import Region, serving
from support.weight_streams import equal, model_tensors, moved, publish

pytestmark = pytest.mark.timeout(120)


class Damaged:
    """A stream of two versions, and a reader who has the first."""

    def __init__(self, folder: Path) -> None:
        self.stream, self.tensors = folder / "stream", model_tensors()
        self.into = {name: torch.zeros_like(tensor) for name, tensor in self.tensors.items()}
        self.publisher = WeightPublisher(self.stream, self.tensors)
        self.publisher.publish(wait=True)
        self.reader = WeightReader(str(self.stream), self.into, wait_s=0.5)
        assert self.reader.update() == 1
        self.was = {name: tensor.clone() for name, tensor in self.into.items()}
        moved(self.tensors, 0.01)
        self.publisher.publish(wait=True)
        self.publisher.close()

    @property
    def frame(self) -> Path:
        return max((self.stream / "frames/000000002").iterdir(), key=lambda path: path.stat().st_size)

    @property
    def version(self) -> Path:
        return self.stream / "versions/000000002.json"


@pytest.fixture
def damaged(tmp_path: Path) -> Damaged:
    return Damaged(tmp_path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("what", "damage", "said"),
    [
        ("frame", Path.unlink, "has no frames/000000002/"),
        ("frame", _cut, "is shorter than its version says"),
        ("frame", _flip, "has other bytes than its version says"),
        ("version", Path.unlink, "has no versions/000000002.json"),
        ("version", _cut, "version 2 of .* cannot be read"),
    ],
)
def test_what_is_missing_truncated_or_changed_is_one_sentence_and_the_tensors_stay(
    damaged: Damaged, what: str, damage: Callable[[Path], Any], said: str
) -> None:
    path: Path = getattr(damaged, what)
    content = path.read_bytes()
    damage(path)
    with pytest.raises(DataError, match=said) as caught:
        damaged.reader.update()
    assert "\n" not in str(caught.value)
    assert damaged.reader.version == 1
    assert equal(damaged.into, damaged.was)
    path.write_bytes(content)  # restored
    assert damaged.reader.update() == 2
    assert equal(damaged.into, damaged.tensors)


def test_tensors_that_were_changed_by_others_are_fetched_anew(
    damaged: Damaged, caplog: pytest.LogCaptureFixture
) -> None:
    damaged.into["b"][3] += 1
    assert damaged.reader.update() == 2
    assert equal(damaged.into, damaged.tensors)
    assert "weights: what is here is not version 1; all weights are fetched anew" in caplog.text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda into: into.pop("b"), "it has b, and here is none"),
        (lambda into: into.update(c=torch.zeros(1)), "it has no c"),
        (lambda into: into.update(b=torch.zeros(9).bfloat16()), "b is bfloat16 .* there, and bfloat16 .9. here"),
        (lambda into: into.update(b=into["b"].half()), "b is bfloat16 .* and float16"),
        (lambda into: into.update(b=into["b"].double()), "b is bfloat16 .* and float64"),
    ],
)
def test_stream_of_another_model_is_refused_in_a_sentence(
    damaged: Damaged, change: Callable[[dict[str, torch.Tensor]], Any], said: str
) -> None:
    into = dict(damaged.was)
    change(into)
    with WeightReader(str(damaged.stream), into) as reader, pytest.raises(DataError, match=f"another model: .*{said}"):
        reader.update()


@pytest.mark.parametrize("versions", [1, 2, 4])
def test_folder_does_not_take_another_stream_in_the_place_of_its_own(
    damaged: Damaged, tmp_path: Path, versions: int
) -> None:
    with WeightReader(str(damaged.stream), tmp_path / "model") as reader:
        assert reader.update() == 2
        shutil.rmtree(damaged.stream)
        publish(damaged.stream, damaged.tensors, versions, lambda: None)
        for again in (reader, None, None):
            follower = again or WeightReader(str(damaged.stream), tmp_path / "model")
            with follower, pytest.raises(DataError, match="is another stream than the one of version 2 here"):
                follower.update()


def test_stream_that_a_backup_took_back_is_followed_from_the_first_new_number_on(
    damaged: Damaged, tmp_path: Path
) -> None:
    shutil.copytree(damaged.stream, tmp_path / "backup")
    publish(damaged.stream, damaged.tensors, 3, lambda: moved(damaged.tensors, 0.01))
    with WeightReader(str(damaged.stream), tmp_path / "model") as reader:
        assert reader.update() == 5
        shutil.rmtree(damaged.stream)
        (tmp_path / "backup").rename(damaged.stream)
        publish(damaged.stream, damaged.tensors, 3, lambda: moved(damaged.tensors, 0.01))
        with pytest.raises(DataError, match="has another version 5 than the one here"):
            reader.update()
        with WeightPublisher(damaged.stream, damaged.tensors) as publisher:
            publisher.publish(wait=True)
        assert reader.update() == 6
    assert equal(load_file(tmp_path / "model/model.safetensors"), damaged.tensors)


@pytest.mark.parametrize("versions", [1, 2, 3, 4])
def test_what_a_relay_keeps_of_another_stream_counts_for_nothing(
    damaged: Damaged, tmp_path: Path, versions: int
) -> None:
    def followed() -> StreamFollower:
        sources = StreamSources([open_source(str(damaged.stream), None)], tmp_path / "kept", keys=None, wait_s=0)
        return StreamFollower(sources, TensorsInPlace(here, None))

    here, there = ({name: torch.empty_like(tensor) for name, tensor in damaged.tensors.items()} for _ in "ab")
    follower = followed()
    assert follower.update()
    shutil.rmtree(damaged.stream)
    publish(damaged.stream, damaged.tensors, versions, lambda: moved(damaged.tensors, 0.01))
    with pytest.raises(DataError, match="is another stream"):
        follower.update()
    follower.close()
    follower = followed()
    assert follower.update()
    with WeightReader(str(damaged.stream), there) as reader:
        assert reader.update() == versions
    assert equal(here, there)
    follower.close()


def test_relay_that_missed_that_a_stream_was_made_anew_tells_of_the_new_one(region: Region) -> None:
    region.publish(2)
    stream, new = region.folder / "stream", region.folder / "new"
    with serving(region.relay()) as url:
        reader, _ = region.reader(url)
        with reader:
            assert reader.update() == 2
            publish(new, region.tensors, 2, lambda: moved(region.tensors, 0.01), keys=region.keys("a"))
            stream.rename(region.folder / "old")
            new.rename(stream)  # with the number that the relay has
            with suppress(DataError):
                while reader.update() == 2:  # it may look once a second
                    time.sleep(0.05)
            with pytest.raises(DataError, match="is another stream than the one of version 2 here"):
                reader.update()
        anew, into = region.reader(url)
        with anew:
            assert anew.update() == 2
        direct, expected = region.reader(str(stream))
        with direct:
            assert direct.update() == 2
        assert equal(into, expected)


def test_folder_that_somebody_damaged_is_made_anew(damaged: Damaged, tmp_path: Path) -> None:
    with WeightReader(str(damaged.stream), tmp_path / "model") as reader:
        assert reader.update() == 2
    _flip(tmp_path / "model/model.safetensors")
    with WeightPublisher(damaged.stream, damaged.tensors) as publisher:
        publisher.publish(wait=True)
        moved(damaged.tensors, 0.01)
        publisher.publish(wait=True)
    with WeightReader(str(damaged.stream), tmp_path / "model") as reader:
        assert reader.update() == 4
    assert equal(load_file(tmp_path / "model/model.safetensors"), damaged.tensors)


def test_folder_of_something_else_and_one_that_is_followed_already_are_refused(
    damaged: Damaged, tmp_path: Path
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/thesis.tex").touch()
    with pytest.raises(InvalidArgumentError, match="has other files in it"):
        WeightReader(str(damaged.stream), tmp_path / "mine")
    assert (tmp_path / "mine/thesis.tex").exists()
    with (
        WeightReader(str(damaged.stream), tmp_path / "model"),
        pytest.raises(InvalidArgumentError, match="followed by another"),
    ):
        WeightReader(str(damaged.stream), tmp_path / "model")


def test_of_several_sources_one_that_lies_and_one_that_lacks_files_are_passed_over(
    damaged: Damaged, tmp_path: Path
) -> None:
    lying, lacking = tmp_path / "lying", tmp_path / "lacking"
    for copy in (lying, lacking):
        shutil.copytree(damaged.stream, copy)
    _flip(lying / damaged.frame.relative_to(damaged.stream))
    (lying / "versions/000000001.json").write_text("{}")
    shutil.rmtree(lacking / "frames")
    with WeightReader([str(lying), str(lacking), str(damaged.stream)], damaged.was) as reader:
        assert reader.update() == 2
    assert equal(damaged.was, damaged.tensors)


def test_source_that_is_held_up_keeps_no_reader_back_for_long(
    damaged: Damaged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_up = tmp_path / "held_up"
    shutil.copytree(damaged.stream, held_up)
    with WeightReader([str(held_up), str(damaged.stream)], damaged.was) as reader:
        assert reader.update() == 2
        with WeightPublisher(damaged.stream, damaged.tensors) as publisher:
            publisher.publish(wait=True)
        assert reader.update() == 2  # the first source alone is asked
        monkeypatch.setattr(stream_sources, "_SAME_S", -1.0)
        assert reader.update() == 3


def test_source_that_tells_of_a_version_that_nobody_has_is_passed_over(
    damaged: Damaged, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lying = tmp_path / "lying"
    lying.mkdir()
    (lying / "newest.json").write_text(line_of(Hint.of(999, b"")))
    with pytest.raises(DataError, match="999"), WeightReader(str(lying), damaged.was) as reader:
        reader.update()
    with WeightReader([str(lying), str(damaged.stream)], damaged.was) as reader:
        assert reader.update() == 2
    assert "lying has no versions/000000999.json" in caplog.text

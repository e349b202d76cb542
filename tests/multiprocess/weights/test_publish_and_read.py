"""A publisher and readers on a folder: every version bit for bit, or one sentence and the version before."""

from __future__ import annotations

import json
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from geocomm.core.errors import DataError, InvalidArgumentError
from geocomm.data.places import Folder
from geocomm.security.job_ca import JobCa
from geocomm.weights import publisher as publisher_module
from geocomm.weights import weight_folder
from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader
from geocomm.weights.stream_version import hint_of
from support.log_lines import once_said
from support.small_disk import small_disk
from support.weight_streams import bits, changed, equal, model_tensors, moved, newest_of, publish

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    return tmp_path / "stream"


def test_waits_for_a_first_version_are_said_and_end(
    stream: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("geocomm.core.patience.FIRST_WORD_S", 0.1)
    tensors = model_tensors()
    with WeightReader(str(stream), model_tensors()) as reader:
        with pytest.raises(DataError, match=f"no version of {stream} within 1.5 s: it has none yet"):
            reader.update(first_within_s=1.5)
        with (
            WeightPublisher(stream, tensors) as publisher,
            once_said(caplog, f"waiting for a version of {stream}: it has none yet", publisher.publish),
        ):
            assert reader.update(first_within_s=60) == 1


def test_readers_in_memory_and_in_a_folder_have_each_version_bit_for_bit(stream: Path, tmp_path: Path) -> None:
    tensors = model_tensors()
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with (
        WeightPublisher(stream, tensors, anchor_every=4) as publisher,
        WeightReader(str(stream), into) as reader,
        WeightReader(str(stream), tmp_path / "model") as in_folder,
    ):
        assert reader.update() == in_folder.update() == 0
        for step in range(10):
            publisher.publish(step=10 * step, wait=True)
            if step % 3 != 1:  # some are left out
                assert reader.update() == in_folder.update() == publisher.last() == step + 1
                assert reader.step == 10 * step
                assert equal(into, tensors)
                assert equal(load_file(tmp_path / "model/model.safetensors"), tensors)
                said = json.loads((tmp_path / "model/geocomm.json").read_text())
                assert (said["number"], said["step"]) == (step + 1, 10 * step)
            changed(tensors)


def test_tensors_of_float32_take_versions_of_16_bits_and_deltas_of_them(stream: Path) -> None:
    """Engines keep some weights in float32, such as the router of DeepSeek's models."""
    tensors = {"a": torch.randn(300, 50).bfloat16(), "b": torch.randn(4000).half()}
    into = {name: torch.zeros_like(tensor, dtype=torch.float32) for name, tensor in tensors.items()}
    with WeightPublisher(stream, tensors) as publisher, WeightReader(str(stream), into) as reader:
        for version in (1, 2, 3):
            publisher.publish(wait=True)
            assert reader.update() == version
            assert equal(into, {name: tensor.float() for name, tensor in tensors.items()})
            moved(tensors, 0.01)
        shutil.rmtree(stream / "frames/000000001")  # so each was a delta to what is here
        publisher.publish(wait=True)
        assert reader.update() == 4


@settings(max_examples=8, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(
            st.lists(st.integers(0, 9), max_size=3).map(tuple),
            st.sampled_from([torch.bfloat16, torch.float32, torch.int64, torch.bool, torch.float8_e4m3fn]),
            st.booleans(),
        ),
        min_size=1,
        max_size=3,
    ),
    part_bytes=st.integers(300, 3000),
)
def test_any_shapes_are_published_and_read(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: list[tuple[tuple[int, ...], torch.dtype, bool]],
    part_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("any")
    tensors = {}
    for at, (shape, dtype, is_turned) in enumerate(shapes):
        raw = torch.randint(0, 2, (*shape, dtype.itemsize), dtype=torch.uint8).view(dtype)
        tensors[f"t{at}"] = (
            raw.reshape(shape).permute(tuple(range(len(shape))[::-1])) if is_turned else raw.reshape(shape)
        )
    into = {name: torch.empty(tensor.shape, dtype=tensor.dtype) for name, tensor in tensors.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publisher_module, "PART_BYTES", part_bytes)
        patch.setattr(weight_folder, "FILE_BYTES", 5000)
        with (
            WeightPublisher(folder / "stream", tensors, anchor_every=2) as publisher,
            WeightReader(str(folder / "stream"), into) as reader,
            WeightReader(str(folder / "stream"), folder / "model") as in_folder,
        ):
            for version in range(1, 4):
                publisher.publish(wait=True)
                assert reader.update() == in_folder.update() == version
                assert equal(into, tensors)
                found: dict[str, torch.Tensor] = {}
                for path in (folder / "model").glob("*.safetensors"):
                    found |= load_file(path)
                assert equal(found, tensors)
                for tensor in tensors.values():
                    if tensor.numel() and tensor.dtype != torch.bool:
                        tensor.reshape(-1)[:1].view(torch.uint8).bitwise_xor_(1)


def test_module_is_cast_tied_weights_are_sent_once_and_a_module_reads_them(stream: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self, dtype: torch.dtype) -> None:
            super().__init__()
            self.embed = torch.nn.Embedding(50, 16, dtype=dtype)
            self.head = torch.nn.Linear(16, 50, bias=False, dtype=dtype)
            self.head.weight = self.embed.weight
            self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    trained, used = Tied(torch.float32), Tied(torch.bfloat16)
    with WeightPublisher(stream, trained, dtype=torch.bfloat16) as publisher:
        publisher.publish(wait=True)
        (layout,) = (stream / "layouts").iterdir()
        assert [one[:2] for one in json.loads(layout.read_bytes())["tensors"]] == [
            ["steps", "int64"],
            ["embed.weight", "bfloat16"],
        ]
        reader = WeightReader(str(stream), used)
        assert reader.update() == 1
    assert torch.equal(used.head.weight, trained.embed.weight.bfloat16())


def test_adapter_alone_is_a_stream(stream: Path) -> None:
    adapter = {f"layer.{at}.lora_{side}.weight": torch.randn(8, 8) for at in range(2) for side in "AB"}
    into = {name: torch.empty(8, 8) for name in adapter}
    publish(stream, adapter, 2, lambda: None)
    assert WeightReader(str(stream), into).update() == 2
    assert equal(into, adapter)


def test_delta_that_is_no_win_is_sent_whole_and_the_version_says_so(stream: Path) -> None:
    tensors = {"w": torch.randn(300, 300).bfloat16()}
    publish(stream, tensors, 3, lambda: tensors["w"].copy_(torch.randn(300, 300).bfloat16()))
    version = json.loads((stream / "versions/000000003.json").read_bytes())
    assert version["delta"] is None
    assert version["anchors"] == [2, 3]
    assert not (stream / "versions/000000001.json").exists()
    into = {"w": torch.empty(300, 300, dtype=torch.bfloat16)}
    assert WeightReader(str(stream), into).update() == 3


def test_few_changes_cost_little_more_than_their_entropy(stream: Path) -> None:
    tensors = {"w": (torch.randn(2000, 2000) * 0.02).bfloat16()}
    publish(stream, tensors, 2, lambda: moved(tensors, 0.01))
    version = json.loads((stream / "versions/000000002.json").read_bytes())
    (frame,) = version["delta"]
    bound = 4e6 * (0.0808 + 0.01) / 8
    assert frame[1] + (stream / "versions/000000002.json").stat().st_size < 1.05 * bound


def test_earlier_versions_go_once_two_newer_anchors_are_there(stream: Path) -> None:
    tensors = model_tensors()
    publish(stream, tensors, 10, lambda: moved(tensors, 0.01), anchor_every=4)
    kept = sorted(int(path.stem) for path in (stream / "versions").iterdir())
    assert kept == [5, 6, 7, 8, 9, 10]
    assert sorted(int(path.name) for path in (stream / "frames").iterdir()) == kept
    assert hint_of(Folder("stream", stream)) == newest_of(stream, 10)


def test_reader_takes_the_fewest_bytes(stream: Path) -> None:
    """Few deltas, or the newest anchor and what follows it, where a reader was away for long."""
    tensors = model_tensors()
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}

    def size(frames: list[list[Any]]) -> int:
        return sum(frame[1] for frame in frames)

    with WeightPublisher(stream, tensors, anchor_every=30) as publisher, WeightReader(str(stream), into) as reader:
        for _ in range(3):
            publisher.publish(wait=True)
            moved(tensors, 0.01)
        assert reader.update() == 3
        before = reader._sources.fetched_bytes
        for _ in range(2):
            publisher.publish(wait=True)
            moved(tensors, 0.01)
        assert reader.update() == 5
        versions = {int(path.stem): json.loads(path.read_bytes()) for path in (stream / "versions").iterdir()}
        assert reader._sources.fetched_bytes - before == sum(size(versions[at]["delta"]) for at in (4, 5))
        for _ in range(60):
            publisher.publish(wait=True)
            moved(tensors, 0.3)
        before = reader._sources.fetched_bytes
        assert reader.update() == 65
        versions = {int(path.stem): json.loads(path.read_bytes()) for path in (stream / "versions").iterdir()}
        newest = versions[65]["anchors"][-1]
        assert reader._sources.fetched_bytes - before == size(versions[newest]["whole"]) + sum(
            size(versions[at]["delta"]) for at in range(newest + 1, 66)
        )
        assert sum(size(one["delta"]) for one in versions.values() if one["delta"]) > size(versions[newest]["whole"])


def test_publisher_that_starts_again_goes_on_with_the_next_number(stream: Path) -> None:
    tensors = model_tensors()
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    publish(stream, tensors, 2, lambda: moved(tensors, 0.01))
    reader = WeightReader(str(stream), into)
    assert reader.update() == 2
    (stream / "newest.json").unlink()  # it died before it could say so
    with WeightPublisher(stream, tensors) as publisher:
        assert publisher.last() == 2
        assert hint_of(Folder("stream", stream)) == newest_of(stream, 2)
        publisher.publish(wait=True)
        assert reader.update() == publisher.last() == 3
    assert equal(into, tensors)


def test_second_publisher_of_a_stream_is_refused_by_number(stream: Path) -> None:
    first, second = WeightPublisher(stream, model_tensors()), WeightPublisher(stream, model_tensors())
    first.publish(wait=True)
    for _ in range(2):
        with pytest.raises(DataError, match="has version 1 since just now: another publisher writes to it"):
            second.publish(wait=True)
    with pytest.raises(DataError, match="another publisher"):
        second.close()
    first.publish(wait=True)
    assert first.last() == 2
    first.close()


@pytest.mark.parametrize("answers", [["taken"], ["taken", "not taken"], ["not taken", "taken", "not taken"]])
def test_place_that_took_a_version_and_said_that_it_failed_is_gone_on_with(
    stream: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    """As a bucket whose answer is lost: the version may be out, and no other publisher has made it."""
    tensors = model_tensors()
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    create, left = Folder.create, list[str]()

    def create_and_fail(self: Folder, path: str, content: bytes) -> bool:
        answer = left.pop(0) if left and path.startswith("versions/") else ""
        created = answer != "not taken" and create(self, path, content)
        if answer:
            raise OSError("the answer was lost")
        return created

    monkeypatch.setattr(Folder, "create", create_and_fail)
    with WeightPublisher(stream, tensors) as publisher, WeightReader(str(stream), into) as reader:
        publisher.publish(wait=True)
        left += answers
        for answer in answers:
            moved(tensors, 0.01)
            if answer == "taken":
                taken = {name: tensor.clone() for name, tensor in tensors.items()}
            with pytest.raises(DataError, match="the answer was lost"):
                publisher.publish(wait=True)
        moved(tensors, 0.01)
        with pytest.raises(DataError, match="took version 2 after all"):
            publisher.publish(wait=True)
        assert publisher.last() == 2
        (stream / "newest.json").unlink()
        assert reader.update() == 2
        assert equal(into, taken)
        publisher.publish(wait=True)
        assert reader.update() == publisher.last() == 3
    assert equal(into, tensors)


def test_publish_copies_what_the_loop_goes_on_to_change(stream: Path) -> None:
    tensors = model_tensors()
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with WeightPublisher(stream, tensors) as publisher:
        publisher.publish()
        as_published = {name: tensor.clone() for name, tensor in tensors.items()}
        for tensor in tensors.values():
            tensor.fill_(7)
    assert WeightReader(str(stream), into).update() == 1
    assert equal(into, as_published)


def _fill(path: Path, most: int) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        for _ in range(most // 4096):
            file.write(bytes(4096))


def test_full_disk_leaves_out_a_version_and_the_next_one_has_it_all(tmp_path: Path) -> None:
    tensors = {"w": torch.randn(1 << 17).bfloat16()}
    into = {"w": torch.empty(1 << 17, dtype=torch.bfloat16)}
    with small_disk(tmp_path / "disk") as disk, WeightPublisher(disk / "stream", tensors) as publisher:
        publisher.publish(wait=True)
        _fill(disk / "fill", 1 << 20)
        moved(tensors, 0.01)
        with pytest.raises(DataError, match="No space left"):
            publisher.publish(wait=True)
        assert publisher.last() == 1
        (disk / "fill").unlink()
        moved(tensors, 0.01)
        publisher.publish(wait=True)
        assert WeightReader(str(disk / "stream"), into).update() == publisher.last() == 2
        assert equal(into, tensors)


@pytest.mark.parametrize("full", ["model", "cache"])
def test_reader_whose_disk_is_full_stays_at_its_version(stream: Path, tmp_path: Path, full: str) -> None:
    tensors = {"w": torch.randn(1 << 17).bfloat16()}
    with small_disk(tmp_path / "disk") as disk, WeightPublisher(stream, tensors) as publisher:
        publisher.publish(wait=True)
        place = {"model": tmp_path / "model", "cache": tmp_path / "cache"} | {full: disk / full}
        with WeightReader(str(stream), place["model"], cache=place["cache"]) as reader:
            assert reader.update() == 1
            was = load_file(place["model"] / "model.safetensors")
            moved(tensors, 0.01)
            publisher.publish(wait=True)
            _fill(disk / "fill", 2 << 20 if full == "cache" else 600 << 10)
            with pytest.raises(DataError, match="cannot be kept"):
                reader.update()
            assert reader.version == 1
            assert equal(load_file(place["model"] / "model.safetensors"), was)
            (disk / "fill").unlink()
            assert reader.update() == 2
        assert equal(load_file(place["model"] / "model.safetensors"), tensors)


# ---- with keys


def test_only_what_a_site_of_the_job_has_signed_counts(tmp_path: Path) -> None:
    ca = JobCa.create(tmp_path / "keys", "run7", ["a", "b"], 30)
    reading = ca.add("serving", 30, reader=True)
    other = JobCa.create(tmp_path / "others", "run7", ["a"], 30).folder / "a"
    tensors = model_tensors()
    for name, keys in (("good", ca.folder / "a"), ("unsigned", None), ("forged", other)):
        publish(tmp_path / name, tensors, 1, lambda: None, keys=keys)
    said = {"unsigned": "is not signed", "forged": "signed by nobody who may", "good": "signed by site a, and b is its"}
    for name, text in said.items():
        publisher = "b" if name == "good" else None
        with WeightReader(
            str(tmp_path / name), model_tensors(), keys=reading, publisher=publisher, wait_s=0.1
        ) as reader:
            with pytest.raises(DataError, match=text):
                reader.update()
            assert reader.version == 0
    for keys in (reading, ca.folder / "b", None):
        with WeightReader(str(tmp_path / "good"), model_tensors(), keys=keys) as reader:
            assert reader.update() == 1
    with pytest.raises(InvalidArgumentError, match="may fetch streams of weights, and nothing else"):
        WeightPublisher(tmp_path / "new", tensors, keys=reading)


def test_what_cannot_be_published_is_refused(stream: Path) -> None:
    for tensors, said in (
        ({"w": torch.zeros(2, dtype=torch.complex64)}, "w is torch.complex64"),
        ({"w": 3}, "w is no tensor"),
    ):
        with pytest.raises(InvalidArgumentError, match=said):
            WeightPublisher(stream, tensors)
    with pytest.raises(InvalidArgumentError, match="anchor_every"):
        WeightPublisher(stream, {}, anchor_every=0)
    with pytest.raises(InvalidArgumentError, match="only read from"):
        WeightPublisher("http://127.0.0.1:9/x", {})
    tensors = {"w": torch.zeros(2)}
    with WeightPublisher(stream, tensors) as publisher:
        tensors["w"] = torch.zeros(3)
        with pytest.raises(InvalidArgumentError, match="others than those"):
            publisher.publish()
    with pytest.raises(InvalidArgumentError, match="closed"):
        publisher.publish()


def test_nan_and_negative_zero_keep_their_bits(stream: Path) -> None:
    values = torch.tensor([float("nan"), -0.0, float("inf"), 0.0])
    values.view(torch.int32)[0] = 0x7FC12345
    into = {"w": torch.zeros(4)}
    publish(stream, {"w": values}, 2, lambda: values.neg_())
    assert WeightReader(str(stream), into).update() == 2
    assert torch.equal(bits(into["w"]), bits(values.neg()))

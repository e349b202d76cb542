"""A publisher with good keys that lies in each field: one sentence, and the reader stays at its version."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import geocomm
from geocomm.core.errors import DataError
from geocomm.core.records import line_of
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Keys
from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader
from geocomm.weights.stream_version import FrameFile, WeightVersion, frame_path, layout_path, version_path
from geocomm.weights.weight_layout import Box, TensorShape, WeightLayout, WeightPart
from support.weight_streams import equal, moved

pytestmark = pytest.mark.timeout(120)


class Liar:
    """A stream of two versions; the second is written anew, and signed."""

    def __init__(self, folder: Path) -> None:
        self.stream, ca = folder / "stream", JobCa.create(folder / "keys", "run7", ["a"], 30)
        self.keys = Keys.load(ca.folder / "a")
        self.tensors = {"w": torch.randn(5000).bfloat16()}
        with WeightPublisher(self.stream, self.tensors, keys=self.keys.folder) as publisher:
            publisher.publish(wait=True)
            self.first = {"w": self.tensors["w"].clone()}
            self.readers = [
                WeightReader(str(self.stream), into, keys=self.keys.folder, wait_s=0.1)
                for into in ({"w": torch.zeros(5000).bfloat16()}, str(folder / "model"))
            ]
            assert [reader.update() for reader in self.readers] == [1, 1]
            moved(self.tensors, 0.05)
            publisher.publish(wait=True)
        self.version = WeightVersion.model_validate_json((self.stream / version_path(2)).read_bytes())

    def say(self, **changes: Any) -> None:
        """The second version, with these fields."""
        lie = self.version.model_copy(update=changes).signed_by(self.keys)
        (self.stream / version_path(2)).write_bytes(line_of(lie).encode())

    def say_unsigned(self, **changes: Any) -> None:
        """So, below the signature of what it was."""
        (self.stream / version_path(2)).write_bytes(line_of(self.version.model_copy(update=changes)).encode())

    def frame(self, content: bytes, *, whole: bool) -> tuple[FrameFile]:
        """A frame of the second version."""
        sha256 = hashlib.sha256(content).hexdigest()
        (self.stream / frame_path(2, sha256)).write_bytes(content)
        return (FrameFile(sha256, len(content), whole),)

    def layout(self, *tensors: TensorShape, boxes: tuple[Box, ...]) -> str:
        """A layout of one part."""
        content = line_of(WeightLayout(tensors=tensors, parts=(WeightPart(tensors[0].dtype, boxes),))).encode()
        sha256 = hashlib.sha256(content).hexdigest()
        (self.stream / layout_path(sha256)).write_bytes(content)
        return sha256


def _delta(size: int, dtype: torch.dtype = torch.bfloat16) -> bytes:
    made: Any = geocomm.make_delta(torch.ones(size, dtype=dtype), torch.zeros(size, dtype=dtype)).numpy()
    return made.tobytes()


def _whole(size: int) -> bytes:
    made: Any = geocomm.compress(torch.ones(size).bfloat16(), "lossless").numpy()
    return made.tobytes()


LARGE = 2**28


@pytest.mark.parametrize(
    "lie",
    [
        lambda liar: liar.say(parts=("0" * 32,)),
        lambda liar: liar.say(delta=liar.frame(b"\x00" * 100, whole=False)),
        lambda liar: liar.say(delta=liar.frame(b"\x00" * 100, whole=True)),
        lambda liar: liar.say(delta=liar.frame(_delta(5000)[:-1], whole=False)),
        lambda liar: liar.say(delta=liar.frame(_delta(4999), whole=False)),
        lambda liar: liar.say(delta=liar.frame(_delta(5000, torch.float32), whole=False)),
        lambda liar: liar.say(delta=liar.frame(_whole(5000), whole=False)),
        lambda liar: liar.say(delta=liar.frame(_whole(5001), whole=True)),
        lambda liar: liar.say(delta=liar.frame(_whole(5000), whole=True)),
        lambda liar: liar.say(delta=(FrameFile("0" * 64, 2**39, False),)),
        lambda liar: liar.say(delta=(liar.version.delta[0]._replace(bytes=liar.version.delta[0].bytes - 1),)),
        lambda liar: liar.say(delta=(liar.version.delta[0]._replace(bytes=liar.version.delta[0].bytes + 1),)),
        lambda liar: liar.say(delta=(liar.version.delta[0]._replace(whole=True),)),
        lambda liar: liar.say(delta=(liar.version.delta[0]._replace(sha256="0" * 64),)),
        lambda liar: liar.say(delta=liar.version.delta * 2),
        lambda liar: liar.say(parts=liar.version.parts * 2, delta=liar.version.delta * 2),
        lambda liar: liar.say(base=None, delta=None),
        lambda liar: liar.say(anchors=(2,)),
        lambda liar: liar.say(anchors=(3,)),
        lambda liar: liar.say(step=-1),
        lambda liar: liar.say(time=-1),
        lambda liar: liar.say(geocomm_weights=2),
        lambda liar: liar.say_unsigned(publisher="b"),
        lambda liar: liar.say_unsigned(step=7),
        lambda liar: liar.say_unsigned(signature=None),
        lambda liar: liar.say(base="0" * 64),
        lambda liar: liar.say(number=1),
        lambda liar: liar.say(stream="0" * 32),
        lambda liar: liar.say(layout="0" * 64),
        lambda liar: liar.say(
            layout=liar.layout(TensorShape("w", "bfloat16", (4999,)), boxes=(Box(0, (0,), (4999,)),))
        ),
        lambda liar: liar.say(
            layout=liar.layout(TensorShape("../../x", "bfloat16", (5000,)), boxes=(Box(0, (0,), (5000,)),))
        ),
        lambda liar: liar.say(
            layout=liar.layout(TensorShape("w", "float32", (LARGE,)), boxes=(Box(0, (0,), (LARGE,)),)),
            base=None,
            delta=None,
            whole=liar.frame(_whole(5000), whole=True),
            anchors=(1, 2),
        ),
    ],
)
def test_lie_is_one_sentence(tmp_path: Path, lie: Callable[[Liar], None]) -> None:
    liar = Liar(tmp_path)
    lie(liar)
    for reader in liar.readers:
        with pytest.raises(DataError) as caught:
            reader.update()
        assert "\n" not in str(caught.value)
        assert reader.version == 1
        reader.close()
    assert equal(load_file(tmp_path / "model/model.safetensors"), liar.first)
    assert equal(liar.readers[0]._target._tensors, liar.first)  # type: ignore[attr-defined]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(".model.1", ".model.lock", ".model.stream", "keys", "model", "stream")
    ]

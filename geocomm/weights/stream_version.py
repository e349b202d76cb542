"""A version of a stream of weights: what its file says, who has signed it, and where the stream's files lie.

    STREAM/newest.json              {"number": 17, "sha256": of its file}: a hint
    STREAM/versions/000000017.json  a `WeightVersion`
    STREAM/layouts/SHA256           a `WeightLayout`
    STREAM/frames/000000017/SHA256  a frame: a part of the model, as a delta or whole

Of two publishers that write one number the second is refused. What is read is hostile until it is validated.
"""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from typing import Annotated, Any, Literal, NamedTuple, Self

import torch
import xxhash
from pydantic import Field, ValidationError, model_validator

from geocomm.core.errors import DataError
from geocomm.core.records import MANY, Hash, Record, Whole, canonical, line_of, read_record
from geocomm.data.places import FilePlace
from geocomm.security.key_folder import Keys, KeysError
from geocomm.security.signatures import Signature, signer_of
from geocomm.weights.weight_layout import WeightLayout

NEWEST = "newest.json"
VERSIONS = "versions/"
FRAMES = "frames/"
MOST_FILE_BYTES = 32 << 20
"""Of a version's file, or of a layout."""
MOST_NUMBER = 999_999_999
_SHOWN = 5
_HINT_BYTES = 1024
"""Of which a hint has fewer."""
MOST_READERS = 10_000
_SIGNED = b"geocomm weights 1\n"
_FILE = re.compile(r"versions/([0-9]{9})\.json|layouts/([0-9a-f]{64})|frames/([0-9]{9})/([0-9a-f]{64})")

Number = Annotated[int, Field(ge=1, le=MOST_NUMBER)]
_Name = Annotated[str, Field(pattern=r"^[\x21-\x7e]+$", max_length=128)]
Digest128 = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]


class FrameFile(NamedTuple):
    """A part of the model at one version."""

    sha256: Hash
    bytes: Annotated[int, Field(ge=1, lt=2**40)]
    whole: bool
    """It is a payload of `compress`, and no delta."""


class Hint(Record):
    """The newest version, as whoever keeps the files says."""

    number: Number
    sha256: Hash
    """Of its file: another version of this number is of a stream that was made anew in the same place."""

    @classmethod
    def of(cls, number: int, content: bytes) -> Self:
        """Of a version's file."""
        return cls(number=number, sha256=hashlib.sha256(content).hexdigest())


class WeightVersion(Record):
    """A version: what a model's tensors are, by the hashes of its parts, and what makes them."""

    geocomm_weights: Literal[1] = 1
    stream: Digest128
    """A name that the first publisher has drawn."""
    number: Number
    step: Whole | None
    time: Whole
    """When it was published, in Unix seconds, by the publisher's clock."""
    layout: Hash
    parts: Annotated[tuple[Digest128, ...], MANY]
    """XXH3-128 of each part's raw bytes."""
    base: Hash | None
    """`result` of the version before, which the delta is to; None: there is no delta."""
    delta: Annotated[tuple[FrameFile, ...], MANY] | None
    """A frame for each part."""
    whole: Annotated[tuple[FrameFile, ...], MANY] | None
    """A frame for each part, which need no base: it is an anchor."""
    anchors: Annotated[tuple[Number, ...], Field(min_length=1, max_length=2)]
    """The newest versions up to this one that need no base, two at the most."""
    readers: Annotated[tuple[_Name, ...], Field(max_length=MOST_READERS, fail_fast=True)] = ()
    """The names of the keys that may have its weights; empty: all of the job."""
    publisher: _Name | Literal[""] = ""
    """Its site, where it is signed."""
    signature: Signature | None = None

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        for frames in (self.delta, self.whole):
            if frames is not None and len(frames) != len(self.parts):
                raise ValueError(f"{len(frames)} frames for {len(self.parts)} parts")
        if (self.delta is None) != (self.base is None) or (self.delta is None and self.whole is None):
            raise ValueError("neither a delta with its base nor whole")
        if self.whole is not None and not all(frame.whole for frame in self.whole):
            raise ValueError("a delta among whole frames")
        if list(self.anchors) != sorted(set(self.anchors)) or self.anchors[-1] > self.number:
            raise ValueError("anchors out of order")
        if (self.anchors[-1] == self.number) != (self.whole is not None):
            raise ValueError("an anchor that does not say so")
        return self

    @property
    def result(self) -> str:
        """SHA-256 of layout and parts: equal for equal tensors, packed in one way."""
        return hashlib.sha256(canonical([self.layout, self.parts]).encode()).hexdigest()

    @property
    def frames(self) -> dict[str, FrameFile]:
        """All, by their hash."""
        return {frame.sha256: frame for frame in (*(self.delta or ()), *(self.whole or ()))}

    def signed_by(self, keys: Keys) -> Self:
        """With the signature of a site."""
        named = self.model_copy(update={"publisher": keys.identity.site, "signature": None})
        return named.model_copy(update={"signature": Signature.make(keys, named._content())})

    def require_signer(self, keys: Keys, publisher: str) -> None:
        """DataError unless a site of this job has signed it, and that one where `publisher` names it."""
        if self.signature is None:
            raise DataError(f"version {self.number} is not signed: publish with keys, or read without")
        try:
            signer = signer_of(self.signature, self.model_copy(update={"signature": None})._content(), keys)
        except KeysError as error:
            raise DataError(f"version {self.number} is signed by nobody who may: {error}") from None
        if signer != self.publisher or publisher not in ("", signer):
            raise DataError(
                f"version {self.number} is signed by site {signer}, and {publisher or self.publisher} is its publisher"
            )

    def lets_read(self, name: str) -> bool:
        """Whether the keys of this name may have its weights."""
        return not self.readers or name in self.readers

    def require_reader(self, keys: Keys | None) -> None:
        """DataError unless these keys may have its weights."""
        if self.readers and keys is None:
            raise DataError(f"version {self.number} names who may read it: set GEOCOMM_KEYS, or keys, to a reader's")
        if keys is not None and not self.lets_read(own := keys.identity.site):
            named = ", ".join(self.readers[:_SHOWN]) + (", …" if len(self.readers) > _SHOWN else "")
            raise DataError(
                f"version {self.number} is for {named}, and these keys are those of {own}: its publisher names them"
            )

    def require_fit(self, layout: WeightLayout) -> None:
        """DataError where the layout is of something else, or a frame is larger than its part can be."""
        if len(layout.parts) != len(self.parts):
            raise DataError(f"version {self.number} has {len(self.parts)} parts, and its layout {len(layout.parts)}")
        for frames in (self.delta or (), self.whole or ()):
            for frame, part in zip(frames, layout.parts, strict=bool(frames)):
                if frame.bytes > part.raw_bytes + part.raw_bytes // 8 + (64 << 10):
                    raise DataError(f"version {self.number}: a frame of {frame.bytes} bytes for {part.raw_bytes}")

    def _content(self) -> bytes:
        return _SIGNED + line_of(self).encode()


def read_version(content: bytes, number: int, where: str) -> WeightVersion:
    """The version in a file. DataError: it is none, or another one."""
    try:
        version = read_record(WeightVersion, content)
    except ValueError as error:
        raise DataError(f"version {number} of {where} cannot be read: {error}") from None
    if version.number != number:
        raise DataError(f"version {number} of {where} says that it is version {version.number}")
    return version


def read_layout(content: bytes, where: str) -> WeightLayout:
    """The layout in a file. DataError: it is none."""
    try:
        return read_record(WeightLayout, content)
    except ValueError as error:
        raise DataError(f"a layout of {where} cannot be read: {error}") from None


def version_numbers(place: FilePlace) -> list[int]:
    """The versions of a stream that can be listed, ascending. OSError."""
    found = (StreamFile.of(name) for name in place.names(VERSIONS))
    return sorted(file.number for file in found if file is not None and not file.sha256)


def hint_of(place: FilePlace) -> Hint | None:
    """What the place says of the newest version; None: nothing. OSError."""
    with suppress(FileNotFoundError, ValidationError):
        return Hint.model_validate_json(place.read(NEWEST, 0, _HINT_BYTES))
    return None


def version_path(number: int) -> str:
    return f"{VERSIONS}{number:09}.json"


def layout_path(sha256: str) -> str:
    return f"layouts/{sha256}"


def frame_folder(number: int) -> str:
    return f"{FRAMES}{number:09}/"


def frame_path(number: int, sha256: str) -> str:
    return frame_folder(number) + sha256


class StreamFile(NamedTuple):
    """What a path of a stream names."""

    number: int
    """0: of no version."""
    sha256: str
    """Empty: it is the version itself."""

    @classmethod
    def of(cls, path: str) -> Self | None:
        """None: it is no such path."""
        match = _FILE.fullmatch(path)
        return match and cls(int(match[1] or match[3] or 0), match[2] or match[4] or "")


def part_digest(flat: torch.Tensor) -> str:
    """XXH3-128 of a part's raw bytes."""
    raw: Any = flat.view(torch.uint8).numpy()
    return xxhash.xxh3_128(memoryview(raw)).hexdigest()

"""Files of versions: what they may say, and whose signature counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geocomm.core.errors import DataError
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Keys
from geocomm.weights.stream_version import StreamFile, WeightVersion, frame_path, read_version, version_path
from geocomm.weights.weight_layout import Box, TensorShape, WeightLayout, WeightPart

SHA, DIGEST = "a" * 64, "b" * 32
LAYOUT = WeightLayout(
    tensors=(TensorShape("w", "bfloat16", (8,)),), parts=(WeightPart("bfloat16", (Box(0, (0,), (8,)),)),)
)


def content(**changes: Any) -> dict[str, Any]:
    whole = [[SHA, 100, True]]
    return {
        "stream": DIGEST, "number": 7, "step": 3, "time": 1, "layout": SHA, "parts": [DIGEST], "base": None,
        "delta": None, "whole": whole, "anchors": [2, 7], **changes,
    }  # fmt: skip


def read(**changes: Any) -> WeightVersion:
    return read_version(json.dumps(content(**changes)).encode(), 7, "here")


def test_version_that_is_an_anchor_or_a_delta_or_both_is_read() -> None:
    assert read().frames[SHA].bytes == 100
    assert read(delta=[[SHA, 10, False]], base=SHA).delta is not None
    assert read(delta=[[SHA, 10, False]], base=SHA, whole=None, anchors=[2]).whole is None


@pytest.mark.parametrize(
    "changes",
    [
        {"number": 8},
        {"number": 0},
        {"number": 10**12},
        {"number": "7; rm"},
        {"geocomm_weights": 2},
        {"stream": "../x"},
        {"layout": "../../etc/passwd"},
        {"parts": [DIGEST, DIGEST]},
        {"parts": ["c"]},
        {"whole": None},
        {"whole": [[SHA, 100, False]]},
        {"whole": [["../" + SHA[3:], 100, True]]},
        {"whole": [[SHA, -1, True]]},
        {"whole": [[SHA, 2**60, True]]},
        {"whole": [[SHA, 100, True], [SHA, 100, True]]},
        {"delta": [[SHA, 10, False]]},
        {"base": SHA},
        {"anchors": []},
        {"anchors": [7, 2]},
        {"anchors": [2]},
        {"anchors": [2, 9]},
        {"anchors": [1, 2, 7]},
        {"step": -1},
        {"time": float("1e30")},
        {"publisher": "x" * 5000},
        {"publisher": "a\nversion 8 is good"},
        {"signature": ["x" * 20000, ""]},
        {"readers": ["a\nversion 8 is for all"]},
        {"readers": "ab"},
        {"extra": 1},
    ],
)
def test_version_that_is_none_is_refused_in_a_sentence(changes: dict[str, Any]) -> None:
    with pytest.raises(DataError) as caught:
        read(**changes)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff\xfe", b"null", b"[" * 100_000])
def test_file_that_is_no_json_of_a_version_is_refused(text: bytes) -> None:
    with pytest.raises(DataError):
        read_version(text, 7, "here")


def test_frame_that_is_larger_than_its_part_can_be_is_refused() -> None:
    read(whole=[[SHA, 65_000, True]]).require_fit(LAYOUT)
    with pytest.raises(DataError, match="a frame of"):
        read(whole=[[SHA, 70_000, True]]).require_fit(LAYOUT)
    with pytest.raises(DataError, match="2 parts"):
        read(parts=[DIGEST] * 2, whole=[[SHA, 9, True]] * 2).require_fit(LAYOUT)


def test_each_field_is_under_the_signature(tmp_path: Path) -> None:
    ca = JobCa.create(tmp_path / "keys", "run7", ["a", "b"], 30)
    keys = {site: Keys.load(ca.folder / site) for site in "ab"}
    signed = read(delta=[[SHA, 10, False]], base=SHA).signed_by(keys["a"])
    signed = read_version(signed.model_dump_json().encode(), 7, "here")
    signed.require_signer(keys["b"], "")
    signed.require_signer(keys["b"], "a")
    with pytest.raises(DataError, match="is signed by site a, and b is"):
        signed.require_signer(keys["b"], "b")
    changes: dict[str, Any] = {
        "stream": "c" * 32, "number": 9, "step": 4, "time": 2, "layout": "b" * 64, "parts": ("d" * 32,),
        "base": "b" * 64, "delta": (("b" * 64, 10, False),), "whole": (("b" * 64, 100, True),), "anchors": (1, 7),
        "readers": ("c",), "publisher": "b", "signature": None,
    }  # fmt: skip
    assert changes.keys() == WeightVersion.model_fields.keys() - {"geocomm_weights"}
    for name, value in changes.items():
        with pytest.raises(DataError):
            signed.model_copy(update={name: value}).require_signer(keys["b"], "")


@pytest.mark.parametrize(
    "path",
    [
        *("", "newest.json", "versions/", "versions/1.json", "versions/000000001.json/", "/versions/000000001.json"),
        *(
            "layouts/../x",
            f"frames/000000001/../{SHA}",
            f"frames/1/{SHA}",
            f"layouts/{SHA}\n",
            "versions/00000000１.json",
        ),
    ],
)
def test_path_that_no_stream_has_names_nothing(path: str) -> None:
    assert StreamFile.of(path) is None


def test_paths_of_a_stream_are_read_back() -> None:
    assert StreamFile.of(version_path(7)) == (7, "")
    assert StreamFile.of(frame_path(7, SHA)) == (7, SHA)

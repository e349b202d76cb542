"""The exceptions: one per status code, each one of torch's, made by the native module."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch.distributed import DistBackendError, DistError, DistNetworkError

import geocomm
from geocomm.core import errors
from support.harness import Ranks

NETWORK = {"Timeout", "PeerLost", "Network"}
BUILTIN = {"InvalidArgument": ValueError, "Unsupported": NotImplementedError, "Timeout": TimeoutError, "Data": OSError}
CODES = {"Timeout", "PeerLost", "Network", "InvalidArgument", "Unsupported", "VersionMismatch", "Authentication"} | {
    "CorruptData",
    "OutputTooSmall",
    "Aborted",
    "Driver",
    "Internal",
    "ReplicaMismatch",
    "Data",
}


def test_every_status_code_has_a_class_of_the_right_family() -> None:
    assert set(errors.CLASS_OF_CODE) == CODES
    for code, cls in errors.CLASS_OF_CODE.items():
        assert cls.code == code
        assert issubclass(cls, errors.GeocommError)
        assert issubclass(cls, DistError)
        assert issubclass(cls, DistNetworkError if code in NETWORK else DistBackendError)
        assert issubclass(cls, BUILTIN.get(code, DistError))


@pytest.mark.parametrize("cls", errors.CLASS_OF_CODE.values())
def test_error_survives_pickling_with_its_attributes(cls: type[errors.GeocommError]) -> None:
    error = cls("what happened")
    error.peer, error.seq = "rank 3", 7
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is cls
    assert (str(copy), copy.code, copy.peer, copy.seq) == ("what happened", cls.code, "rank 3", 7)


def test_error_of_the_native_module_has_class_and_code() -> None:
    with pytest.raises(geocomm.InvalidArgumentError) as caught:
        geocomm.compress(torch.ones(3), "int9")
    assert caught.value.code == "InvalidArgument"
    with pytest.raises(geocomm.CorruptDataError):
        geocomm.decompress(torch.zeros(100, dtype=torch.uint8))
    with pytest.raises(geocomm.UnsupportedError):
        geocomm.compress(torch.ones(3, dtype=torch.int64), "int8")


def test_last_error_before_any_is_none() -> None:
    with Ranks([None]) as alone:
        assert alone.run(geocomm.last_error) == [None]

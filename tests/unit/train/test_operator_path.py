"""Where DeepSpeed looks for programs, for a user who may not search all folders of PATH."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from geocomm.train.loop import shm_operator

NOBODY = 65534


@contextlib.contextmanager
def other_user() -> Iterator[None]:
    """Root may search every folder: meanwhile this process is another user's."""
    me = os.geteuid()
    if me == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(me)


def test_folder_of_path_that_may_not_be_searched_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    monkeypatch.setenv("PATH", os.pathsep.join([str(closed), "/usr/bin", "/usr/bin/nothing-there"]))
    with other_user():
        with pytest.raises(PermissionError):  # what DeepSpeed would meet
            subprocess.run(["no-such-program"], check=False)
        own, *others = shm_operator._search_path().split(os.pathsep)
        assert (own, others) == (str(Path(sys.executable).parent), ["/usr/bin"])
        monkeypatch.setenv("PATH", os.pathsep.join(others))
        with pytest.raises(FileNotFoundError):
            subprocess.run(["no-such-program"], check=False)

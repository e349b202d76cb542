"""The README's way from training to an answer, command by command."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.local_jobs import REPOSITORY, free_ports

pytestmark = pytest.mark.timeout(280)


def commands() -> Iterator[list[str]]:
    """The lines of that block, without the comment."""
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    block = re.search(r"^## From training to an answer$.*?^```$\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    assert block is not None
    for line in block[1].replace("\\\n", " ").splitlines():
        if not line.startswith("#"):
            yield shlex.split(line)


@pytest.mark.slow  # test_train_export.py and test_serve_endpoint.py have the parts
def test_model_that_was_trained_exported_and_served_answers(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    train, export, serve, curl = commands()
    assert [line[:2] for line in (train, export, serve)] == [["geocomm", name] for name in ("train", "export", "serve")]
    assert curl[0] == "curl"
    # Fewer steps, which show as much, and another port than 8000, which may be in use.
    train = [part.replace("training.steps=30", "training.steps=2") for part in train]
    (port,) = free_ports(1)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for command in (train, export):
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=200
        )
        assert done.returncode == 0, done.stderr
    server = subprocess.Popen(
        [*serve, "--port", str(port)], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert any("ready" in line for line in server.stdout), "the server ended before it was ready"
        asked = subprocess.run(
            [*(part.replace(":8000/", f":{port}/") for part in curl), "--silent", "--show-error", "--fail-with-body"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert asked.returncode == 0, asked.stdout + asked.stderr
        assert json.loads(asked.stdout)["choices"][0]["text"]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert server.returncode == 128 + signal.SIGTERM

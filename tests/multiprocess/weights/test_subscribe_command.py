"""`geocomm subscribe`: a folder, a command at each version, a relay for others."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from safetensors.torch import load_file

from geocomm.security.job_ca import JobCa
from geocomm.weights.publisher import WeightPublisher
from support.local_jobs import free_port
from support.warm_ranks import warm_ranks
from support.weight_streams import equal, model_tensors, moved

pytestmark = pytest.mark.timeout(180)


def command(*arguments: object) -> list[str]:
    return [*warm_ranks().command("geocomm"), "subscribe", *map(str, arguments)]


def once(*arguments: object, status: int = 0) -> str:
    done = subprocess.run(command(*arguments, "--once"), capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done.stderr


@contextmanager
def subscribed(*arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The command, until the block ends: then by SIGTERM, in good order."""
    with subprocess.Popen(
        command(*arguments, "--every", "0.1s"), stderr=subprocess.PIPE, text=True, env=os.environ | environment
    ) as process:
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(100) == 0


def await_version(folder: Path, number: int) -> None:
    end = time.monotonic() + 60
    while not folder.exists() or json.loads((folder / "geocomm.json").read_text())["number"] != number:
        assert time.monotonic() < end
        time.sleep(0.05)


def test_once_makes_the_folder_with_the_files_of_a_model_and_keeps_them(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    for name in ("config.json", "model.safetensors", "model.safetensors.index.json", "export.json"):
        (tmp_path / "base" / name).write_text("{}")
    tensors = model_tensors()
    with WeightPublisher(tmp_path / "stream", tensors) as publisher:
        publisher.publish(wait=True)
        once(tmp_path / "stream", "--into", tmp_path / "model", "--model-files", tmp_path / "base")
        assert sorted(os.listdir(tmp_path / "model")) == [
            *(".geocomm-version.json", "config.json", "geocomm.json", "model.safetensors")
        ]
        assert equal(load_file(tmp_path / "model/model.safetensors"), tensors)
        moved(tensors, 0.01)
        publisher.publish(wait=True)
        said = once(tmp_path / "stream", "--into", tmp_path / "model")
        assert re.search(r"model is version 2 of the weights: 0\.\d+ MB, [0-9.]+ s", said)
        assert (tmp_path / "model/config.json").exists()
        assert equal(load_file(tmp_path / "model/model.safetensors"), tensors)


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").touch()
    (tmp_path / "stream/versions").mkdir(parents=True)
    (tmp_path / "stream/versions/000000001.json").write_text("{}")
    for arguments, status, text in (
        ((tmp_path / "stream", "--into", tmp_path / "other"), 2, "has other files in it"),
        ((tmp_path / "stream", "--into", tmp_path / "m"), 1, "version 1 of .* cannot be read: stream is missing"),
        (("tls://127.0.0.1:9", "--into", tmp_path / "m"), 2, "needs keys"),
        ((tmp_path / "stream", "--into", tmp_path / "m", "--listen", ":0"), 2, "--listen needs keys"),
        ((tmp_path / "stream", "--into", tmp_path / "m", "--rate", "fast"), 2, "--rate"),
        ((tmp_path / "stream", "--into", tmp_path / "m", "--keys", tmp_path), 2, "cannot read .*ca.pem"),
    ):
        said = once(*arguments, status=status)
        assert re.search(text, said)
        assert len(said.splitlines()) == 1, said


def test_once_waits_for_a_first_version_so_long_and_names_the_stream(tmp_path: Path) -> None:
    stream, wanted = tmp_path / "stream", (tmp_path / "stream", "--into", tmp_path / "model", "--once")
    said = once(stream, "--into", tmp_path / "model", "--wait", "1s", status=1)
    assert said.splitlines() == [f"geocomm subscribe: no version of {stream} within 1 s: it has none yet"]
    with subprocess.Popen(command(*wanted), stderr=subprocess.PIPE, text=True) as process:
        while not (tmp_path / ".model.lock").exists():
            time.sleep(0.05)
        with WeightPublisher(stream, model_tensors()) as publisher:
            publisher.publish(wait=True)
        assert process.wait(60) == 0
    assert json.loads((tmp_path / "model/geocomm.json").read_text())["number"] == 1
    with subprocess.Popen(command(tmp_path, *wanted[1:2], tmp_path / "other", "--once")) as process:
        while not (tmp_path / ".other.lock").exists():
            time.sleep(0.05)
        process.terminate()
        assert process.wait(100) == 128 + signal.SIGTERM  # and not 0, as if the folder were there


def test_once_waits_for_a_relay_that_begins_later(tmp_path: Path) -> None:
    ca = JobCa.create(tmp_path / "keys", "run7", ["a"], 30)
    port = free_port()
    with WeightPublisher(tmp_path / "stream", model_tensors(), keys=ca.folder / "a") as publisher:
        publisher.publish(wait=True)
    asked = (f"tls://127.0.0.1:{port}", "--into", tmp_path / "engine", "--keys", ca.folder / "a")
    said = once(*asked, "--wait", "1s", status=1)
    assert f"within 1 s: no source of weights answers: tls://127.0.0.1:{port}" in said
    with subprocess.Popen(command(*asked, "--once")) as process:
        while not (tmp_path / ".engine.lock").exists():
            time.sleep(0.05)
        with subscribed(
            *(tmp_path / "stream", "--into", tmp_path / "relay", "--listen", f":{port}", "--keys", ca.folder / "a")
        ):
            assert process.wait(60) == 0


def test_sigterm_ends_a_command_that_hangs(tmp_path: Path) -> None:
    with WeightPublisher(tmp_path / "stream", model_tensors()) as publisher:
        publisher.publish(wait=True)
    then = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; exec sleep 1000"
    with subscribed(tmp_path / "stream", "--into", tmp_path / "model", "--then", then):
        while not (tmp_path / "pid").exists():
            time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_command_runs_at_each_version_and_again_where_the_process_starts_anew(tmp_path: Path) -> None:
    tensors, told = model_tensors(), tmp_path / "told"
    then = f'echo "$WEIGHTS_VERSION $(grep number "$WEIGHTS_FOLDER/geocomm.json")" >> {told}; exit 3'
    with WeightPublisher(tmp_path / "stream", tensors) as publisher:
        with subscribed(tmp_path / "stream", "--into", tmp_path / "model", "--then", then):
            for version in (1, 2):
                moved(tensors, 0.01)
                publisher.publish(wait=True)
                await_version(tmp_path / "model", version)
                end = time.monotonic() + 30
                while not told.exists() or len(told.read_text().splitlines()) < version:
                    assert time.monotonic() < end
                    time.sleep(0.05)
        with subscribed(tmp_path / "stream", "--into", tmp_path / "model", "--then", then) as process:
            assert process.stderr is not None
            while "ended with status 3 for version 2" not in process.stderr.readline():
                pass
    assert told.read_text().split() == [word for number in "122" for word in (number, '"number":', f"{number},")]


def test_relay_gives_a_region_what_it_follows(tmp_path: Path) -> None:
    ca = JobCa.create(tmp_path / "keys", "run7", ["a"], 30)
    for name in ("relay", "engine"):
        ca.add(name, 30, reader=True)
    tensors, port = model_tensors(), free_port()
    with WeightPublisher(tmp_path / "stream", tensors, keys=ca.folder / "a") as publisher:
        publisher.publish(wait=True)
        relay = (tmp_path / "stream", "--into", tmp_path / "relay", "--listen", f":{port}")
        engine = (f"tls://127.0.0.1:{port}", "--into", tmp_path / "engine")
        with (
            subscribed(*relay, "--keys", ca.folder / "relay"),
            subscribed(*engine, GEOCOMM_KEYS=str(ca.folder / "engine")),
        ):
            for version in (1, 2, 3):
                await_version(tmp_path / "engine", version)
                assert equal(load_file(tmp_path / "engine/model.safetensors"), tensors)
                moved(tensors, 0.01)
                publisher.publish(wait=True)

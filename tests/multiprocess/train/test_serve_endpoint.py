"""`geocomm serve` with transformers' own server: real HTTP, a real model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.llama_cpp import skip_without_llama_cpp, write_small_gguf
from support.local_jobs import REPOSITORY, environment, free_port

# Not imported here, which takes every worker a second. One of them builds the model and loads the engine, once.
_MISSING = [name for name in ("openai", "fastapi") if find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {_MISSING}"),
    pytest.mark.xdist_group("serve"),
    pytest.mark.timeout(600),
]
_KEY = "a-key-of-this-test"
_PROMPT = "Once upon a time"
_TOKENS = 24


@dataclass
class _Server:
    process: subprocess.Popen[str]
    url: str
    curl: str

    def ask(self, path: str, body: dict[str, Any] | None = None, key: str | None = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        headers = {"Content-Type": "application/json"} | ({} if key is None else {"Authorization": f"Bearer {key}"})
        data = None if body is None else json.dumps(body).encode()
        try:
            with urllib.request.urlopen(urllib.request.Request(self.url + path, data, headers), timeout=60) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def children(self) -> list[int]:
        """Processes that it started."""
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(child) for child in path.read_text().split()]


def _start(model: Path, *options: str, **variables: str) -> _Server:
    """Serving, once it has said that it is ready."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "geocomm", "serve", str(model), "--port", str(port), *options],
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
        env=environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=str(REPOSITORY), **variables),
    )
    assert process.stdout is not None
    first, curl = process.stdout.readline(), process.stdout.readline()
    assert first.startswith("ready: "), f"status {process.wait(10)}"
    return _Server(process, f"http://127.0.0.1:{port}", curl)


def _gone(pid: int) -> bool:
    """Whether the process ended; a zombie that nobody has asked for has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def _all_gone(pids: list[int], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not all(map(_gone, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return all(map(_gone, pids))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.tiny_model_folder import write_tiny_model

    folder = tmp_path_factory.mktemp("served") / "tiny@1 model"  # "@" cuts a name at transformers serve
    write_tiny_model(folder)
    return folder


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[_Server]:
    started = _start(model)
    yield started
    started.process.kill()
    started.process.wait()


def _body(**more: Any) -> dict[str, Any]:
    return {"model": "tiny-1-model", "prompt": _PROMPT, "max_tokens": _TOKENS, "temperature": 0} | more


@pytest.fixture(scope="module")
def generated(model: Path) -> str:
    """What the model's own generate() says."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    inputs = tokenizer(_PROMPT, return_tensors="pt")
    loaded = AutoModelForCausalLM.from_pretrained(model)
    out = loaded.generate(**inputs, max_new_tokens=_TOKENS, do_sample=False)
    return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def test_greedy_text_is_that_of_generate(server: _Server, generated: str) -> None:
    status, answer = server.ask("/v1/completions", _body())
    assert status == 200
    (choice,) = json.loads(answer)["choices"]
    assert len(generated) > 1
    assert choice["text"] == generated


def test_stream_comes_in_pieces_of_the_same_text(server: _Server, generated: str) -> None:
    status, answer = server.ask("/v1/completions", _body(stream=True))
    assert status == 200
    lines = [line.removeprefix("data: ") for line in answer.decode().splitlines() if line.startswith("data: {")]
    pieces = [choice.get("text", "") for line in lines for choice in json.loads(line)["choices"]]
    assert len([piece for piece in pieces if piece]) > 1
    assert "".join(pieces) == generated


def test_curl_line_works_in_a_shell(server: _Server, generated: str) -> None:
    ended = subprocess.run(["bash", "-c", server.curl.replace("curl ", "curl -s ", 1)], capture_output=True)
    text = json.loads(ended.stdout)["choices"][0]["text"]
    assert text.startswith(generated) or generated.startswith(text)


def test_list_of_models_names_this_one_alone(server: _Server) -> None:
    status, answer = server.ask("/v1/models")
    assert status == 200
    assert [each["id"] for each in json.loads(answer)["data"]] == ["tiny-1-model"]


def test_sigterm_ends_the_engine(server: _Server) -> None:
    """The last one with this server."""
    engine = server.children()
    assert engine
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(100) == 128 + signal.SIGTERM
    assert _all_gone(engine)


def test_engine_ends_with_a_killed_parent(model: Path) -> None:
    server = _start(model, "--name", "mine")
    engine = server.children()
    try:
        status, answer = server.ask("/v1/completions", _body(model="mine"))
        assert status == 200
        assert json.loads(answer)["choices"][0]["text"]
        assert "Authorization" not in server.curl
    finally:
        server.process.kill()
        server.process.wait()
    try:
        assert _all_gone(engine)
    finally:
        for pid in engine:
            if not _gone(pid):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def with_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Server]:
    """llama.cpp's own server, at every address of this machine."""
    skip_without_llama_cpp()
    folder = tmp_path_factory.mktemp("keyed")
    (folder / "model").mkdir()
    write_small_gguf(folder / "model" / "model.gguf")
    (folder / "api.key").touch(0o600)
    (folder / "api.key").write_text(_KEY + "\n")
    program = folder / "bin" / "llama-server"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{REPOSITORY}/tests/support/llama_server.py" "$@"\n')
    program.chmod(0o755)
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    options = ["--host", "0.0.0.0", "--api-key-file", str(folder / "api.key")]
    started = _start(folder / "model", *options, PATH=path)
    yield started
    started.process.terminate()
    started.process.wait()


@pytest.mark.parametrize("key", [None, "wrong", "", _KEY + "x", _KEY[:-1]])
def test_completion_is_not_made_without_the_key(with_key: _Server, key: str | None) -> None:
    assert with_key.ask("/v1/completions", _body(model="model"), key)[0] == 401


def test_curl_line_with_a_key_works_in_a_shell(with_key: _Server) -> None:
    ended = subprocess.run(["bash", "-c", with_key.curl.replace("curl ", "curl -s ", 1)], capture_output=True)
    assert _KEY not in with_key.curl
    assert json.loads(ended.stdout)["choices"]


def test_key_is_in_no_command_line(with_key: _Server) -> None:
    for pid in [with_key.process.pid, *with_key.children()]:
        assert _KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()

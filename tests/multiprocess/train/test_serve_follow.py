"""`geocomm serve --follow`: a server whose weights are those of a stream, swapped between requests."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.local_jobs import REPOSITORY, environment, free_port

_MISSING = [name for name in ("openai", "fastapi") if find_spec(name) is None]
pytestmark = [
    pytest.mark.skipif(bool(_MISSING), reason=f"not installed: {_MISSING}"),
    pytest.mark.xdist_group("serve"),
    pytest.mark.timeout(600),
]
_PROMPT = "Once upon a time"
_HEADER = "x-geocomm-weights"


class Served:
    """A server under way, and what it has said."""

    def __init__(self, process: subprocess.Popen[str], url: str, said: Path) -> None:
        self.process, self.url, self._said = process, url, said

    def ask(self, tokens: int = 24, **more: Any) -> tuple[int, str]:
        """The version that answers, and its text."""
        body = {"model": "tiny", "prompt": _PROMPT, "max_tokens": tokens, "temperature": 0} | more
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/v1/completions", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            content, version = answer.read().decode(), int(answer.headers[_HEADER])
        if not more.get("stream"):
            return version, json.loads(content)["choices"][0]["text"]
        pieces = [json.loads(line[6:]) for line in content.splitlines() if line.startswith("data: {")]
        return version, "".join(choice.get("text", "") for piece in pieces for choice in piece["choices"])

    def version(self) -> int:
        """As /health says."""
        with urllib.request.urlopen(f"{self.url}/health", timeout=60) as answer:
            return int(answer.headers[_HEADER])

    def await_version(self, number: int) -> None:
        end = time.monotonic() + 240
        while self.version() != number:
            assert time.monotonic() < end, self.said()
            time.sleep(0.05)

    def said(self) -> str:
        return self._said.read_text()

    def await_said(self, pattern: str) -> str:
        end = time.monotonic() + 240
        while (found := re.search(pattern, self.said())) is None:
            assert time.monotonic() < end, self.said()
            time.sleep(0.1)
        return found[0]


@contextmanager
def served(model: Path, said: Path, *options: object) -> Generator[Served]:
    port = free_port()
    with (
        said.open("w") as stderr,
        subprocess.Popen(
            [sys.executable, "-m", "geocomm", "serve", str(model), "--port", str(port), *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=said.parent,
            env=environment(TORCH_DEVICE_BACKEND_AUTOLOAD="0", PYTHONPATH=str(REPOSITORY)),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready: "), said.read_text()
            yield Served(process, f"http://127.0.0.1:{port}", said)
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 128 + signal.SIGTERM


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from support.tiny_model_folder import write_tiny_model

    made = tmp_path_factory.mktemp("followed") / "tiny"
    write_tiny_model(made)
    return made


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder)


def trained(model: Any, seed: int) -> None:
    """Other weights, which answer otherwise."""
    import torch

    made = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            if "embed" not in name and "lm_head" not in name:
                tensor.add_(torch.randn(tensor.shape, generator=made) * 0.05)


def text_of(model: Any, folder: Path, tokens: int) -> str:
    """What the model's own generate() says."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(_PROMPT, return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    return tokenizer.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def hashes(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def test_each_answer_is_of_the_version_that_it_says_and_requests_under_way_keep_theirs(
    folder: Path, tmp_path: Path
) -> None:
    from geocomm.weights.publisher import WeightPublisher

    tokens, long = 24, 96
    model, before = loaded(folder), hashes(folder)
    texts, long_texts = {0: text_of(model, folder, tokens)}, {0: text_of(model, folder, long)}
    with WeightPublisher(tmp_path / "stream", model) as publisher:

        def publish() -> int:
            number = publisher.last() + 1
            trained(model, number)
            texts[number], long_texts[number] = text_of(model, folder, tokens), text_of(model, folder, long)
            publisher.publish(step=10 * number, wait=True)
            return number

        publish()
        with served(folder, tmp_path / "said", "--follow", "stream") as server:
            assert server.version() == 1  # from its first answer on
            assert server.ask() == (1, texts[1])
            assert server.ask(stream=True) == (1, texts[1])
            for number in (2, 3):
                answers: list[tuple[int, str]] = []

                def ask(stream: bool, answers: list[tuple[int, str]] = answers) -> None:
                    answers.append(server.ask(long, stream=stream))

                asking = [threading.Thread(target=ask, args=(at % 2 == 0,)) for at in range(4)]
                for one in asking:
                    one.start()
                assert publish() == number
                for one in asking:
                    one.join()
                assert len(answers) == 4
                assert [text for _, text in answers] == [long_texts[version] for version, _ in answers]
                server.await_version(number)
                assert server.ask() == (number, texts[number])
            assert len(set(texts.values())) == 4
            server.await_said(r"answers by version 3 \(step 30\) of the weights, [0-9.]+ s")
            for path in ("/reset", "/load_model"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(urllib.request.Request(server.url + path, b"{}"), timeout=60)
            assert server.ask() == (3, texts[3])
    assert hashes(folder) == before  # what is swapped is the model in memory


def test_what_does_not_fit_is_one_sentence_and_the_weights_stay(folder: Path, tmp_path: Path) -> None:
    from geocomm.weights.publisher import WeightPublisher

    model = loaded(folder)
    text = text_of(model, folder, 24)
    tensors = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    wrong = dict(tensors)
    gone = sorted(wrong)[0]
    del wrong[gone]
    with WeightPublisher(tmp_path / "stream", wrong) as publisher:
        publisher.publish(wait=True)
    with served(folder, tmp_path / "said", "--follow", tmp_path / "stream") as server:
        assert server.ask() == (0, text)
        line = server.await_said(r".*answers by version 0 of the weights on: .*")
        assert f"the stream is of another model: it has no {gone}" in line


def test_source_that_lies_changes_nothing_and_the_next_version_is_followed(folder: Path, tmp_path: Path) -> None:
    from geocomm.weights.publisher import WeightPublisher

    model, stream = loaded(folder), tmp_path / "stream"
    with WeightPublisher(stream, model, anchor_every=1) as publisher:
        publisher.publish(wait=True)
        with served(folder, tmp_path / "said", "--follow", stream) as server:
            first = server.ask()
            assert first[0] == 1
            version = json.loads((stream / "versions/000000001.json").read_text())
            forged = version | {"number": 2, "parts": ["0" * 32] * len(version["parts"]), "anchors": [1, 2]}
            forged |= {"whole": version["whole"], "delta": None, "base": None}
            (stream / "frames/000000002").mkdir()
            for frame in (stream / "frames/000000001").iterdir():
                (stream / "frames/000000002" / frame.name).write_bytes(frame.read_bytes())
            (stream / "versions/000000002.json").write_text(json.dumps(forged))
            (stream / "newest.json").unlink()
            server.await_said(r"answers by version 1 of the weights on: part 0 of version 2 has other bytes")
            assert server.ask() == first

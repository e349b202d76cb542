"""A site of the demo of weights: the first one trains a model and publishes it, each other one follows and answers.

python -m geocomm.lab.demo.weights_site FOLDER STEPS PORT…: two ports of each site, for its relay and its server

A site ends once there is a file `done` in FOLDER, which all of them see; no weights go through it.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from geocomm.core.site import site_name
from geocomm.group.membership.own_address import own_address
from geocomm.lab.demo.demo_run import read_entries
from geocomm.lab.demo.weights_run import FOLLOWERS, SITE_NAMES, STEP_S
from geocomm.lab.demo.weights_seen import note

_MODEL = {
    "hidden_size": 640,
    "intermediate_size": 1792,
    "moe_intermediate_size": 640,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}
"""Of the preset `tiny`: so a copy of the weights is something."""
_SEQUENCE = 128
_FIRST_STEPS, _FIRST_RATE = 4, 1e-4
_RATE = 1e-6
"""As in RL."""
_LIMIT_S = 300.0
_LOOK_S = 0.2


def main(folder: Path, steps: int, ports: Sequence[int]) -> None:
    """What the site does, by its name."""
    at = SITE_NAMES.index(site_name() or "")
    relay, server = ports[2 * at : 2 * at + 2]
    if at == 0:
        with _running(_subscribe(folder, str(folder / "stream"), relay)) as check:
            _train(folder, steps, check)
        return
    note(folder, {"address": own_address()})
    source, port = _address(folder, at - 1), ports[2 * at - 2]
    seen = shlex.join([sys.executable, "-m", "geocomm.lab.demo.weights_seen", str(folder)])
    with _running([*_subscribe(folder, f"tls://{source}:{port}", relay), "--then", seen]) as check:
        _until(lambda: (folder / SITE_NAMES[at] / "model").exists(), f"weights of {source}:{port}", check)
        follow = ["--follow", f"tls://127.0.0.1:{relay}"]
        with _running(["serve", str(folder / "base"), *follow, "--port", str(server)]) as check_server:
            _answer(folder, f"http://127.0.0.1:{server}", lambda: (check(), check_server()))


def _subscribe(folder: Path, source: str, port: int) -> list[str]:
    own = folder / (site_name() or "") / "model"
    own.parent.mkdir(exist_ok=True)
    return ["subscribe", source, "--into", str(own), "--listen", f":{port}"]


@contextmanager
def _running(command: Sequence[str]) -> Generator[Callable[[], object]]:
    """A command of geocomm, which has to run all the time; yields what ends this process where it does not."""
    with subprocess.Popen([sys.executable, "-m", "geocomm", *command]) as process:

        def check() -> None:
            if process.poll() is not None:
                raise SystemExit(f"geocomm {command[0]} ended with status {process.returncode}")

        try:
            yield check
        finally:
            process.send_signal(signal.SIGTERM)


def _until(done: Callable[[], bool], what: str, check: Callable[[], object]) -> None:
    until = time.monotonic() + _LIMIT_S
    while not done():
        check()
        if time.monotonic() > until:
            raise SystemExit(f"not within {_LIMIT_S:g} s: {what}")
        time.sleep(_LOOK_S)


def _address(folder: Path, at: int) -> str:
    """Of a site, for the one after it."""
    if at == 0:
        return os.environ["MASTER_ADDR"]
    said = folder / f"{SITE_NAMES[at]}.jsonl"
    _until(lambda: bool(read_entries(said)), f"the address of {SITE_NAMES[at]}", lambda: None)
    return str(read_entries(said)[0]["address"])


def _answer(folder: Path, url: str, check: Callable[[], object]) -> None:
    """Ask the server again and again, and note its first answer by each version."""
    body = {"model": "base", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    headers, version = {"Content-Type": "application/json"}, 0
    while not (folder / "done").exists():
        check()
        with suppress(OSError):  # it is being started
            request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
            with urllib.request.urlopen(request, timeout=_LIMIT_S) as answer:
                at, found = time.time(), int(answer.headers["x-geocomm-weights"])
                text = json.loads(answer.read())["choices"][0]["text"]
            if found != version:
                version = found
                note(folder, {"at": at, "answers": version, "text": text})
        time.sleep(_LOOK_S)


def _files(stream: Path, version: int) -> list[Path]:
    """Its own file, and its frames. They go once newer versions hold all weights."""
    return [stream / f"versions/{version:09}.json", *(stream / f"frames/{version:09}").iterdir()]


def _train(folder: Path, steps: int, check: Callable[[], object]) -> None:
    """Train, and publish each step; the next one once STEP_S are over."""
    import torch

    from geocomm.core.typed_torch import from_numpy
    from geocomm.data.corpus.data_settings import DataConfig
    from geocomm.data.corpus.packing import PackedSequences
    from geocomm.data.corpus.text_tokenizer import load_tokenizer
    from geocomm.data.corpus.token_store import load_tokens
    from geocomm.train.export.hf_folder import write_tokenizer
    from geocomm.train.models.model_factory import build_model, model_config
    from geocomm.train.models.model_presets import ModelConfig
    from geocomm.weights.publisher import WeightPublisher

    data = DataConfig.model_validate({"sequence_length": _SEQUENCE, "cache_dir": folder / "tokens"})
    tokenizer, settings = load_tokenizer(data.tokenizer), ModelConfig.model_validate({"overrides": _MODEL})
    model: Any = build_model(settings, model_config(settings, data, tokenizer), seed=0)
    served = copy.deepcopy(model).bfloat16()
    served.config.use_cache = True
    served.save_pretrained(folder / "new")
    write_tokenizer(data.tokenizer, folder / "new")
    (folder / "new").rename(folder / "base")
    del served
    text = PackedSequences(load_tokens(data, tokenizer), _SEQUENCE, data.held_out_fraction, seed=0)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=_FIRST_RATE)

    def step(number: int) -> None:
        rows = from_numpy(text.micro_batch(number, 0, 0, 1, 1))
        model(input_ids=rows, labels=rows).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def weights() -> dict[str, torch.Tensor]:
        """As they are published: bfloat16."""
        return {name: value.detach().to(torch.bfloat16, copy=True) for name, value in model.state_dict().items()}

    def follows(site: str, version: int) -> bool:
        said = read_entries(folder / f"{site}.jsonl")
        return all(any(line.get(what, 0) >= version for line in said) for what in ("folder", "answers"))

    for number in range(_FIRST_STEPS):
        step(number)
    for group in optimizer.param_groups:
        group["lr"] = _RATE
    before = dict[str, torch.Tensor]()
    with WeightPublisher(folder / "stream", model, dtype=torch.bfloat16) as publisher:
        for version in range(1, steps + 2):
            begun = time.monotonic()
            if version > 1:
                step(_FIRST_STEPS + version - 2)
            now = weights()
            told = {
                "changed": sum(
                    int((now[one].view(torch.int16) != old.view(torch.int16)).sum()) for one, old in before.items()
                ),
                "elements": sum(value.numel() for value in now.values()),
            }
            before = now
            published = time.time()
            publisher.publish(step=version - 1, wait=True)
            digests = {
                f"{name} BF16": hashlib.sha256(value.view(torch.uint8).numpy().tobytes()).hexdigest()
                for name, value in now.items()
            }
            told["bytes"] = sum(path.stat().st_size for path in _files(folder / "stream", publisher.last()))
            note(folder, told | {"at": published, "version": publisher.last(), "digests": digests})
            if version in (1, steps + 1):
                for site in FOLLOWERS:
                    _until(partial(follows, site, version), f"{site} has version {version}, and answers by it", check)
            while time.monotonic() < begun + STEP_S:
                check()
                time.sleep(_LOOK_S)
    (folder / "done").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), [int(port) for port in sys.argv[3:]])

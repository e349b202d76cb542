"""A rank of the elastic demo: trains a small DeepSeek model with local steps, and writes a line of JSON for each step.

python -m geocomm.lab.demo.demo_site FOLDER STEP_SECONDS EVERY

It trains until there is a file stop-SITE in FOLDER.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
import xxhash

from geocomm.core.site import site_name
from geocomm.core.typed_torch import from_numpy
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import PackedSequences
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.data.corpus.token_store import load_tokens
from geocomm.sync.local_steps.local_steps import LocalSteps, local_steps
from geocomm.sync.local_steps.model.fragments import digest
from geocomm.sync.local_steps.settings.local_settings import LocalSettings
from geocomm.train.models.model_factory import build_model, model_config
from geocomm.train.models.model_presets import ModelConfig

_BATCH = 2
_SEQUENCE = 128
_RATE = 1e-3


def anchor_digests(handle: LocalSteps, model: torch.nn.Module) -> list[str]:
    """By fragment. Equal digests: equal bits."""
    with handle.anchor():
        values = {name: parameter.detach() for name, parameter in model.named_parameters()}
        return [
            digest([values[part.name].reshape(-1)[part.start : part.stop] for part in fragment.ranges])
            for fragment in handle.fragments
        ]


def main(folder: Path, step_seconds: float, every: int) -> None:
    """Train until asked to stop."""
    site = site_name()
    data = DataConfig.model_validate({"sequence_length": _SEQUENCE, "cache_dir": folder / "tokens"})
    tokenizer, settings = load_tokenizer(data.tokenizer), ModelConfig.model_validate({})
    model: torch.nn.Module = build_model(settings, model_config(settings, data, tokenizer), seed=0)
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=_RATE)
    handle = local_steps(model, optimizer, LocalSettings(every=every))
    # A site that comes back goes on with text that it has not seen.
    seed = xxhash.xxh3_64(f"{site} {handle.run_step}".encode()).intdigest() % 2**32
    text = PackedSequences(load_tokens(data, tokenizer), _SEQUENCE, data.held_out_fraction, seed)
    with (folder / f"{site}.jsonl").open("a", buffering=1, encoding="utf-8") as log:
        rounds, taken = 0, 0
        parameters = sum(parameter.numel() for parameter in model.parameters())
        begins = {"at": time.monotonic(), "parameters": parameters, "anchors": anchor_digests(handle, model)}
        print(json.dumps(begins), file=log)
        while not (folder / f"stop-{site}").exists():
            begun = time.monotonic()
            rows = from_numpy(text.micro_batch(taken * _BATCH, 0, 0, 1, _BATCH))
            loss = model(input_ids=rows, labels=rows).loss
            loss.backward()
            # As if it computed on a GPU: so the sites of this machine do not compete for its cores.
            time.sleep(max(0.0, begun + step_seconds - time.monotonic()))
            optimizer.step()
            optimizer.zero_grad()
            ended, taken = time.monotonic(), taken + 1
            told = {
                "at": ended,
                "step": handle.run_step,
                "took": ended - begun,
                "tokens": rows.numel(),
                "loss": loss.item(),
            }
            if handle.stats()["rounds"] != rounds:
                rounds = handle.stats()["rounds"]
                told["anchors"] = anchor_digests(handle, model)
            print(json.dumps(told), file=log)
        handle.finish()
        ended_with = {"at": time.monotonic(), "end": True, "anchors": anchor_digests(handle, model)}
        print(json.dumps(ended_with), file=log)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))

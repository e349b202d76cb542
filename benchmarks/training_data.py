"""Real data for codec benchmarks: gradients and a weight change of the training driver's own model and text.

`python benchmarks/training_data.py FOLDER` trains the `tiny` preset (4.1 M parameters, AdamW, byte tokens of the
built-in corpus) in one process for 90 steps and writes FOLDER/NAME.pt, flat float32 tensors of all parameters in order:

    gradient            after 60 steps
    gradient-autocast   the same step's, with forward and backward under bf16 autocast
    weight-delta        weights after 60 steps minus those after 90: what 30 local steps would send
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import torch

NAMES = ("gradient", "gradient-autocast", "weight-delta")
_BEFORE, _LOCAL, _WARM_UP = 60, 30, 10
_LEARNING_RATE = 1e-3


def load(name: str, folder: Path) -> torch.Tensor:
    """One of `NAMES`, made first if it is not in `folder`: about two minutes on two cores."""
    if not all((folder / f"{each}.pt").exists() for each in NAMES):
        _make(folder)
    return torch.load(folder / f"{name}.pt", weights_only=True)


def _make(folder: Path) -> None:
    from geocomm.data.corpus.data_settings import DataConfig
    from geocomm.data.corpus.packing import PackedSequences
    from geocomm.data.corpus.text_tokenizer import load_tokenizer
    from geocomm.data.corpus.token_store import load_tokens
    from geocomm.train.models.model_factory import build_model, model_config
    from geocomm.train.models.model_presets import ModelConfig

    data_config, model_settings = DataConfig(cache_dir=folder / "tokens"), ModelConfig(preset="tiny")
    tokenizer = load_tokenizer(data_config.tokenizer)
    data = PackedSequences(load_tokens(data_config, tokenizer), data_config.sequence_length, 0.0, seed=0)
    model = build_model(model_settings, model_config(model_settings, data_config, tokenizer), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.1)

    def backward(step: int, *, autocast: bool) -> torch.Tensor:
        optimizer.zero_grad()
        rows = torch.from_numpy(data.micro_batch(4 * step, 0, rank=0, world_size=1, size=4))
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        return _flat(p.grad if p.grad is not None else torch.zeros_like(p) for p in model.parameters())

    made = {}
    for step in range(_BEFORE + _LOCAL):
        if step == _BEFORE:
            before = _flat(model.parameters())
            made["gradient-autocast"] = backward(step, autocast=True)
            made["gradient"] = backward(step, autocast=False)
        else:
            backward(step, autocast=False)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * min(1.0, (step + 1) / _WARM_UP)
        optimizer.step()
        print(f"training_data: step {step + 1} of {_BEFORE + _LOCAL}", end="\r", file=sys.stderr)
    made["weight-delta"] = before - _flat(model.parameters())
    folder.mkdir(parents=True, exist_ok=True)
    for name, tensor in made.items():
        partial = folder / f"{name}.partial"
        torch.save(tensor, partial)
        partial.rename(folder / f"{name}.pt")


def _flat(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


if __name__ == "__main__":
    load(NAMES[0], Path(sys.argv[1]))

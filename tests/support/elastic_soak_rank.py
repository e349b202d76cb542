"""A rank of the elastic soak: trains a small model of bytes with local steps, and writes a line of JSON for each step.

python -m support.elastic_soak_rank FOLDER SEED STEP_SECONDS EVERY

Lines: the step, how long it took, and of that the optimizer's step with geocomm's part of it (`hook`); where a round
was applied, `states`: [version, digest] of each fragment; now and then the loss of the anchor on held-out text
(`held_out`).
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import torch
import xxhash
from torch.nn import functional

import geocomm
from geocomm.sync.local_steps.local_steps import LocalSteps

WIDTH = 96
CONTEXT = 64
BATCH = 4
HELD_OUT_EVERY_S = 5.0


class ByteModel(torch.nn.Module):
    """A causal transformer over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(256, WIDTH)
        self.place = torch.nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        layer = torch.nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = torch.nn.Linear(WIDTH, 256)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean loss of the next byte; rows: CONTEXT + 1 bytes each."""
        inputs, wanted = rows[:, :-1], rows[:, 1:]
        mask = torch.nn.Transformer.generate_square_subsequent_mask(CONTEXT)
        found = self.head(self.layers(self.embed(inputs) + self.place, mask=mask, is_causal=True))
        return functional.cross_entropy(found.flatten(0, 1), wanted.flatten())


def rows_at(text: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Pieces of the text."""
    return text[starts[:, None] + torch.arange(CONTEXT + 1)].long()


def states(handle: LocalSteps) -> list[list[Any]]:
    """[version, digest] of each fragment, as this site says them to the others."""
    held = handle._own._held  # pyright: ignore[reportPrivateUsage]
    return [[held[index].version, held[index].digest()] for index in sorted(held)]


def main(folder: str, seed: int, step_seconds: float, every: int) -> None:
    """Train until there is a file `stop`."""
    site = os.environ["GEOCOMM_SITE"]
    text = torch.frombuffer(bytearray("\n".join(topics.values()).encode()), dtype=torch.uint8)
    cut = len(text) * 19 // 20
    train, held_out = text[:cut], text[cut:]
    held_out_rows = rows_at(held_out, torch.linspace(0, len(held_out) - CONTEXT - 2, 64).long())
    torch.manual_seed(seed)
    model = ByteModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    handle = geocomm.local_steps(model, optimizer, geocomm.LocalSettings(every=every, fragments=2))
    chance = torch.Generator().manual_seed(xxhash.xxh3_64(f"{seed} {site} {handle.run_step}".encode()).intdigest() >> 1)
    stop = Path(folder) / "stop"
    with (Path(folder) / f"{site}.jsonl").open("a", buffering=1, encoding="utf-8") as log:

        def tell(**fields: Any) -> None:
            print(json.dumps({"at": time.monotonic(), **fields}), file=log)

        tell(begins=handle.run_step, states=states(handle))
        rounds, next_held_out = 0, time.monotonic()
        while not stop.exists():
            begun = time.monotonic()
            model(rows_at(train, torch.randint(len(train) - CONTEXT - 1, (BATCH,), generator=chance))).backward()
            time.sleep(max(0.0, begun + step_seconds - time.monotonic()))
            hooked = time.monotonic()
            handle.count_tokens(BATCH * CONTEXT)
            optimizer.step()
            ended = time.monotonic()
            optimizer.zero_grad()
            told: dict[str, Any] = {"step": handle.run_step, "took": ended - begun, "hook": ended - hooked}
            if handle.stats()["rounds"] != rounds:
                rounds = handle.stats()["rounds"]
                told["states"] = states(handle)
            tell(**told)
            if ended > next_held_out:
                next_held_out = ended + HELD_OUT_EVERY_S
                with handle.anchor(), torch.no_grad():
                    loss = model(held_out_rows).item()
                tell(held_out=loss, versions=[version for version, _ in states(handle)])
        handle.finish()
        tell(end=True, states=states(handle))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))

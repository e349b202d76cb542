"""The Python programs of README and docs run as they stand, on two ranks at two sites.

One that cannot has the comment `<!-- not run: REASON -->` on the line above it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.harness import Ranks, hash_of
from support.local_jobs import REPOSITORY, free_ports

HOOKS = "docs/how-to/use-ddp-and-fsdp-hooks.md"
FENCE = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
NOT_RUN = re.compile(r"<!-- not run: \S.* -->\n\Z")


def _blocks() -> Iterator[tuple[str, str]]:
    """Place (page:line) and text of every program that is to run."""
    for page in [
        REPOSITORY / "README.md",
        REPOSITORY / "CONTRIBUTING.md",
        *sorted((REPOSITORY / "docs").rglob("*.md")),
    ]:
        text = page.read_text(encoding="utf-8")
        for found in FENCE.finditer(text):
            if NOT_RUN.search(text[: found.start()]) is None:
                line = text.count("\n", 0, found.start()) + 1
                yield f"{page.relative_to(REPOSITORY)}:{line}", found[1]


BLOCKS = dict(_blocks())


def _block(page: str, words: str) -> str:
    """The one program of the page that has these words."""
    (found,) = [text for place, text in BLOCKS.items() if place.startswith(f"{page}:") and words in text]
    return found


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with Ranks(["a", "b"], environment={"MASTER_ADDR": "127.0.0.1", "LOCAL_WORLD_SIZE": "1"}) as made:
        yield made


def _run(text: str, port: int, folder: str) -> dict[str, Any]:
    os.environ["MASTER_PORT"] = str(port)
    os.chdir(folder)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "block", "exec"), names)
    return names


def _train(model: torch.nn.Module) -> None:
    """Two steps, with data that differ from rank to rank."""
    data = torch.Generator().manual_seed(dist.get_rank())
    width = next(module.in_features for module in model.modules() if isinstance(module, torch.nn.Linear))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        model(torch.randn(4, width, generator=data)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def _hash_of_model(model: torch.nn.Module) -> str:
    from torch.distributed.tensor import DTensor

    whole = [value.full_tensor() if isinstance(value, DTensor) else value for value in model.parameters()]
    return hash_of(*whole)


def _run_and_train(text: str, port: int, folder: str) -> str | None:
    """Of the block's model, after two steps where the block left its group; None: it has none."""
    names: dict[str, Any] = {}
    try:
        names = _run(text, port, folder)
        if "model" not in names:
            return None
        if dist.is_initialized():
            _train(names["model"])
        return _hash_of_model(names["model"])
    finally:
        names.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.mark.parametrize("place", BLOCKS)
def test_python_block_runs_and_leaves_the_same_model_on_both_ranks(ranks: Ranks, tmp_path: Path, place: str) -> None:
    (port,) = free_ports(1)
    first, second = ranks.run(_run_and_train, BLOCKS[place], port, str(tmp_path))
    assert first == second


def _use_of_the_handle(ddp: str, scale: str, save: str, again: str, port: int, folder: str) -> list[dict[str, Any]]:
    """What the handle holds: as it was saved, as it was loaded, and dealt out anew to as many ranks."""
    names: dict[str, Any] = {}
    try:
        names = _run(ddp, port, folder)
        for text in (scale, save, again):
            exec(text, names)
        model, feedback = names["model"], names["feedback"]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        for _ in range(12):  # the first ten go exactly
            scaler.scale(model(torch.randn(4, 1024)).square().mean()).backward()
            names["step_with_scale"](scaler, optimizer, feedback)
            optimizer.zero_grad()
        names["save"](feedback, folder)
        states = [feedback.state_dict()]
        dist.barrier()
        names["load"](feedback, folder)
        states.append(feedback.state_dict())
        names["load_anew"](feedback, folder, dist.get_world_size(), dist.get_rank(), dist.get_world_size())
        states.append(feedback.state_dict())
        return states
    finally:
        names.clear()
        if dist.is_initialized():
            dist.destroy_process_group()


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = [value[key] for key in sorted(value, key=str)]
    return [tensor for each in value for tensor in _tensors_in(each)] if isinstance(value, (list, tuple)) else []


def test_functions_of_the_page_on_hooks_save_load_and_deal_out_the_same_residuals(ranks: Ranks, tmp_path: Path) -> None:
    words = ("DistributedDataParallel(", "def step_with_scale", "def save", "def load_anew")
    (port,) = free_ports(1)
    for saved, loaded, anew in ranks.run(
        _use_of_the_handle, *(_block(HOOKS, word) for word in words), port, str(tmp_path)
    ):
        tensors = _tensors_in(saved)
        assert any(tensor.float().abs().max() > 0 for tensor in tensors if tensor.numel())
        for other in (loaded, anew):
            assert hash_of(*tensors) == hash_of(*_tensors_in(other))

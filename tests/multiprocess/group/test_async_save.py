"""torch's distributed checkpoint saves in a thread while the training loop reduces."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from support.harness import joined

LIMIT = timedelta(seconds=30)
SAVES, STEPS = 4, 40


def save_and_reduce(folder: str, own_group: bool) -> tuple[list[str], int]:
    """Classes of what the saves and the loop raised; how many sums were wrong."""
    group = dist.new_group(timeout=LIMIT) if own_group else None
    rank, raised, wrong = dist.get_rank(), [], 0
    state = {"weights": torch.arange(40_000.0), "step": torch.zeros(1)}
    for number in range(SAVES):
        state["step"] += 1
        saving = dcp.async_save(state, checkpoint_id=f"{folder}/{number}", process_group=group)
        try:
            for step in range(STEPS):
                tensor = torch.full((50_000,), float(step + rank))
                dist.all_reduce(tensor)
                wrong += not bool((tensor == 2 * step + 1).all())
            saving.result(60)
        except Exception as error:
            raised.append(f"{type(error).__name__}: {error}")
            break
    return raised, wrong


def test_save_in_a_group_of_its_own_leaves_the_loop_alone(tmp_path: Path) -> None:
    with joined(["a", "b"]) as ranks:
        assert ranks.run(save_and_reduce, str(tmp_path), True) == [([], 0)] * 2
    loaded = {"weights": torch.zeros(40_000), "step": torch.zeros(1)}
    dcp.load(loaded, checkpoint_id=tmp_path / str(SAVES - 1))
    assert loaded["step"].item() == SAVES
    assert torch.equal(loaded["weights"], torch.arange(40_000.0))


def test_save_in_the_loops_group_gives_no_wrong_sum_and_its_errors_name_the_order(tmp_path: Path) -> None:
    """The order of two threads' operations is not the same on all ranks, but by luck."""
    with joined(["a", "b"], time_limit=100) as ranks:
        outcomes = ranks.run(save_and_reduce, str(tmp_path), False)
    for raised, wrong in outcomes:
        assert wrong == 0
        assert not raised or "All ranks must call the same operations in the same order" in raised[0]
    assert bool(outcomes[0][0]) == bool(outcomes[1][0])

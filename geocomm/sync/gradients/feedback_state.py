"""The saved state of a hook, and how it is cut anew when the number of ranks or their sites have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.units import count_text

VERSION = 1
VALUES = ("residual", "momentum")
"""Entries of a state that hold pieces (named_values.py), in units of the gradients' sum over the ranks."""


def check_state(state: Mapping[str, Any], place: tuple[int, int, int, int], numel_of: Mapping[str, int]) -> None:
    """Raise InvalidArgumentError for a state that is not this rank's, or of another model.

    place: rank among the replicas, their number; shard of the model's gradients, their number.
    """
    if state.get("version") != VERSION:
        raise InvalidArgumentError(f"not the state of a hook of this version ({VERSION}): {state.get('version')!r}")
    rank, ranks, shard, shards = place
    if (state["shard"], state["shards"]) != (shard, shards):
        raise InvalidArgumentError(
            f"this state is that of shard {state['shard']} of {state['shards']}, and this is shard {shard} of "
            f"{shards}; with another number of shards the residuals cannot be loaded"
        )
    if (state["rank"], state["ranks"]) != (rank, ranks):
        raise InvalidArgumentError(
            f"this state is that of rank {state['rank']} of {state['ranks']}, and this is rank {rank} of {ranks}. Each "
            "rank loads its own, else residuals count more than once; for another number of ranks take that rank's of "
            "geocomm.reshard_feedback(states_of_all_ranks, ranks)"
        )
    for kind in VALUES:
        for name, held in state[kind].items():
            if name not in numel_of:
                raise InvalidArgumentError(f"the state has a {kind} of {name}, which is no parameter of this model")
            for start, values in held:
                if start < 0 or values.dim() != 1 or start + values.numel() > numel_of[name]:
                    raise InvalidArgumentError(
                        f"the state's {kind} of {name} does not fit its {numel_of[name]} elements"
                    )


def reshard_feedback(states: Sequence[Mapping[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """Distribute the error feedback of a gradient hook over another number of ranks. Local.

    Every new rank gets whole pieces of the residuals, about as many elements as every other. A piece may belong to
    another rank: it gets there with the gradients of the next step. The residuals correct the mean gradient, a sum
    divided by the number of ranks. So their values are multiplied by the new number of ranks over the old one, and the
    correction stays equal. With FSDP the number of shards has to stay; each piece stays in its shard.

    Args:
        states: `handle.state_dict()` of every old rank, in any order.
        ranks: The new number of ranks, all shards together; a multiple of the number of shards.

    Returns:
        One state for each new rank, for its `handle.load_state_dict()`: in the order of the ranks, with FSDP in that of
        a mesh (replicas, shards).

    Raises:
        InvalidArgumentError: A rank's state is missing or there twice, or `ranks` is no multiple of the number of
            shards.

    Example:
        Continue on 2 ranks what 4 ranks have saved:

            old = [torch.load(f"feedback-{rank}.pt") for rank in range(4)]
            handle.load_state_dict(geocomm.reshard_feedback(old, 2)[dist.get_rank()])
    """
    if ranks < 1:
        raise InvalidArgumentError(f"ranks is {ranks}; it must be 1 or more")
    shards = states[0].get("shards", 1) if states else 1
    old = len(states) // shards
    found = sorted((state.get("shard", -1), state.get("rank", -1)) for state in states)
    whole = found == [(shard, rank) for shard in range(shards) for rank in range(old)]
    if not states or not whole or {(s["ranks"], s["shards"]) for s in states} != {(old, shards)}:
        names = ", ".join(
            f"{s.get('rank')} of {s.get('ranks')} (shard {s.get('shard')} of {s.get('shards')})" for s in states
        )
        raise InvalidArgumentError(f"reshard_feedback needs the states of all ranks, once each; these are: {names}")
    if ranks % shards:
        raise InvalidArgumentError(f"ranks is {ranks}; it must be a multiple of the {count_text(shards, 'shard')}")
    dealt = [_deal([s for s in states if s["shard"] == shard], ranks // shards) for shard in range(shards)]
    return [dealt[shard][rank] for rank in range(ranks // shards) for shard in range(shards)]


def header_of(state: Mapping[str, Any]) -> dict[str, Any]:
    """All of a state but its pieces."""
    return {key: value for key, value in state.items() if key not in VALUES}


def assign_states(seen: Sequence[tuple[int, Mapping[int, Mapping[str, Any]]]]) -> list[list[int]]:
    """Which old ranks' states each new rank takes over (`take_over`), where not every rank can read all of them.

    seen: by new rank, its shard, and the headers (`header_of`) of the states that it can read, by old rank. Each state
    goes to one rank of its shard, those that have the fewest first; what none of them can read, to nobody.
    """
    assigned: list[list[int]] = [[] for _ in seen]
    for old in sorted({old for _, headers in seen for old in headers}):
        able = [rank for rank, (shard, headers) in enumerate(seen) if old in headers and headers[old]["shard"] == shard]
        if able:
            assigned[min(able, key=lambda rank: len(assigned[rank]))].append(old)
    return assigned


def take_over(
    states: Sequence[Mapping[str, Any]], header: Mapping[str, Any], place: tuple[int, int, int, int]
) -> dict[str, Any]:
    """The state of the rank at `place` (`check_state`) that has those of earlier ranks; see `reshard_feedback`.

    header: of any state of that checkpoint. The states, whose pieces may be none, are of this rank's shard.
    """
    rank, ranks, shard, shards = place
    values: dict[str, dict[str, list[tuple[int, torch.Tensor]]]] = {kind: {} for kind in VALUES}
    for kind in VALUES:
        for state in states:
            for name, held in state[kind].items():
                scaled = [(start, piece * (ranks / header["ranks"])) for start, piece in held]
                values[kind].setdefault(name, []).extend(scaled)
    return {**header, "rank": rank, "ranks": ranks, "shard": shard, "shards": shards, **values}


def _deal(states: Sequence[Mapping[str, Any]], ranks: int) -> list[dict[str, Any]]:
    """Deal the states of one shard."""
    old = len(states)
    ordered = sorted(states, key=lambda state: state["rank"])
    merged: list[dict[str, Any]] = [
        header_of(ordered[0]) | {"rank": rank, "ranks": ranks} | {kind: {} for kind in VALUES} for rank in range(ranks)
    ]
    loads = [0] * ranks
    for kind in VALUES:
        pieces: list[tuple[str, int, torch.Tensor]] = [
            (name, start, values) for state in ordered for name, held in state[kind].items() for start, values in held
        ]
        for name, start, values in sorted(pieces, key=lambda piece: -piece[2].numel()):
            rank = loads.index(min(loads))
            loads[rank] += values.numel()
            merged[rank][kind].setdefault(name, []).append((start, values * (ranks / old)))
    return merged

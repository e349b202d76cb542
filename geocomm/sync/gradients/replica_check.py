"""Whether all ranks hold the same model: a hash of every tensor, made where the tensor is, compared over the group."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from geocomm.core.errors import ReplicaMismatchError, UnsupportedError
from geocomm.core.typed_torch import all_gather, all_gather_object, device_of_group
from geocomm.core.units import count_text
from geocomm.group.membership.rank_record import ranks_text
from geocomm.metrics.events import events

# Words of a tensor that are hashed at a time: temporaries stay in a core's cache, or small beside a GPU's memory.
_CHUNK_WORDS = {"cpu": 1 << 15, "cuda": 1 << 23}
# Of SplitMix64 (Steele, Lea, Flood 2014: Fast Splittable Pseudorandom Number Generators), as signed words.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_MIX_1 = 0xBF58476D1CE4E5B9 - (1 << 64)
_MIX_2 = 0x94D049BB133111EB - (1 << 64)

Hashes = list[tuple[str, int]]
_OPTIMIZER = "optimizer: "


@dataclass(frozen=True)
class CheckedReplicas:
    """The tensors that `check_replicas` found equal; str() makes a sentence of it."""

    parameters: int
    """Number of parameters."""
    buffers: int
    """Number of buffers; 0 without `buffers=True`."""
    optimizer_values: int
    """Number of tensors and numbers of the optimizer's state."""
    checked_bytes: int
    """Bytes compared on each rank."""
    ranks: int
    """Number of ranks that were compared."""

    def __str__(self) -> str:
        parts = [f"{self.parameters} parameters"]
        parts += [f"{self.buffers} buffers"] * bool(self.buffers)
        parts += [f"{self.optimizer_values} values of the optimizer"] * bool(self.optimizer_values)
        size = f"{self.checked_bytes / 1e6:.3g} MB"
        return f"replicas are equal: {', '.join(parts)} ({size}) on {count_text(self.ranks, 'rank')}"


def check_replicas(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    buffers: bool = False,
    group: dist.ProcessGroup | None = None,
) -> CheckedReplicas:
    """Check that all ranks hold the same bits in every parameter.

    Collective over `group`: one all-gather of 16 bytes per rank. If the ranks differ, a second one of all names and
    hashes finds where. Bits are compared, so a NaN equals the same NaN, and -0.0 is not 0.0. A difference goes unseen
    with a probability of 2**-64. The hash does not withstand an adversary.

    Args:
        model: Its parameters are dense tensors of any dtype, whole on every rank.
        optimizer: Compare its state as well (tensors and numbers), by the names of the parameters.
        buffers: Compare the model's buffers as well. Batch statistics differ between ranks under DDP, so they are left
            out by default.
        group: A process group of any backend; None: the default process group.

    Returns:
        How many tensors, bytes and ranks were found equal.

    Raises:
        ReplicaMismatchError: Two ranks differ. All ranks raise it; it names the first tensor that differs, and the
            ranks.
        UnsupportedError: A tensor is a DTensor or sparse.

    Example:
        Every 100 steps:

            if step % 100 == 0:
                print(geocomm.check_replicas(model, optimizer))
    """
    tensors = list(_tensors(model, optimizer, buffers))
    hashes = [(name, _hash_of(name, value)) for name, value in tensors]
    digest = hashlib.blake2b(repr(hashes).encode(), digest_size=16).digest()
    own = torch.frombuffer(bytearray(digest), dtype=torch.uint8).to(device_of_group(group))
    digests = [torch.empty_like(own) for _ in range(dist.get_world_size(group))]
    all_gather(digests, own, group)
    if all(torch.equal(one, digests[0]) for one in digests):
        return CheckedReplicas(
            parameters=sum(1 for _ in model.parameters()),
            buffers=sum(1 for _ in model.buffers()) if buffers else 0,
            optimizer_values=sum(name.startswith(_OPTIMIZER) for name, _ in tensors),
            checked_bytes=sum(value.nbytes for _, value in tensors),
            ranks=len(digests),
        )
    everyone: list[Any] = [None] * len(digests)
    all_gather_object(everyone, hashes, group)
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    error = _mismatch(everyone, ranks)
    events.record("replicas_differ", message=str(error))
    raise error


def _tensors(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer | None, buffers: bool
) -> Iterator[tuple[str, torch.Tensor]]:
    yield from model.named_parameters()
    if buffers:
        yield from model.named_buffers()
    if optimizer is None:
        return
    name_of = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters: Iterable[torch.Tensor] = (p for group in optimizer.param_groups for p in group["params"])
    for index, parameter in enumerate(parameters):
        owner = name_of.get(id(parameter), f"parameter {index}")
        for key, value in sorted(optimizer.state.get(parameter, {}).items()):
            if isinstance(value, torch.Tensor):
                yield f"{_OPTIMIZER}{owner}: {key}", value
            elif isinstance(value, int | float):
                yield f"{_OPTIMIZER}{owner}: {key}", torch.tensor(value, dtype=torch.float64)


def _hash_of(name: str, tensor: torch.Tensor) -> int:
    """The hash of a tensor's bits, dtype and shape: the sum of mixed words, each with its place."""
    if isinstance(tensor, DTensor) or tensor.layout != torch.strided:
        kind = "a DTensor" if isinstance(tensor, DTensor) else "sparse"
        raise UnsupportedError(
            f"check_replicas: {name} is {kind}; only dense tensors that every rank holds whole are compared"
        )
    frame = f"{tensor.dtype} {list(tensor.shape)}"
    total = int.from_bytes(hashlib.blake2b(frame.encode(), digest_size=7).digest(), "little")
    values = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    whole = values.numel() // 8 * 8
    # A view of other words needs a start that is a multiple of 8 bytes, which a view of a larger tensor may not have.
    start = values[:whole] if values.storage_offset() % 8 == 0 else values[:whole].clone()
    sums = _sums(start.view(torch.int64), 1)
    if whole < values.numel():
        rest = torch.zeros(8, dtype=torch.uint8, device=values.device)
        rest[: values.numel() - whole] = values[whole:]
        sums += _sums(rest.view(torch.int64), 1 + whole // 8)
    if sums:
        total += int(torch.stack(sums).sum())
    return total % (1 << 64)


def _sums(words: torch.Tensor, place: int) -> list[torch.Tensor]:
    chunk = _CHUNK_WORDS.get(words.device.type, _CHUNK_WORDS["cuda"])
    steps = torch.arange(min(chunk, words.numel()), device=words.device).mul_(_STEP)
    sums: list[torch.Tensor] = []
    for begin in range(0, words.numel(), chunk):
        part = words[begin : begin + chunk]
        first = (place + begin) * _STEP % (1 << 64)
        mixed = steps[: part.numel()] + (first - (1 << 64) if first >> 63 else first)
        mixed ^= part
        _shift_xor(mixed, 30).mul_(_MIX_1)
        _shift_xor(mixed, 27).mul_(_MIX_2)
        sums.append(_shift_xor(mixed, 31).sum())
    return sums


def _shift_xor(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Compute words ^= words >> bits in place, with zeros shifted in."""
    words ^= (words >> bits).bitwise_and_((1 << (64 - bits)) - 1)
    return words


def _sides(everyone: list[Hashes], ranks: list[int], index: int) -> dict[Any, list[int]]:
    """The ranks of each hash of tensor number `index`; None: they have no such tensor."""
    sides: dict[Any, list[int]] = defaultdict(list)
    for rank, hashes in zip(ranks, everyone, strict=True):
        sides[hashes[index] if index < len(hashes) else None].append(rank)
    return sides


def _mismatch(everyone: list[Hashes], ranks: list[int]) -> ReplicaMismatchError:
    tensors = ((index, _sides(everyone, ranks, index)) for index in range(max(map(len, everyone))))
    index, sides = next((index, sides) for index, sides in tensors if len(sides) > 1)
    names = sorted({side[0] for side in sides if side is not None})
    largest = max(sides.values(), key=len)
    others = sorted(rank for members in sides.values() if members is not largest for rank in members)
    agree = f"{ranks_text(largest)} agree" if len(largest) > 1 else "no two ranks agree"
    if len(names) == 1 and None not in sides:
        text = f"{names[0]} differs on {ranks_text(others)} ({agree})"
    else:
        found = "; ".join(f"{ranks_text(m)}: {side[0] if side else 'nothing'}" for side, m in sides.items())
        text = f"tensor {index + 1} is not the same one on all ranks: {found}"
    error = ReplicaMismatchError(
        f"the replicas have come apart: {text}. Go back to a checkpoint, on all ranks; a rank that differs alone "
        "points to its memory, or to code that only it runs"
    )
    error.tensor = names[0] if names else ""
    error.ranks = tuple(others)
    return error

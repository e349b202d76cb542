"""Every operation, reduction and dtype on the ranks of a group, against what they are to give and to refuse.

Nothing here knows how the ranks lie in sites: an answer or a refusal that depends on it is a difference. All answers
are computed from what all ranks give.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex32, torch.complex64, torch.complex128]
RARE = [torch.uint16, torch.uint32, torch.uint64]
RARE += [getattr(torch, name) for name in sorted(dir(torch)) if name.startswith("float8_")]
DTYPES = [torch.bool, *INTEGERS, *FLOATS, *COMPLEX, *RARE]

REDUCTIONS: dict[str, Any] = {
    name: getattr(dist.ReduceOp, name) for name in ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")
}
REDUCTIONS |= {"PREMUL_SUM": dist._make_nccl_premul_sum(0.5)}
REDUCTIONS |= {"PREMUL_SUM of a tensor": dist._make_nccl_premul_sum(torch.tensor([0.5]))}

PART = 5
"""Elements of what a rank gives or gets; of what is cut into parts, for each rank."""

Make = Callable[[torch.Tensor], torch.Tensor]


def _strided(values: torch.Tensor) -> torch.Tensor:
    """Every second column, each element of which has a neighbour that must stay as it is."""
    room = torch.zeros(*values.shape, 2, dtype=torch.uint8).repeat_interleave(values.element_size(), -1)
    strided = room.view(values.dtype)[..., 0]
    return strided.copy_(values)


FORMS: dict[str, Make] = {
    "plain": lambda values: values.clone(),
    "strided": _strided,
    "empty": lambda values: values[..., :0].clone(),
}


def _given(dtype: torch.dtype, rank: int, part: int = 0) -> torch.Tensor:
    """PART small values that rank gives, whose sums and products every dtype holds."""
    numbers = (torch.arange(PART) + rank + 2 * part) % 3 + 1
    if dtype == torch.bool:
        return numbers > 1
    if dtype in FLOATS or dtype in INTEGERS:
        return numbers.to(dtype)
    if dtype in COMPLEX:
        return torch.complex(numbers.double(), numbers.double().flip(0)).to(dtype)
    return (numbers.repeat_interleave(dtype.itemsize) % 3).to(torch.uint8).view(dtype)  # moved as bits


def _reduced(name: str, each: list[torch.Tensor]) -> torch.Tensor | None:
    """The reduction of what all ranks give; None: there is none for the dtype."""
    dtype = each[0].dtype
    if dtype in RARE:
        return None
    if dtype == torch.bool:
        stack = torch.stack(each)
        if name in ("SUM", "MAX", "BOR"):
            return stack.any(0)
        return stack.sum(0) % 2 == 1 if name == "BXOR" else stack.all(0)
    wide = torch.complex128 if dtype in COMPLEX else torch.float64 if dtype in FLOATS else torch.int64
    stack = torch.stack(each).to(wide)
    if name.startswith("PREMUL_SUM"):
        return (stack * 0.5).sum(0).to(dtype)
    if name == "SUM":
        return stack.sum(0).to(dtype)
    if name == "AVG":
        mean = stack.sum(0) / len(each)
        return (mean if mean.is_floating_point() or mean.is_complex() else mean.trunc()).to(dtype)
    if wide == torch.complex128:
        return None
    if name == "PRODUCT":
        return stack.prod(0).to(dtype)
    if name in ("MIN", "MAX"):
        return (stack.amin(0) if name == "MIN" else stack.amax(0)).to(dtype)
    bitwise = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}[name]
    result = each[0]
    for one in each[1:] if wide == torch.int64 else []:
        result = bitwise(result, one)
    return result


Expected = list[tuple[torch.Tensor, torch.Tensor | None]]
"""What a call writes to, and what is to be there; None: nobody can say."""

Call = tuple[Any, Expected]
"""A Work, and what it leaves."""


class Case:
    """The ranks of a group, and how tensors are made for them."""

    def __init__(self, group: Any, dtype: torch.dtype, form: str) -> None:
        self.group, self.dtype, self.make = group, dtype, FORMS[form]
        self.form = form
        self.rank, self.size = group.rank(), group.size()
        self.ranks = range(self.size)

    def given(self, rank: int, part: int = 0) -> torch.Tensor:
        return self.make(_given(self.dtype, rank, part))

    def room(self) -> torch.Tensor:
        return self.make(torch.zeros_like(_given(self.dtype, 0)))

    def whole(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """One tensor of one row for each rank."""
        return self.make(torch.stack(parts))

    def whole_room(self) -> torch.Tensor:
        return self.whole([torch.zeros_like(_given(self.dtype, 0)) for _ in self.ranks])

    def sum_of(self, name: str, part: int = 0) -> torch.Tensor | None:
        """The reduction of everybody's part, in the form of this case."""
        found = _reduced(name, [_given(self.dtype, rank, part) for rank in self.ranks])
        return None if found is None else self.make(found)


def _all_reduce(case: Case, name: str, op: Any) -> Call:
    tensor = case.given(case.rank)
    return case.group.allreduce([tensor], op), [(tensor, case.sum_of(name))]


def _all_reduce_coalesced(case: Case, name: str, op: Any) -> Call:
    tensors = [case.given(case.rank, part) for part in range(3)]
    options = dist.AllreduceCoalescedOptions()
    options.reduceOp = op
    sums = [case.sum_of(name, part) for part in range(3)]
    return case.group.allreduce_coalesced(tensors, options), list(zip(tensors, sums, strict=True))


def _coalesced_all_reduces(case: Case, name: str, op: Any) -> Call:
    tensors = [case.given(case.rank, part) for part in range(3)]
    with dist._coalescing_manager(case.group, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor, op, group=case.group)
    return manager.works[0], [(tensor, case.sum_of(name, part)) for part, tensor in enumerate(tensors)]


def _reduce(case: Case, name: str, op: Any) -> Call:
    """The tensors of the others are not defined afterwards."""
    tensor = case.given(case.rank)
    return case.group.reduce(tensor, 1, op), [(tensor, case.sum_of(name))] if case.rank == 1 else []


def _scatter_options(op: Any) -> dist.ReduceScatterOptions:
    options = dist.ReduceScatterOptions()
    options.reduceOp = op
    return options


def _reduce_scatter(case: Case, name: str, op: Any) -> Call:
    output = case.room()
    parts = [case.given(case.rank, part) for part in case.ranks]
    work = case.group.reduce_scatter([output], [parts], _scatter_options(op))
    return work, [(output, case.sum_of(name, case.rank))]


def _reduce_scatter_single(case: Case, name: str, op: Any) -> Call:
    output = case.room()
    whole = case.whole([_given(case.dtype, case.rank, part) for part in case.ranks])
    return case.group._reduce_scatter_base(output, whole, _scatter_options(op)), [
        (output, case.sum_of(name, case.rank))
    ]


def _reduce_scatter_singles(case: Case, name: str, op: Any) -> Call:
    outputs = [case.room(), case.room()]
    wholes = [case.whole([_given(case.dtype, case.rank, part + 10 * i) for part in case.ranks]) for i in range(2)]
    work = case.group.reduce_scatter_tensor_coalesced(outputs, wholes, _scatter_options(op))
    return work, [(output, case.sum_of(name, case.rank + 10 * i)) for i, output in enumerate(outputs)]


REDUCING: dict[str, Callable[[Case, str, Any], Call]] = {
    "all_reduce": _all_reduce,
    "all_reduce_coalesced": _all_reduce_coalesced,
    "coalesced all_reduces": _coalesced_all_reduces,
    "reduce": _reduce,
    "reduce_scatter": _reduce_scatter,
    "reduce_scatter_single": _reduce_scatter_single,
    "reduce_scatter_singles": _reduce_scatter_singles,
}


def _broadcast(case: Case) -> Call:
    tensor = case.given(case.rank)
    return case.group.broadcast(tensor, 1), [(tensor, case.given(1))]


def _all_gather(case: Case) -> Call:
    outputs = [case.room() for _ in case.ranks]
    return case.group.allgather(outputs, case.given(case.rank)), [
        (output, case.given(rank)) for rank, output in enumerate(outputs)
    ]


def _all_gather_single(case: Case) -> Call:
    output = case.whole_room()
    expected = case.whole([_given(case.dtype, rank) for rank in case.ranks])
    return case.group._allgather_base(output, case.given(case.rank)), [(output, expected)]


def _all_gather_singles(case: Case) -> Call:
    outputs = [case.whole_room(), case.whole_room()]
    inputs = [case.given(case.rank, i) for i in range(2)]
    work = case.group.allgather_into_tensor_coalesced(outputs, inputs)
    return work, [
        (output, case.whole([_given(case.dtype, rank, i) for rank in case.ranks])) for i, output in enumerate(outputs)
    ]


def _all_gather_coalesced(case: Case) -> Call:
    rows = [[case.room() for _ in range(2)] for _ in case.ranks]
    work = case.group.allgather_coalesced(rows, [case.given(case.rank, i) for i in range(2)])
    return work, [(output, case.given(rank, i)) for rank, row in enumerate(rows) for i, output in enumerate(row)]


def _gather(case: Case) -> Call:
    outputs = [case.room() for _ in case.ranks] if case.rank == 1 else []
    work = case.group.gather(outputs, case.given(case.rank), 1)
    return work, [(output, case.given(rank)) for rank, output in enumerate(outputs)]


def _gather_single(case: Case) -> Call:
    make = getattr(dist, "gather_single", None)
    if make is None:
        return _gather(case)
    output = case.whole_room() if case.rank == 1 else None
    work = make(case.given(case.rank), output, dst=1, group=case.group, async_op=True)
    expected = case.whole([_given(case.dtype, rank) for rank in case.ranks])
    return work, [] if output is None else [(output, expected)]


def _scatter(case: Case) -> Call:
    output = case.room()
    inputs = [case.given(1, rank) for rank in case.ranks] if case.rank == 1 else []
    return case.group.scatter(output, inputs, 1), [(output, case.given(1, case.rank))]


def _all_to_all(case: Case) -> Call:
    outputs = [case.room() for _ in case.ranks]
    work = case.group.alltoall(outputs, [case.given(case.rank, rank) for rank in case.ranks])
    return work, [(output, case.given(rank, case.rank)) for rank, output in enumerate(outputs)]


def _all_to_all_uneven(case: Case) -> Call:
    """From each rank to each other as many elements as the sum of their numbers."""
    if case.form == "empty":
        return _all_to_all(case)

    def sent(source: int, target: int) -> torch.Tensor:
        return _given(case.dtype, source, target).repeat(2)[: source + target + 1]

    outputs = [case.make(torch.zeros_like(sent(rank, case.rank))) for rank in case.ranks]
    work = case.group.alltoall(outputs, [case.make(sent(case.rank, rank)) for rank in case.ranks])
    return work, [(output, case.make(sent(rank, case.rank))) for rank, output in enumerate(outputs)]


def _all_to_all_single(case: Case) -> Call:
    """In parts of which all but those to the next rank are empty."""
    following, last = (case.rank + 1) % case.size, (case.rank - 1) % case.size
    output = case.whole_room()
    sent = case.whole([_given(case.dtype, case.rank, part) for part in case.ranks])
    splits = [[case.size * int(rank == peer) for rank in case.ranks] for peer in (last, following)]
    work = case.group.alltoall_base(output, sent, *splits)
    return work, [(output, case.whole([_given(case.dtype, last, part) for part in case.ranks]))]


def _all_to_all_single_even(case: Case) -> Call:
    output = case.whole_room()
    sent = case.whole([_given(case.dtype, case.rank, part) for part in case.ranks])
    work = case.group.alltoall_base(output, sent, [], [])
    return work, [(output, case.whole([_given(case.dtype, rank, case.rank) for rank in case.ranks]))]


def _send(case: Case) -> Call:
    """Around the ring; what is received."""
    following, last = (case.rank + 1) % case.size, (case.rank - 1) % case.size
    output = case.room()
    sent = case.group.send([case.given(case.rank)], following, 0)
    received = case.group.recv([output], last, 0)
    sent.wait()
    return received, [(output, case.given(last))]


def _sent(case: Case) -> Call:
    """Around the ring; what is sent."""
    following, last = (case.rank + 1) % case.size, (case.rank - 1) % case.size
    output, own = case.room(), case.given(case.rank)
    received = case.group.recv([output], last, 0)
    sent = case.group.send([own], following, 0)
    received.wait()
    return sent, [(output, case.given(last))]


def _batch(case: Case) -> Call:
    following, last = (case.rank + 1) % case.size, (case.rank - 1) % case.size
    output, own = case.room(), case.given(case.rank)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, own, group=case.group, group_peer=following),
            dist.P2POp(dist.irecv, output, group=case.group, group_peer=last),
        ]
    )
    for work in works[:-1]:
        work.wait()
    return works[-1], [(output, case.given(last))]


MOVING: dict[str, Callable[[Case], Call]] = {
    "broadcast": _broadcast,
    "all_gather": _all_gather,
    "all_gather_single": _all_gather_single,
    "all_gather_singles": _all_gather_singles,
    "all_gather_coalesced": _all_gather_coalesced,
    "gather": _gather,
    "gather_single": _gather_single,
    "scatter": _scatter,
    "all_to_all": _all_to_all,
    "all_to_all of unequal parts": _all_to_all_uneven,
    "all_to_all_single": _all_to_all_single_even,
    "all_to_all_single of unequal parts": _all_to_all_single,
    "recv": _send,
    "send": _sent,
    "batch_isend_irecv": _batch,
}


def _sparse(case: Case) -> Call:
    tensor = torch.diag(case.given(case.rank)).to_sparse()
    work = case.group.allreduce([tensor], dist.ReduceOp.SUM)
    work.wait()
    found = case.sum_of("SUM")
    return work, [(tensor.to_dense(), None if found is None else torch.diag(found))]


def _barrier(case: Case) -> Call:
    return case.group.barrier(), []


def _refusal(name: str, dtype: torch.dtype) -> str:
    """The words in which a reduction of the dtype is refused, or those of torch itself; empty: it is not."""
    if dtype == torch.bool and name == "AVG":
        return "ReduceOp.AVG of bool tensors has no meaning"
    if dtype in COMPLEX and name not in ("SUM", "AVG"):
        return "of complex tensors takes ReduceOp.SUM and AVG alone"
    if dtype in RARE:
        return "cannot reduce tensors of dtype"
    if dtype in FLOATS and name in ("BAND", "BOR", "BXOR"):
        return "bitwise reductions need an integer or bool tensor"
    if dtype not in FLOATS and name.startswith("PREMUL_SUM"):
        return "ReduceOp.PREMUL_SUM needs a float tensor"
    return ""


def _same(found: torch.Tensor, answer: torch.Tensor) -> bool:
    if found.dtype != answer.dtype or found.shape != answer.shape:
        return False
    if found.dtype in FLOATS or found.dtype in COMPLEX:
        wide = torch.complex128 if found.is_complex() else torch.float64
        return torch.allclose(found.to(wide), answer.to(wide), rtol=2 * torch.finfo(found.dtype).eps, atol=0)
    # One element may have any stride, also where it counts as contiguous.
    bits = [torch.empty(one.shape, dtype=one.dtype).copy_(one).view(torch.uint8) for one in (found, answer)]
    return torch.equal(*bits)


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _difference(call: Callable[[], Call], by_future: bool, refusal: str) -> str:
    """What differs; by_future: it is the Future that is waited for."""
    try:
        work, expected = call()
    except (RuntimeError, ValueError) as error:
        told = f"{type(error).__name__}: {error}"
        return "" if refusal and refusal in told and type(error).__module__.startswith("geocomm") else told
    if refusal:
        work.wait()
        return f"is not refused: {refusal}"
    wrong: list[str] = []
    if by_future:
        given = work.get_future().wait()
        if not isinstance(given, list):
            wrong.append(f"its Future gives {given}")
        elif expected and sum(map(_bytes, given)) != sum(_bytes(found) for found, _ in expected):
            wrong.append(f"its Future gives tensors of the shapes {[list(one.shape) for one in given]}")
    else:
        work.wait()
    if not work.is_completed():
        wrong.append("is not completed")
    wrong += [
        f"{found.tolist()} in place of {answer.tolist()}"
        for found, answer in expected
        if answer is not None and not _same(found, answer)
    ]
    return "; ".join(wrong)


OF_TORCH = "coalesced all_reduces"
"""torch itself refuses what is no sum of complex tensors, in words of its own; of PREMUL_SUM it makes one of floats."""


def reducing_differences(operation: str) -> list[str]:
    """Of one of REDUCING: what a rank found other than it is to be. Every form is tried with the sums, which have most
    steps of their own."""
    wrong: list[str] = []
    for dtype in DTYPES:
        for name, op in REDUCTIONS.items():
            if operation == OF_TORCH and dtype in COMPLEX and name not in ("SUM", "AVG"):
                continue
            for form in FORMS if name in ("SUM", "AVG", "PREMUL_SUM") else ["plain"]:
                case = Case(dist.group.WORLD, dtype, form)
                for by_future in (False, True):
                    found = _difference(
                        lambda case=case, name=name, op=op: REDUCING[operation](case, name, op),
                        by_future,
                        _refusal(name, dtype),
                    )
                    wrong += [f"{operation} {name} {dtype} {form}{' (Future)' * by_future}: {found}"] if found else []
    return wrong


def moving_differences(operation: str) -> list[str]:
    """The same of one of MOVING."""
    wrong: list[str] = []
    for dtype in DTYPES:
        for form in FORMS:
            case = Case(dist.group.WORLD, dtype, form)
            for by_future in (False, True):
                found = _difference(lambda case=case: MOVING[operation](case), by_future, "")
                wrong += [f"{operation} {dtype} {form}{' (Future)' * by_future}: {found}"] if found else []
    return wrong


def other_differences() -> list[str]:
    """The same of barriers, sparse sums and objects."""
    group = dist.group.WORLD
    wrong = [_difference(lambda: _barrier(Case(group, torch.float32, "plain")), future, "") for future in (False, True)]
    for dtype in (torch.float32, torch.float64, torch.int64, torch.float16):
        refusal = "torch does not add sparse tensors of float16" if dtype == torch.float16 else ""
        wrong.append(_difference(lambda dtype=dtype: _sparse(Case(group, dtype, "plain")), True, refusal))
    return [one for one in [*wrong, *_objects(group)] if one]


def _objects(group: Any) -> list[str]:
    rank, ranks = group.rank(), range(group.size())

    def own(of: int) -> dict[str, Any]:
        return {"rank": of, "text": "x" * (of + 1)}

    gathered: list[Any] = [None for _ in ranks]
    dist.all_gather_object(gathered, own(rank), group=group)
    collected: list[Any] | None = [None for _ in ranks] if rank == 1 else None
    dist.gather_object(own(rank), collected, dst=1, group=group)
    shared = [own(rank), rank]
    dist.broadcast_object_list(shared, src=1, group=group)
    scattered: list[Any] = [None]
    dist.scatter_object_list(scattered, [own(one) for one in ranks] if rank == 1 else None, src=1, group=group)
    received: list[Any] = [own(0)]
    if rank == 0:
        dist.send_object_list([own(5)], dst=1, group=group)
    elif rank == 1:
        dist.recv_object_list(received, src=0, group=group)
    pairs: dict[str, tuple[Any, Any]] = {
        "all_gather_object": (gathered, [own(one) for one in ranks]),
        "gather_object": (collected, [own(one) for one in ranks] if rank == 1 else None),
        "broadcast_object_list": (shared, [own(1), 1]),
        "scatter_object_list": (scattered, [own(rank)]),
        "recv_object_list": (received, [own(5 if rank == 1 else 0)]),
    }
    return [f"{name}: {found} in place of {answer}" for name, (found, answer) in pairs.items() if found != answer]

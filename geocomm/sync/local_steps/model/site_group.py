"""The ranks of one site among themselves: who has the outer state of a fragment, and who which part of the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store

from geocomm.core.errors import GeocommError, InvalidArgumentError, error_of
from geocomm.core.link_table import Links
from geocomm.core.typed_torch import all_gather_object, all_reduce, default_store, to_list
from geocomm.core.units import count_text
from geocomm.sync.local_steps.model.fragments import Fragment, Range
from geocomm.sync.local_steps.model.host_memory import host_empty
from geocomm.sync.local_steps.model.parameter_view import ParameterView

_Piece = tuple[Range, slice]
"""A range that a rank holds, with its place in a fragment's buffer."""


class SiteGroup:
    """The ranks of this site, in one order. Of each fragment one of them is the owner, which has its outer state.

    Every method but `owns` and `store` is collective over the ranks of the site.
    """

    def __init__(self, group: dist.ProcessGroup | None = None, place: int = 0, owners: int = 1) -> None:
        """group: of all ranks of the site, None where there is one. place: of this rank among them. owners: how many of
        them share the fragments, the first ones."""
        self._group = group
        self.size = 1 if group is None else dist.get_world_size(group)
        self.place = place
        self.owners = owners
        self._held: list[dict[str, tuple[int, int]]] | None = None

    @property
    def text(self) -> str:
        """Which of them this rank is, and how many share the fragments."""
        return f"{self.place} of {self.size} ({self.owners} share the fragments)"

    def owns(self, fragment: int) -> bool:
        """Whether this rank has the outer state of the fragment of this index."""
        return self._owner(fragment) == self.place

    def store(self, name: str) -> Store:
        """One that all ranks of the site share, under a name that no other use of it has."""
        if self._group is None:
            return HashStore()
        return PrefixStore(f"geocomm {name}", default_store())

    def broadcast(self, fragment: int, numbers: Sequence[int] | None, count: int) -> list[int]:
        """The `count` numbers of the fragment's owner, at all ranks; the others pass None."""
        if self._group is None:
            return list(numbers or ())
        said = torch.zeros(count, dtype=torch.int64) if numbers is None else torch.tensor(list(numbers))
        dist.broadcast(said, group=self._group, group_src=self._owner(fragment))
        return to_list(said)

    def by_owner(self, fragment: int, work: Callable[[], Sequence[int]] | None, count: int) -> list[int]:
        """The `count` numbers that the owner's work comes to, at all ranks; the others pass None. Where it raises, so
        do all: none waits for what does not come."""
        said, failure = None, None
        if work is not None:
            try:
                said = [0, *work()]
            except Exception as error:
                said, failure = [1, *[0] * count], error
        failed, *numbers = self.broadcast(fragment, said, count + 1)
        if failed:
            told = self.broadcast_failure(fragment, failure)
            raise told if failure is None else failure
        return numbers

    def all_reduce(self, numbers: Sequence[int]) -> list[int]:
        """The sums of each number over the ranks: how they hear at once what each has to say of its own fragments."""
        if self._group is None:
            return list(numbers)
        said = torch.tensor(list(numbers))
        all_reduce(said, group=self._group)
        return to_list(said)

    def all_gather(self, numbers: Sequence[int]) -> list[list[int]]:
        """What each rank says, in the order of the ranks: as many numbers as it likes."""
        if self._group is None:
            return [list(numbers)]
        said: list[list[int]] = [[]] * self.size
        all_gather_object(said, list(numbers), self._group)
        return said

    def broadcast_bytes(self, content: torch.Tensor | None) -> torch.Tensor:
        """The bytes (uint8) of the first rank, at all ranks; the others pass None."""
        (size,) = self.all_reduce([0 if content is None else content.numel()])
        found = torch.empty(size, dtype=torch.uint8) if content is None else content
        if self._group is not None and size:
            dist.broadcast(found, group=self._group, group_src=0)
        return found

    def broadcast_failure(self, fragment: int, error: BaseException | None) -> GeocommError:
        """The error of the fragment's owner, as another rank raises it; the others pass None. At all ranks."""
        said = [(getattr(error, "code", type(error).__name__), str(error))]
        if self._group is not None:
            dist.broadcast_object_list(said, group=self._group, group_src=self._owner(fragment))
        ((code, reason),) = said
        return error_of(code, f"{reason} (at rank {self._owner(fragment)} of this site)")

    def learn_shards(self, view: ParameterView) -> None:
        """Have all ranks know who holds which elements. Called once, before `gather`.

        Raises InvalidArgumentError, at every rank, for elements that no rank holds, or two.
        """
        if not view.sharded or self._group is None:
            return
        own = {tensor.name: view.held(tensor.name) for tensor in view.tensors}
        self._held = [own] * self.size
        all_gather_object(self._held, own, self._group)
        for tensor in view.tensors:
            held = sum(stop - start for start, stop in (one[tensor.name] for one in self._held))
            if held != tensor.numel:
                raise InvalidArgumentError(
                    f"local steps: the {count_text(self.size, 'rank')} of this site hold {held} elements "
                    f"of parameter {tensor.name}, "
                    f"which has {tensor.numel}; all ranks of a site share one sharded model"
                )

    def gather(self, view: ParameterView, fragment: Fragment) -> torch.Tensor | None:
        """The model's values as a new flat float32 tensor in host memory, at the fragment's owner; None elsewhere."""
        owner = self._owner(fragment.index)
        if self._held is None:
            return _read(view, fragment.spans()) if owner == self.place else None
        pieces = [_overlap(fragment, held) for held in self._held]
        counts = [sum(part.numel for part, _ in some) for some in pieces]
        own = _read(view, pieces[self.place])
        sent, received = [0] * self.size, [0] * self.size
        sent[owner] = own.numel()
        if owner == self.place:
            received = counts
        arrived = torch.empty(sum(received))
        # As whole numbers, which no codec touches.
        untyped: Any = dist
        untyped.all_to_all_single(arrived.view(torch.int32), own.view(torch.int32), received, sent, group=self._group)
        if owner != self.place:
            return None
        values, offset = host_empty(fragment.numel, pinned=view.on_cuda), 0
        for part, span in (piece for some in pieces for piece in some):
            values[span] = arrived[offset : offset + part.numel]
            offset += part.numel
        return values

    def write(self, view: ParameterView, fragment: Fragment, values: torch.Tensor | None) -> None:
        """Replace the model's values at all ranks by those of the fragment's owner; the others pass None."""
        if self._group is not None:
            values = host_empty(fragment.numel, pinned=view.on_cuda) if values is None else values
            dist.broadcast(values.view(torch.int32), group=self._group, group_src=self._owner(fragment.index))
        if values is not None:
            for part, span in fragment.spans():
                view.write(part, values[span])

    def _owner(self, fragment: int) -> int:
        return fragment % self.owners


def _read(view: ParameterView, pieces: Sequence[_Piece]) -> torch.Tensor:
    """The values of ranges that this rank holds, one after the other."""
    values, offset = host_empty(sum(part.numel for part, _ in pieces), pinned=view.on_cuda), 0
    for part, _ in pieces:
        view.read(part, values[offset : offset + part.numel])
        offset += part.numel
    return values


def _overlap(fragment: Fragment, held: Mapping[str, tuple[int, int]]) -> list[_Piece]:
    """What of the fragment is in the elements [start, stop) that a rank holds of each tensor."""
    found: list[_Piece] = []
    for part, span in fragment.spans():
        first, last = held[part.name]
        start, stop = max(part.start, first), min(part.stop, last)
        if start < stop:
            place = span.start + start - part.start
            found.append((replace(part, start=start, stop=stop), slice(place, place + stop - start)))
    return found


class SiteFacts(Protocol):
    """Where this rank is, and who else is there."""

    site: str
    """The name of this site."""
    site_count: int | None
    """How many sites there are; None: it changes while the run goes."""
    ranks: SiteGroup
    """The ranks of this site."""

    @property
    def links(self) -> Links | None:
        """Those between the sites, as all ranks of the run know them; None: nobody does."""
        return None

    def sites_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """The names of the sites that have these ranks of the default process group."""
        ...

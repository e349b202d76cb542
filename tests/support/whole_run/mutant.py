"""A fault that geocomm had, and how it is put back."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest import mock

from support.whole_run.faults import FAULTS, OF_DATA, OF_ETCD


@dataclass(frozen=True)
class Mutant:
    """A fault."""

    what: str
    where: Any
    name: str
    instead: Any
    faults: tuple[str, ...] = ()
    """Those of the world by which it is found soon."""
    lasting: str = ""
    """And what goes on then."""
    with_etcd: bool = False
    data: bool = False
    """The run deals some."""
    regions: bool = False
    """There are some, and nothing befalls the run."""

    @property
    def world(self) -> dict[str, Any]:
        """The histories in which it shows, as arguments of `WholeRun`; with the usual faults for none."""
        if self.regions:
            return {"regions": True, "faults": {}, "lasting": "", "sites": 4}
        often = FAULTS | OF_ETCD | OF_DATA
        faults = {"faults": {kind: often[kind] for kind in self.faults}} if self.faults or self.lasting else {}
        return faults | {"lasting": self.lasting, "with_etcd": self.with_etcd, "data": self.data}

    def put(self) -> AbstractContextManager[Any]:
        """Have it in the place of what is right."""
        return mock.patch.object(self.where, self.name, self.instead)


MUTANTS: dict[str, Mutant] = {}
"""All, once `mutants` is imported."""


def mutant(
    where: Any,
    name: str,
    *faults: str,
    lasting: str = "",
    with_etcd: bool = False,
    data: bool = False,
    regions: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What is decorated comes in the place of `name`, in the world of these faults; its name tells it."""

    def add(instead: Callable[..., Any]) -> Callable[..., Any]:
        key = instead.__name__.strip("_").replace("_", " ")
        MUTANTS[key] = Mutant(instead.__doc__ or "", where, name, instead, faults, lasting, with_etcd, data, regions)
        return instead

    return add

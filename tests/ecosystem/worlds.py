"""The same ranks twice, over sites and over Gloo, for trainings that must not differ."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType

import torch.distributed as dist
from training_cases import Trained, measured

from support.harness import Ranks

TIME_LIMIT_S = 120


class Worlds:
    """Two sets of processes; sites: of each rank. over_sites: more variables of those that use geocomm."""

    def __init__(self, sites: list[str], over_sites: dict[str, str] | None = None) -> None:
        common = {"CASE_SITES": str(len(set(sites))), "DS_ACCELERATOR": "cpu"}
        self.ranks = {
            backend: Ranks(sites, environment=common | variables, time_limit=TIME_LIMIT_S)
            for backend, variables in (("geocomm", over_sites or {}), ("gloo", {}))
        }

    def __enter__(self) -> Worlds:
        for backend, ranks in self.ranks.items():
            ranks.run(dist.set_debug_level_from_env)  # torch has read it when it was imported, before `over_sites`
            ranks.init(backend=backend)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for ranks in self.ranks.values():
            ranks.destroy()
            ranks.close()

    def both(self, case: Callable[..., Trained], *arguments: object) -> tuple[list[Trained], list[Trained]]:
        """What each rank got over sites, and over Gloo."""
        over_sites, over_gloo = (ranks.run(measured, case, *arguments) for ranks in self.ranks.values())
        assert all(trained.wire_bytes > 0 for trained in over_sites), "nothing crossed between the sites"
        return over_sites, over_gloo


def assert_equal(over_sites: list[Trained], over_gloo: list[Trained]) -> None:
    """Bit for bit, on every rank."""
    for here, there in zip(over_sites, over_gloo, strict=True):
        assert here.losses == there.losses, f"{here} {there}"
        assert here.digest == there.digest, f"{here} {there}"
    assert any(trained.losses for trained in over_gloo)

"""Where `geocomm.device_mesh()` puts its mesh by default."""

from __future__ import annotations

import pytest
import torch

from geocomm.group.backend import sites


def test_mesh_is_on_the_accelerator_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    torch_has = torch.device("cuda")

    def current(check_available: bool = False) -> torch.device | None:
        return torch_has if check_available and available else None

    monkeypatch.setattr(torch.accelerator, "current_accelerator", current)
    available = True
    assert sites._type_here() == "cuda"
    available = False
    assert sites._type_here() == "cpu"

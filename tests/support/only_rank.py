"""Stands where a process group would, for gradients that one rank reduces."""

from __future__ import annotations

from typing import Any

import torch

import geocomm


class _Work:
    """Of a reduction that has ended."""

    def __init__(self, result: torch.Tensor, encoded: torch.Tensor, lost: torch.Tensor | None) -> None:
        self._result = result
        self._input_square = _square(encoded)
        self._residual_square = 0.0 if lost is None else _square(lost)

    def get_future(self) -> torch.futures.Future[Any]:
        future = torch.futures.Future()
        future.set_result([self._result])
        return future

    def succeeded(self) -> bool:
        return True

    def feedback(self) -> dict[str, Any]:
        result_square = _square(self._result)
        return {
            "committed": bool(self._result.isfinite().all()),
            "input_square": self._input_square,
            "residual_square": self._residual_square,
            "result_square": result_square,
            "scaled_square": 0.0,
            "wire_bytes": 0,
        }


class OnlyRank:
    """The sum over one rank, through the real codecs. Scales are noted and have no effect."""

    spans_sites = True

    def __init__(self) -> None:
        self.given: list[tuple[str, torch.Tensor]] = []
        """Codec and values of each reduction, in order."""
        self.scales: list[torch.Tensor | None] = []
        self.most_encoded: int | None = None
        """Elements, from the first on, whose losses this rank keeps; None: all."""

    def encoded_range(self, numel: int, dtype: torch.dtype) -> tuple[int, int]:
        return 0, numel if self.most_encoded is None else min(self.most_encoded, numel)

    def all_reduce_compressed(
        self,
        tensor: torch.Tensor,
        codec: str,
        residual: torch.Tensor | None,
        average: bool,
        decay: float,
        next_residual: torch.Tensor | None,
        scale: torch.Tensor | None,
    ) -> _Work:
        self.given.append((codec, tensor.clone()))
        self.scales.append(scale)
        lost = None
        if residual is not None and next_residual is not None:
            lost = torch.zeros(tensor.numel())
            lost[: residual.numel()] = residual
        encoded = tensor if lost is None else tensor.float() + decay * lost
        if codec != "none":
            tensor.copy_(geocomm.decompress(geocomm.compress(tensor, codec, lost, decay=decay)))
        elif lost is not None:
            tensor.copy_(encoded)
            lost.zero_()
        if lost is not None and next_residual is not None:
            next_residual.copy_(lost[: next_residual.numel()])
        return _Work(tensor, encoded, lost)


def _square(values: torch.Tensor) -> float:
    return float(values.double().square().sum())

"""A delta as it travels: what a codec compressed, and what crosses exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from geocomm.codecs.tensor_codec import compress, compress_bound, decompress
from geocomm.core.errors import GeocommError
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.host_memory import host_empty
from geocomm.sync.local_steps.outer.averaging import Averaging, average_deltas
from geocomm.sync.local_steps.outer.rounds import Coding

_EXACT = "none"
_AVERAGE_SEED, _REGION_SEED = 1 << 63, 1 << 48
"""Of stochastic rounding of averages: no delta has such a seed."""


@dataclass(frozen=True)
class DeltaFrames:
    """What a site sends in a round: uint8 each; None where the fragment has nothing of the kind."""

    coded: torch.Tensor | None
    exact: torch.Tensor | None

    @property
    def sizes(self) -> tuple[int, int]:
        """Bytes of each."""
        coded, exact = (0 if frame is None else frame.numel() for frame in (self.coded, self.exact))
        return coded, exact

    @property
    def wire_bytes(self) -> int:
        """Bytes of both."""
        return sum(self.sizes)

    @property
    def content(self) -> torch.Tensor:
        """Both, one after the other, as `of_bytes` takes them."""
        pieces = [piece for piece in (self.coded, self.exact) if piece is not None]
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)

    @classmethod
    def of_bytes(cls, content: torch.Tensor, coded_bytes: int) -> DeltaFrames:
        """The frames that lie one after the other in `content`: uint8, the coded one first."""
        coded, exact = content[:coded_bytes], content[coded_bytes:]
        return cls(coded if coded.numel() else None, exact if exact.numel() else None)

    def decode(self, fragment: Fragment, out: torch.Tensor) -> None:
        """Write the delta to `out`: float32, 1-D, `fragment.numel` elements. Raises CorruptDataError."""
        coded = fragment.coded_elems
        for frame, part in ((self.coded, out[:coded]), (self.exact, out[coded:])):
            if frame is not None:
                decompress(frame, out=part, threads=1)


def most_bytes(fragment: Fragment, coding: Coding) -> tuple[int, int]:
    """The most bytes of the coded and of the exact frame of a delta; the former may be exact, too."""
    coded, exact = (
        max(compress_bound(torch.empty(numel), codec) for codec in (coding.codec, _EXACT)) if numel else 0
        for numel in (fragment.coded_elems, fragment.exact_elems)
    )
    return coded, exact


def sound_delta(frames: DeltaFrames, fragment: Fragment) -> torch.Tensor | None:
    """The delta of a site that may err or lie; None for bytes that are none, or that have NaN or Inf.

    It depends on the bytes alone, so all sites that have them leave out the same ones.
    """
    if (frames.coded is None, frames.exact is None) != (not fragment.coded_elems, not fragment.exact_elems):
        return None
    delta = host_empty(fragment.numel, pinned=False)
    try:
        frames.decode(fragment, delta)
    except GeocommError:
        return None
    return delta if bool(delta.isfinite().all()) else None


def average_frames(
    frames: Sequence[DeltaFrames], fragment: Fragment, weights: Sequence[int], averaging: Averaging
) -> torch.Tensor | None:
    """The average of what the sites sent; None where none of them counts. Raises CorruptDataError. See
    `average_deltas`."""
    if not any(weights):
        return None
    deltas = [host_empty(fragment.numel, pinned=False) for _ in frames]
    for one, delta in zip(frames, deltas, strict=True):
        one.decode(fragment, delta)
    return average_deltas(averaging, fragment, deltas, weights, out=host_empty(fragment.numel, pinned=False))


def through_frames(
    values: torch.Tensor, fragment: Fragment, coding: Coding, number: int, *, region: int = 0
) -> DeltaFrames:
    """The frames of a round's average as its aggregator sends it; `values` become what every site decodes of them.

    What the codec loses here is lost: it has no error feedback. region: the number of that whose average it is; 0: the
    average is of all.
    """
    coded, seed = fragment.coded_elems, _AVERAGE_SEED | region * _REGION_SEED | number
    frames = DeltaFrames(
        compress(values[:coded], coding.codec, seed=seed, threads=1) if coded else None,
        compress(values[coded:], _EXACT, threads=1) if coded < fragment.numel else None,
    )
    frames.decode(fragment, values)
    return frames


def encode_delta(
    fragment: Fragment,
    delta: torch.Tensor,
    residual: torch.Tensor | None,
    coding: Coding,
    *,
    seed: int,
    counts: bool,
) -> tuple[DeltaFrames, torch.Tensor | None]:
    """The frames of a site's delta, and the residual that it has once the round is committed.

    The delta is given away: the new residual may take its place. The old one is left as it is.
    seed: of stochastic rounding; another one in each round and at each site, so that their errors are independent.
    counts: whether the site's weight is above 0; else the delta
    is zeros, and the residual stays as it is.
    """
    coded = fragment.coded_elems
    exact = compress(delta[coded:], _EXACT, threads=1) if coded < fragment.numel else None
    if not coded:
        return DeltaFrames(None, exact), residual
    given, feedback, new_residual = delta[:coded], None, residual
    if residual is not None and not counts:
        feedback = torch.zeros_like(residual)  # some codecs need one
    elif residual is not None and coding.decay == 1.0:
        # A codec takes the sum of what it is given and the residual, in which it leaves what it has lost. So these two
        # can change places, and nothing has to be copied.
        given, feedback, new_residual = residual, given, given
    elif residual is not None:
        feedback = new_residual = host_empty(coded, pinned=False).copy_(residual)
    frame = compress(given, coding.codec, feedback, seed=seed, decay=coding.decay, threads=1)
    return DeltaFrames(frame, exact), new_residual

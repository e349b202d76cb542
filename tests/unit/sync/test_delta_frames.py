"""The frames of a delta, and the residual that a site has afterwards."""

from __future__ import annotations

import pytest
import torch

import geocomm
from geocomm.codecs.codec_spec import codec_spec
from geocomm.sync.local_steps.model.fragments import Fragment, Range
from geocomm.sync.local_steps.outer.delta_frames import DeltaFrames, encode_delta, sound_delta
from geocomm.sync.local_steps.outer.rounds import Coding
from support.codec_oracle import same_bits

CODED, EXACT = 5000, 70
FRAGMENT = Fragment(0, (Range("matrix", 0, CODED), Range("norm", 0, EXACT, exact=True)))


def random(count: int, seed: int, scale: float) -> torch.Tensor:
    return scale * torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("decay", [1.0, 0.9])
@pytest.mark.parametrize(
    "codec",
    [
        "none",
        "fp16",
        "bf16",
        "int8",
        "int4:block=128",
        "int4:round=stochastic",
        "balanced",
        "bit1",
        "topk:k=41",
        "loco",
    ],
)
def test_frame_and_residual_are_those_of_compress_in_place(codec: str, decay: float) -> None:
    """The residual from before is not written to, whatever the delta's memory becomes."""
    delta, residual = random(CODED + EXACT, 1, 1.0), None if codec_spec(codec).exact else random(CODED, 2, 0.3)
    expected_residual = None if residual is None else residual.clone()
    expected = geocomm.compress(delta[:CODED].clone(), codec, expected_residual, seed=11, decay=decay)
    before = None if residual is None else residual.clone()
    exact = delta[CODED:].clone()
    coding = Coding(codec, decay, "mean")
    frames, new = encode_delta(FRAGMENT, delta, residual, coding, seed=11, counts=True)
    assert frames.coded is not None
    assert frames.exact is not None
    assert same_bits(frames.coded, expected)
    assert same_bits(geocomm.decompress(frames.exact), exact)
    if expected_residual is None:
        assert new is None
    else:
        assert new is not None
        assert before is not None
        assert residual is not None
        assert same_bits(new, expected_residual)
        assert same_bits(residual, before)


@pytest.mark.parametrize("codec", ["int4:block=128", "loco"])
def test_site_that_does_not_count_keeps_its_residual(codec: str) -> None:
    residual = random(CODED, 2, 0.3)
    before = residual.clone()
    delta = torch.zeros(CODED + EXACT)
    frames, new = encode_delta(FRAGMENT, delta, residual, Coding(codec, 1.0, "mean"), seed=11, counts=False)
    assert new is not None
    assert same_bits(new, before)
    assert frames.coded is not None
    assert geocomm.decompress(frames.coded).count_nonzero() == 0


def test_what_is_no_delta_of_the_fragment_is_left_out() -> None:
    """A site that errs or lies cannot end the others, or make their state another one at each."""

    def sent(delta: torch.Tensor) -> DeltaFrames:
        return encode_delta(FRAGMENT, delta.clone(), None, Coding("int4:block=128", 1.0, "mean"), seed=1, counts=True)[
            0
        ]

    right = sent(random(CODED + EXACT, 1, 1.0))
    assert right.coded is not None
    assert right.exact is not None
    found = sound_delta(right, FRAGMENT)
    assert found is not None
    assert found.isfinite().all()
    infinite = random(CODED + EXACT, 1, 1.0)
    infinite[-1] = torch.inf
    doubles = geocomm.compress(random(CODED, 1, 1.0).double(), "none")
    wrong = {
        "no bytes": DeltaFrames(None, None),
        "one frame alone": DeltaFrames(right.coded, None),
        "exchanged": DeltaFrames(right.exact, right.coded),
        "shorter": DeltaFrames(right.coded[:-1], right.exact),
        "random": DeltaFrames(torch.arange(5000, dtype=torch.uint8), right.exact),
        "another dtype": DeltaFrames(doubles, right.exact),
        "infinite": sent(infinite),
    }
    assert {name: sound_delta(frames, FRAGMENT) for name, frames in wrong.items()} == dict.fromkeys(wrong)

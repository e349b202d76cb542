"""geocomm.compress and geocomm.decompress, over dtypes, sizes, shapes and codecs."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import geocomm
from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from support.codec_oracle import (
    ALL_DTYPES,
    FLOATS,
    HEADER_BYTES,
    ROUNDING,
    BlockCodec,
    Data,
    block_codecs,
    blocks_of,
    cast_codecs,
    cast_frame,
    codecs,
    frames_of,
    inputs,
    lossy_codecs,
    same_bits,
    same_bits_but_nan,
    scale_of_blocks,
)
from support.effort import effort

large = effort(8)
small = effort(25)
SMALL_BYTES = 20_000
seeds = st.integers(0, 2**64 - 1)
layouts = st.sampled_from(("plain", "transposed", "every second", "offset", "expanded"))
shapes = st.lists(st.integers(0, 9), max_size=4).map(tuple)


def strided(shape: tuple[int, ...], layout: str, dtype: torch.dtype) -> torch.Tensor:
    """A view of that shape into memory that is laid out otherwise."""

    def data(*sizes: int) -> torch.Tensor:
        return Data(dtype, math.prod(sizes)).tensor().view(sizes)

    if layout == "offset":
        return data(math.prod(shape) + 3)[3:].view(shape)
    if layout == "plain" or not shape:
        return data(*shape)
    if layout == "transposed":
        return data(*reversed(shape)).permute(*reversed(range(len(shape))))
    if layout == "every second":
        return data(*shape[:-1], 2 * shape[-1])[..., ::2]
    return data(1, *shape[1:]).expand(shape)


# ---- round trips


@large
@given(inputs(ALL_DTYPES))
def test_none_of_every_dtype_gives_the_same_bits(data: Data) -> None:
    tensor = data.tensor()
    payload = geocomm.compress(tensor, "none")
    assert payload.dtype == torch.uint8
    assert payload.numel() == tensor.nbytes + HEADER_BYTES * len(frames_of(tensor))
    assert same_bits(geocomm.decompress(payload), tensor)


@large
@given(cast_codecs, inputs(FLOATS))
def test_cast_codec_gives_what_torch_rounds_or_else_the_same_bits(codec: str, data: Data) -> None:
    tensor = data.tensor()
    expected = [cast_frame(codec, frame) for frame in frames_of(tensor)]
    payload = geocomm.compress(tensor, codec)
    assert payload.numel() == sum(HEADER_BYTES + content for _, content in expected)
    assert same_bits_but_nan(geocomm.decompress(payload), torch.cat([frame for frame, _ in expected]))


@large
@given(block_codecs, inputs(FLOATS), seeds)
def test_block_codec_errs_by_at_most_a_step_and_keeps_raw_blocks(codec: BlockCodec, data: Data, seed: int) -> None:
    tensor = data.tensor()
    payload = geocomm.compress(tensor, str(codec), seed=seed)
    decoded = geocomm.decompress(payload)
    assert decoded.dtype == tensor.dtype
    assert decoded.shape == tensor.shape
    steps = 0.5001 if codec.rounding == "nearest" else 1.0001
    relative, smallest = ROUNDING[tensor.dtype]
    size = 0
    for before, after in zip(frames_of(tensor), frames_of(decoded), strict=True):
        scales = scale_of_blocks(codec, before)
        per_element = scales.repeat_interleave(codec.block)[: before.numel()]
        raw = per_element.isnan()
        assert same_bits(after[raw], before[raw])
        x, y = before[~raw].double(), after[~raw].double()
        assert y.isfinite().all()
        bound = steps * per_element[~raw].double() + relative * y.abs() + smallest
        assert ((x - y).abs() <= bound).all()
        lengths = torch.full((len(scales),), codec.block)
        if before.numel() % codec.block:
            lengths[-1] = before.numel() % codec.block
        code_bytes = lengths if codec.name == "int8" else (lengths + 1) // 2
        size += HEADER_BYTES + 2 * len(scales) + int(code_bytes.sum()) + int(raw.sum()) * before.element_size()
    assert payload.numel() == size


@small
@given(block_codecs, inputs((torch.float32,), kinds=("normal",), exponents=(-30, 30), largest_bytes=SMALL_BYTES))
def test_block_codec_gives_multiples_of_its_scale_that_hold_the_peak(codec: BlockCodec, data: Data) -> None:
    tensor = data.tensor()
    decoded = geocomm.decompress(geocomm.compress(tensor, str(codec)))
    scales = scale_of_blocks(codec, tensor)
    codes = blocks_of(decoded, codec.block) / scales[:, None]
    assert torch.equal(codes, codes.round())
    # A bf16 scale is rounded up by less than 1 %: the peak has the largest code of int4, almost that of int8.
    peaks = codes.abs().amax(1)
    assert (peaks <= (127 if codec.name == "int8" else 7)).all()
    assert (peaks >= (125 if codec.name == "int8" else 6)).all()


# ---- shapes and memory


@small
@given(codecs, shapes, layouts, st.sampled_from(FLOATS), st.booleans())
def test_compress_of_any_layout_equals_that_of_the_flat_copy(
    codec: str, shape: tuple[int, ...], layout: str, dtype: torch.dtype, requires_grad: bool
) -> None:
    view = strided(shape, layout, dtype).requires_grad_(requires_grad)
    flat = view.detach().clone().reshape(-1)
    payload = geocomm.compress(view, codec)
    assert torch.equal(payload, geocomm.compress(flat, codec))
    assert not payload.requires_grad
    assert same_bits(view.detach().contiguous(), flat)


def test_compress_of_a_lazily_negated_tensor_negates() -> None:
    lazy = torch.tensor([1 + 2j]).conj().imag
    assert lazy.is_neg()
    assert geocomm.decompress(geocomm.compress(lazy, "none")).tolist() == [-2.0]


@small
@given(codecs, shapes, layouts.filter(lambda layout: layout != "expanded"), st.sampled_from(FLOATS))
def test_decompress_into_out_of_any_shape_writes_its_elements_only(
    codec: str, shape: tuple[int, ...], layout: str, dtype: torch.dtype
) -> None:
    out = strided(shape, layout, dtype)
    memory = torch.empty(0, dtype=dtype).set_(out.untyped_storage())
    expected_memory = memory.clone()
    payload = geocomm.compress(Data(dtype, out.numel(), seed=1).tensor(), codec)
    flat = geocomm.decompress(payload)
    assert flat.dim() == 1
    assert geocomm.decompress(payload, out=out) is out
    assert torch.equal(out, flat.view(shape))
    expected_memory.as_strided(out.size(), out.stride(), out.storage_offset()).copy_(flat.view(shape))
    assert same_bits(memory, expected_memory)


# ---- determinism


@large
@given(lossy_codecs, inputs(FLOATS), seeds, st.integers(0, 999))
def test_compress_depends_on_input_and_seed_only(codec: str, data: Data, seed: int, global_seed: int) -> None:
    payload = geocomm.compress(data.tensor(), codec, seed=seed)
    torch.manual_seed(global_seed)
    geocomm.compress(torch.ones(1000), codec, seed=seed + 1 & 2**64 - 1)
    assert torch.equal(geocomm.compress(data.tensor(), codec, seed=seed), payload)


@small
@given(
    block_codecs.filter(lambda codec: codec.rounding == "stochastic"),
    st.lists(seeds, min_size=2, max_size=2, unique=True),
)
def test_stochastic_rounding_with_another_seed_gives_other_bytes(codec: BlockCodec, two_seeds: list[int]) -> None:
    tensor = Data(torch.float32, 4096).tensor()
    first, second = (geocomm.compress(tensor, str(codec), seed=seed) for seed in two_seeds)
    assert not torch.equal(first, second)


@large
@given(lossy_codecs, inputs(FLOATS), seeds)
def test_frames_of_a_prefix_begin_the_payload_of_the_whole(codec: str, data: Data, seed: int) -> None:
    tensor = data.tensor()
    whole = geocomm.compress(tensor, codec, seed=seed)
    prefix = geocomm.compress(frames_of(tensor)[0], codec, seed=seed)
    assert torch.equal(whole[: prefix.numel()], prefix)


# ---- error feedback


@large
@given(codecs, inputs((torch.float32,)), st.integers(1, 3), seeds)
def test_residual_of_float32_is_exactly_what_was_lost(codec: str, data: Data, steps: int, seed: int) -> None:
    tensor = data.tensor()
    residual = torch.zeros_like(tensor)
    for step in range(steps):
        wanted = tensor + residual
        decoded = geocomm.decompress(geocomm.compress(tensor, codec, residual, seed=(seed + step) % 2**64))
        assert torch.equal(residual, torch.where(wanted.isfinite(), wanted - decoded, 0))


@large
@given(codecs, inputs((torch.float16, torch.bfloat16), kinds=("normal",), exponents=(-8, 3)), st.integers(1, 3))
def test_residual_of_16_bit_dtypes_and_result_add_up_to_the_input(codec: str, data: Data, steps: int) -> None:
    tensor = data.tensor()
    relative, smallest = ROUNDING[data.dtype]
    residual = torch.zeros(data.elements)
    for _ in range(steps):
        wanted = tensor.float() + residual
        decoded = geocomm.decompress(geocomm.compress(tensor, codec, residual)).double()
        lost = decoded + residual.double() - wanted.double()
        # The residual is that of the value before it was rounded to the dtype.
        assert (
            lost.abs() <= (relative + 2.0**-20) * wanted.abs().double() + residual.abs() * relative + smallest
        ).all()


# ---- errors


@small
@given(
    st.one_of(
        st.text(max_size=12).filter(lambda text: text not in geocomm.codec_names() and ":" not in text),
        st.sampled_from(("int8:", "int8:block=100", "int4:block=8192", "int8:round=up", "int8:k=3", "none:block=64")),
        st.builds(
            "{}:block={}".format, st.sampled_from(("int8", "int4")), st.integers().filter(lambda n: n.bit_count() > 1)
        ),
    )
)
def test_compress_with_an_unknown_codec_raises_invalid_argument(codec: str) -> None:
    with pytest.raises(InvalidArgumentError):
        geocomm.compress(torch.ones(3), codec)


@pytest.mark.parametrize("dtype", [dtype for dtype in ALL_DTYPES if dtype not in FLOATS])
@small
@given(codec=lossy_codecs, elements=st.integers(0, 300))
def test_lossy_codec_of_other_dtypes_raises_unsupported(codec: str, elements: int, dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedError):
        geocomm.compress(torch.zeros(elements, dtype=dtype), codec)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn, torch.uint16, torch.uint64])
def test_none_of_a_dtype_that_frames_do_not_name_raises_unsupported(dtype: torch.dtype) -> None:
    with pytest.raises(UnsupportedError):
        geocomm.compress(torch.zeros(3, dtype=dtype), "none")


@small
@given(lossy_codecs, st.integers(2, 300), st.data())
def test_compress_with_a_wrong_residual_raises_and_leaves_it(codec: str, elements: int, data: st.DataObject) -> None:
    wrong = data.draw(
        st.sampled_from(
            (
                torch.full((elements + 1,), 0.25),
                torch.full((elements - 1,), 0.25),
                torch.full((elements,), 0.25, dtype=torch.float64),
                torch.full((elements,), 0.25, dtype=torch.float16),
                torch.full((2 * elements,), 0.25)[::2],
            )
        )
    )
    with pytest.raises(InvalidArgumentError):
        geocomm.compress(torch.ones(elements) / 3, codec, wrong)
    assert (wrong == 0.25).all()


@small
@given(codecs, st.integers(1, 300), st.data())
def test_decompress_into_a_wrong_out_raises_and_leaves_it(codec: str, elements: int, data: st.DataObject) -> None:
    payload = geocomm.compress(torch.ones(elements), codec)
    wrong = data.draw(
        st.sampled_from(
            (
                torch.full((elements + 1,), 7.0),
                torch.full((elements - 1,), 7.0),
                torch.full((elements,), 7.0, dtype=torch.float16),
                torch.full((elements,), 7, dtype=torch.int32),
            )
        )
    )
    with pytest.raises(InvalidArgumentError):
        geocomm.decompress(payload, out=wrong)
    assert (wrong == 7).all()

"""llama.cpp in tests: a build of it, the package xllamacpp of a third party, and a small model that it loads."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import pytest
from transformers.convert_slow_tokenizer import bytes_to_unicode

PACKAGE = "xllamacpp"
CHECKED = "2026.10.11549"
_WIDTH, _HEADS = 32, 2
_END_OF_TEXT = "<|endoftext|>"


def skip_without_llama_cpp() -> None:
    """Skips the test unless the version of the package that was tried is installed."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        found = "none"
    if found != CHECKED:
        pytest.skip(f"needs llama.cpp: pip install --no-deps {PACKAGE}=={CHECKED} (found: {found})")
    pytest.importorskip("gguf")


def write_small_gguf(path: Path) -> None:
    """A Llama of one layer with random weights, whose tokens are bytes."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(1)
    writer.add_feed_forward_length(2 * _WIDTH)
    writer.add_head_count(_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*bytes_to_unicode().values(), _END_OF_TEXT])
    writer.add_token_types([gguf.TokenType.NORMAL] * 256 + [gguf.TokenType.CONTROL])
    writer.add_token_merges([f"{_END_OF_TEXT} {_END_OF_TEXT}"])  # llama.cpp asks for some; this one never applies
    writer.add_eos_token_id(256)
    writer.add_bos_token_id(256)
    random, wide, square = np.random.default_rng(0), (2 * _WIDTH, _WIDTH), (_WIDTH, _WIDTH)
    shapes = {"token_embd": (257, _WIDTH), "output": (257, _WIDTH), "output_norm": (_WIDTH,)}
    shapes |= {f"blk.0.{name}": (_WIDTH,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.attn_{name}": square for name in ("q", "k", "v", "output")}
    shapes |= {"blk.0.ffn_gate": wide, "blk.0.ffn_up": wide, "blk.0.ffn_down": wide[::-1]}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.standard_normal(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

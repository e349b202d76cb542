"""A DeepSeek-V3 folder as one GGUF file, which llama.cpp and what is built on it load."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_packages import need_packages

MODEL_FILE = "model.gguf"
DTYPES = ("fp32", "bf16", "fp16")


@dataclass(frozen=True)
class GgufFacts:
    """What was written: tensors and the numbers in them; how many tensors were read back and found equal."""

    tensors: int
    parameters: int
    tensors_compared: int


def write_gguf(hf_folder: Path, out: Path, dtype: str, verify: int, say: Callable[[str], None]) -> GgufFacts:
    """Writes `out/model.gguf`; `out` exists, and is the caller's to remove where this fails.

    `dtype` is one of `DTYPES`. With `verify` above 0 the file is read back and each tensor compared, bit for bit.
    Memory stays at a few times the largest tensor, which is the experts of one layer.

    Raises BadInput for a missing package, for a model or tokenizer that llama.cpp would run in another way, for
    numbers beyond fp16's range, and for a file that does not read back as it was written.
    """
    need_packages("gguf", "gguf")
    from transformers import AutoConfig

    from geocomm.train.export.gguf_file import compare_file, write_file
    from geocomm.train.export.gguf_metadata import check_convertible
    from geocomm.train.export.gguf_tensors import SafetensorsFolder, gguf_tensors

    if dtype not in DTYPES:
        raise BadInput(f"--dtype is {dtype!r}; with --format gguf it must be one of {', '.join(DTYPES)}")
    config = check_convertible(AutoConfig.from_pretrained(hf_folder, local_files_only=True))
    tensors = gguf_tensors(SafetensorsFolder(hf_folder), config)
    path = out / MODEL_FILE
    write_file(path, tensors, config, hf_folder, dtype)
    parameters = sum(tensor.elements for tensor in tensors)
    say(
        f"{MODEL_FILE}: {len(tensors)} tensors, {parameters / 1e6:.1f} M parameters, {path.stat().st_size / 1e6:.1f} MB"
    )
    if verify:
        compare_file(path, tensors, dtype)
        say(f"{MODEL_FILE} read back: all {len(tensors)} tensors are equal to the model's")
    return GgufFacts(len(tensors), parameters, len(tensors) if verify else 0)

"""A DeepSeek-V3 folder as one GGUF file, which llama.cpp and what is built on it load."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import AutoConfig, DeepseekV3Config

from geocomm.core.bad_input import BadInput
from geocomm.train.export.export_record import Dtype
from geocomm.train.export.gguf_metadata import add_model_facts, add_vocabulary, check_convertible
from geocomm.train.export.gguf_tensors import GgufTensor, SafetensorsFolder, gguf_tensors

MODEL_FILE = "model.gguf"
_KINDS: dict[Dtype, gguf.GGMLQuantizationType] = {
    "fp32": gguf.GGMLQuantizationType.F32,
    "fp16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
}


def write_gguf(hf_folder: Path, out: Path, dtype: Dtype, verify: int, say: Callable[[str], None]) -> None:
    """Writes `out/model.gguf`; `out` exists, and is the caller's to remove where this fails.

    With `verify` above 0 the file is read back and each tensor compared, bit for bit. Memory stays at a few times the
    largest tensor, which is the experts of one layer.

    Raises BadInput for a model or tokenizer that llama.cpp would run in another way, for numbers beyond fp16's range,
    and for a file that does not read back as it was written.
    """
    config = check_convertible(AutoConfig.from_pretrained(hf_folder, local_files_only=True))
    tensors = gguf_tensors(SafetensorsFolder(hf_folder), config)
    path = out / MODEL_FILE
    _write_file(path, tensors, config, hf_folder, dtype)
    parameters = sum(tensor.elements for tensor in tensors)
    say(
        f"{MODEL_FILE}: {len(tensors)} tensors, {parameters / 1e6:.1f} M parameters, {path.stat().st_size / 1e6:.1f} MB"
    )
    if verify:
        compare_file(path, tensors, dtype)
        say(f"{MODEL_FILE} read back: all {len(tensors)} tensors are equal to the model's")


def _write_file(path: Path, tensors: list[GgufTensor], config: DeepseekV3Config, hf_folder: Path, dtype: Dtype) -> None:
    """Writes `path`: facts, vocabulary of the folder, then one tensor after another."""
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[gguf.MODEL_ARCH.DEEPSEEK2])
    try:
        add_model_facts(writer, config, dtype)
        add_vocabulary(writer, hf_folder, config.vocab_size)
        for tensor in tensors:
            kind = _kind(tensor, dtype)
            size_bytes = tensor.elements * (4 if kind == gguf.GGMLQuantizationType.F32 else 2)
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), size_bytes, raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in tensors:
            writer.write_tensor_data(_encoded(tensor, dtype))
    finally:
        writer.close()


def compare_file(path: Path, tensors: list[GgufTensor], dtype: Dtype) -> None:
    """Raises BadInput unless `path` holds exactly `tensors`, bit for bit."""
    written = {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}
    expected = {tensor.name: tensor for tensor in tensors}
    different = sorted(written.keys() ^ expected.keys())
    different += [
        name
        for name in expected.keys() & written.keys()
        if written[name].tobytes() != _encoded(expected[name], dtype).tobytes()
    ]
    if different:
        raise BadInput(f"{path} reads back with another {different[0]}: check the disk, and export again")


def _kind(tensor: GgufTensor, dtype: Dtype) -> gguf.GGMLQuantizationType:
    return _KINDS["fp32" if tensor.always_float32 else dtype]


def _encoded(tensor: GgufTensor, dtype: Dtype) -> np.ndarray:
    """The tensor's values as the file has them. numpy has no bfloat16: its 16 bits go as integers."""
    values = tensor.values().contiguous()
    kind = _kind(tensor, dtype)
    if kind == gguf.GGMLQuantizationType.F32:
        return values.float().numpy()
    if kind == gguf.GGMLQuantizationType.BF16:
        return values.bfloat16().view(torch.int16).numpy()
    if (values.float().abs() > torch.finfo(torch.float16).max).any():
        raise BadInput(f"{tensor.name} has numbers beyond fp16's range: export with --dtype bf16 or fp32")
    return values.half().numpy()

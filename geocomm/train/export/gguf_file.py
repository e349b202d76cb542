"""Writes tensors and facts of a model into one GGUF file, and reads it back."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import torch
from transformers import DeepseekV3Config

from geocomm.core.bad_input import BadInput
from geocomm.train.export.gguf_metadata import add_model_facts, add_vocabulary
from geocomm.train.export.gguf_tensors import GgufTensor

_KINDS = {
    "fp32": gguf.GGMLQuantizationType.F32,
    "fp16": gguf.GGMLQuantizationType.F16,
    "bf16": gguf.GGMLQuantizationType.BF16,
}


def write_file(path: Path, tensors: list[GgufTensor], config: DeepseekV3Config, hf_folder: Path, dtype: str) -> None:
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


def compare_file(path: Path, tensors: list[GgufTensor], dtype: str) -> None:
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


def _kind(tensor: GgufTensor, dtype: str) -> gguf.GGMLQuantizationType:
    return _KINDS["fp32" if tensor.always_float32 else dtype]


def _encoded(tensor: GgufTensor, dtype: str) -> np.ndarray:
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

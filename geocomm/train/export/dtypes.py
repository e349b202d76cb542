"""The types of weights, by the names that commands and configurations have for them."""

from __future__ import annotations

import torch

from geocomm.train.export.export_record import Dtype

DTYPES: dict[Dtype, torch.dtype] = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
DTYPE_NAMES: dict[torch.dtype, Dtype] = {dtype: name for name, dtype in DTYPES.items()}

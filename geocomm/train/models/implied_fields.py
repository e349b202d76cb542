"""What a transformers configuration does not say, since the architecture implies it, and other engines ask for."""

from __future__ import annotations

from typing import Any

# transformers' DeepSeek-V3 always routes by sigmoid with a correction bias, and has no field for it. Engines that know
# several routers take softmax where `scoring_func` is missing: they load such a model, and it is quietly wrong.
_IMPLIED: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}


def implied_fields(model_type: str) -> dict[str, Any]:
    """Fields of config.json that every model of this type has."""
    return dict(_IMPLIED.get(model_type, {}))

"""Named sizes of the DeepSeek-V3 architecture, as fields of transformers' `DeepseekV3Config`.

`deepseek-v3` and `deepseek-v2-lite` carry the published sizes. V2-Lite was published on the V2 architecture (softmax
router); here its sizes are used with V3's sigmoid router. Multi-token prediction is left out of all of them.
`ModelConfig` is the part of a run's configuration that says which model is trained.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from geocomm.core.settings import Section

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 256,
        "intermediate_size": 704,
        "moe_intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "q_lora_rank": 96,
        "kv_lora_rank": 64,
        "qk_nope_head_dim": 32,
        "qk_rope_head_dim": 16,
        "v_head_dim": 32,
        "max_position_embeddings": 2048,
    },
    "small": {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "moe_intermediate_size": 512,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_key_value_heads": 12,
        "n_shared_experts": 1,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "q_lora_rank": 384,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
        "max_position_embeddings": 4096,
    },
    "deepseek-v2-lite": {
        "vocab_size": 102400,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "moe_intermediate_size": 1408,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "n_shared_experts": 2,
        "n_routed_experts": 64,
        "num_experts_per_tok": 6,
        "n_group": 1,
        "topk_group": 1,
        "routed_scaling_factor": 1.0,
        "first_k_dense_replace": 1,
        "q_lora_rank": None,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 4096,
    },
    "deepseek-v3": {
        "vocab_size": 129280,
        "hidden_size": 7168,
        "intermediate_size": 18432,
        "moe_intermediate_size": 2048,
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "n_shared_experts": 1,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "max_position_embeddings": 4096,
    },
}


class ModelConfig(Section):
    """Which model is trained."""

    preset: str = Field("tiny", description="DeepSeek-V3 architecture in a named size; see the table of presets.")
    path: Path | None = Field(
        None,
        description="Folder of a transformers checkpoint to start from; beats `preset`.",
    )
    overrides: dict[str, Any] = Field(
        default_factory=dict,
        description="Fields of the transformers configuration to replace, such as {num_hidden_layers: 2}.",
    )
    partitioned_init: bool = Field(
        False,
        description="With ZeRO-3 and a preset: build the model already partitioned, for models larger than one "
        "host's memory. The initial weights then come from other random draws.",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations in backward to save memory.")

"""From `ModelConfig` to a transformers model: configuration, identity, construction, and its loss on held-out text.
Imports torch and transformers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, DeepseekV3Config, PreTrainedConfig, PreTrainedModel

from geocomm.core.bad_input import BadInput, did_you_mean
from geocomm.core.units import count_text
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import Sequences
from geocomm.data.corpus.text_tokenizer import TextTokenizer
from geocomm.train.models.model_presets import PRESETS, ModelConfig

# Fields that say how a configuration was stored or is run, not which model it is.
_NOT_IDENTITY = frozenset(
    {"transformers_version", "_name_or_path", "dtype", "torch_dtype", "use_cache", "_attn_implementation"}
)

# What the architecture implies, and other engines ask for. transformers' DeepSeek-V3 always routes by sigmoid with a
# correction bias, and has no field for it. Engines that know several routers take softmax where `scoring_func` is
# missing: they load such a model, and it is quietly wrong.
_IMPLIED: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"scoring_func": "sigmoid", "topk_method": "noaux_tc"},
}


def model_config(config: ModelConfig, data: DataConfig, tokenizer: TextTokenizer) -> PreTrainedConfig:
    """The transformers configuration of the model, checked against the tokenizer and the sequence length."""
    hf_config = folder_config(config.path) if config.path is not None else preset_config(config.preset, tokenizer)
    for name, value in config.overrides.items():
        if not hasattr(hf_config, name):
            raise BadInput(f"model.overrides: unknown field '{name}'{did_you_mean(name, hf_config.to_dict())}")
        try:
            setattr(hf_config, name, value)
        except Exception as error:  # the strict dataclass of transformers has its own exception types
            raise BadInput(f"model.overrides.{name}: {' '.join(str(error).split())}") from None
    if config.path is None and config.overrides:  # made anew, since some fields follow from others
        try:
            hf_config = preset_config(config.preset, tokenizer, overrides=config.overrides)
        except Exception as error:
            raise BadInput(f"model.overrides: {' '.join(str(error).split())}") from None
    hf_config.use_cache = False
    vocab_size = hf_config.vocab_size
    if tokenizer.vocab_size > vocab_size:
        raise BadInput(
            f"the tokenizer has {count_text(tokenizer.vocab_size, 'token')} but the model only "
            f"{vocab_size}: use the model's own "
            f"tokenizer (data.tokenizer) or set model.overrides.vocab_size"
        )
    limit = getattr(hf_config, "max_position_embeddings", None)
    if limit is not None and data.sequence_length > limit:
        raise BadInput(
            f"data.sequence_length is {data.sequence_length} but the model takes at most {count_text(limit, 'token')}"
        )
    return hf_config


def preset_config(
    preset: str,
    tokenizer: TextTokenizer,
    field: str = "model.preset",
    overrides: Mapping[str, Any] = MappingProxyType({}),
) -> PreTrainedConfig:
    """The configuration of a named size. field: where the name was given, for the BadInput of an unknown one."""
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise BadInput(f"{field} '{preset}' is unknown{did_you_mean(preset, PRESETS)} ({known})")
    fields = dict(PRESETS[preset])
    fields.setdefault("vocab_size", -(-tokenizer.vocab_size // 8) * 8)
    fields |= {"num_mtp_layers": 0, "bos_token_id": None, "eos_token_id": tokenizer.end_of_text, "pad_token_id": None}
    return DeepseekV3Config(**(fields | dict(overrides)))


def folder_config(path: Path, field: str = "model.path") -> PreTrainedConfig:
    """The configuration in a folder. field: where the folder was given, for the BadInput of an unusable one."""
    if not (path / "config.json").is_file():
        raise BadInput(f"{field} {path} is no transformers checkpoint: it has no config.json")
    try:
        return AutoConfig.from_pretrained(path, local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise BadInput(f"{field} {path} cannot be used: {' '.join(str(error).split())}") from None


def model_identity(hf_config: PreTrainedConfig) -> dict[str, Any]:
    """The fields that make two configurations the same model; JSON values only."""
    fields = json.loads(json.dumps(hf_config.to_dict(), default=str))
    implied = implied_fields(hf_config.model_type).items()
    return {
        name: value
        for name, value in sorted(fields.items())
        if name not in _NOT_IDENTITY and (name, value) not in implied
    }


def identity_differences(expected: dict[str, Any], got: dict[str, Any], limit: int = 3) -> str:
    """`"hidden_size is 256, here 320; …"` for up to `limit` differing fields; empty if there are none."""
    names = [n for n in sorted(expected.keys() | got.keys()) if expected.get(n) != got.get(n)]
    text = "; ".join(f"{n} is {expected.get(n)!r}, here {got.get(n)!r}" for n in names[:limit])
    return text + ("; …" if len(names) > limit else "")


def empty_model(hf_config: PreTrainedConfig) -> PreTrainedModel:
    """The model without data: names, shapes, modules."""
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(hf_config)


def parameter_count(hf_config: PreTrainedConfig) -> int:
    """Parameters of the model, counted without allocating them."""
    return sum(parameter.numel() for parameter in empty_model(hf_config).parameters())


def build_model(config: ModelConfig, hf_config: PreTrainedConfig, seed: int) -> PreTrainedModel:
    """The model in fp32 on the CPU, in training mode: weights of `config.path`, else drawn from `seed`."""
    torch.manual_seed(seed)
    if config.path is None:
        model = AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32)
    else:
        try:
            model = AutoModelForCausalLM.from_pretrained(
                config.path, config=hf_config, local_files_only=True, dtype=torch.float32
            )
        except (OSError, ValueError, RuntimeError) as error:
            raise BadInput(f"model.path {config.path} cannot be loaded: {' '.join(str(error).split())}") from None
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def build_partitioned_model(
    config: ModelConfig, hf_config: PreTrainedConfig, seed: int, deepspeed_config: dict[str, Any]
) -> PreTrainedModel:
    """Build a model from a preset, with every parameter partitioned over the ranks as soon as it exists.

    Collective: all ranks call it after the process group exists.
    """
    import deepspeed

    torch.manual_seed(seed)
    with deepspeed.zero.Init(config_dict_or_path=deepspeed_config, dtype=torch.float32):
        model = AutoModelForCausalLM.from_config(hf_config, dtype=torch.float32)
    # transformers' own initialization saw empty placeholders; it runs again on the gathered parameters of each module.
    for module in model.modules():
        parameters = list(module.parameters(recurse=False))
        with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
            for parameter in parameters:
                parameter._is_hf_initialized = False
            module._is_hf_initialized = False
            model._init_weights(module)
    if config.gradient_checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def implied_fields(model_type: str) -> dict[str, Any]:
    """Fields of config.json that every model of this type has."""
    return dict(_IMPLIED.get(model_type, {}))


def held_out_sums(
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    data: Sequences,
    rank: int,
    ranks: int,
    limit: int,
    batch_size: int,
    device: torch.device | None,
) -> torch.Tensor:
    """Sum of the losses and number of this rank's share of the first `limit` held-out sequences, in float64.

    loss_of: mean loss of a batch of token ids. Every rank calls it as often, as ZeRO-3 requires; what it then computes
    beyond its share counts for nothing.
    """
    total = min(limit, data.held_out_count)
    share = data.held_out_share(rank, ranks, limit)
    rounds = math.ceil(math.ceil(total / ranks) / batch_size)
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    with torch.no_grad():
        for index in range(rounds):
            numbers = share[index * batch_size : (index + 1) * batch_size]
            rows = torch.from_numpy(data.rows(numbers or [int(data.held_out(1)[0])])).to(device)
            loss = loss_of(rows)
            sums += torch.tensor([len(numbers) * float(loss), len(numbers)], dtype=torch.float64).to(sums)
    return sums

"""A small model in a Hugging Face folder, with the tokenizer of bytes: what engines load."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.text_tokenizer import load_tokenizer
from geocomm.train.models.model_factory import build_model, model_config
from geocomm.train.models.model_presets import ModelConfig

_PRINTABLE = slice(ord(" "), ord("~") + 1)


def write_tiny_model(folder: Path) -> None:
    """Of one layer, with random weights. It answers in printable ASCII, so that texts can be compared."""
    settings = ModelConfig(preset="tiny", overrides={"num_hidden_layers": 1})
    config = model_config(settings, DataConfig(), load_tokenizer("byte"))
    config.use_cache = True
    model = build_model(settings, config, seed=1)
    with torch.no_grad():
        rows = model.get_output_embeddings().weight
        kept = rows[_PRINTABLE].clone()
        rows.zero_()
        rows[_PRINTABLE] = kept
    model.save_pretrained(folder)
    letters = bytes_to_unicode()
    tokenizer = Tokenizer(models.BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>").save_pretrained(folder)

"""Tokenizers of the driver: bytes, or a local Hugging Face tokenizer."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Protocol

from geocomm.core.bad_input import BadInput


class TextTokenizer(Protocol):
    """Text to token ids. `identity` is equal for tokenizers that encode alike."""

    vocab_size: int
    end_of_text: int
    identity: str

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens."""
        ...


class ByteTokenizer:
    """One token per UTF-8 byte, and 256 for the end of a text."""

    vocab_size = 257
    end_of_text = 256
    identity = "byte"

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of `text`."""
        return list(text.encode("utf-8"))


class LocalTokenizer:
    """A tokenizer that transformers loads from a folder, never from the network."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        if not folder.is_dir():
            raise BadInput(f"data.tokenizer {folder} is neither 'byte' nor a folder")
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"data.tokenizer {folder} cannot be loaded: {' '.join(str(error).split())}") from None
        if self._tokenizer.eos_token_id is None:
            raise BadInput(f"data.tokenizer {folder} has no end-of-text token (eos_token), which separates texts")
        self._tokenizer.model_max_length = 10**9
        self.vocab_size = len(self._tokenizer)
        self.end_of_text = int(self._tokenizer.eos_token_id)
        vocabulary = sorted(self._tokenizer.get_vocab().items())
        sample = self._tokenizer("Geo-distributed\n  training, 1024 ranks. Grüße!", add_special_tokens=False)[
            "input_ids"
        ]
        self.identity = hashlib.sha256(repr((vocabulary, sample, self.end_of_text)).encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without special tokens."""
        return self._tokenizer(text, add_special_tokens=False)["input_ids"]


def load_tokenizer(name: str) -> TextTokenizer:
    """`byte`, or the tokenizer in the folder `name`."""
    return ByteTokenizer() if name == "byte" else LocalTokenizer(Path(name).expanduser())

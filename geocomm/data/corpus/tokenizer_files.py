"""The tokenizer of a run as the files that Hugging Face libraries load. Imports transformers."""

from __future__ import annotations

from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from geocomm.core.bad_input import BadInput
from geocomm.data.corpus.text_tokenizer import ByteTokenizer

END_OF_TEXT = "<|endoftext|>"


def byte_symbols() -> list[str]:
    """The printable character by which the library `tokenizers` shows each of the 256 bytes."""
    # Printable bytes of Latin-1 stand for themselves, and the others have the characters from 256 on, in order.
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    themselves = {ord(symbol): symbol for symbol in alphabet if ord(symbol) < 256}
    others = iter([symbol for symbol in alphabet if ord(symbol) >= 256])
    return [themselves.get(byte) or next(others) for byte in range(256)]


def byte_tokenizer() -> PreTrainedTokenizerFast:
    """`ByteTokenizer` for Hugging Face: equal ids for every text. Ids of bytes that are no UTF-8 decode to U+FFFD."""
    tokenizer = Tokenizer(models.BPE(vocab={symbol: byte for byte, symbol in enumerate(byte_symbols())}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, special=True, normalized=False)])
    if tokenizer.token_to_id(END_OF_TEXT) != ByteTokenizer.end_of_text:
        raise RuntimeError(f"{END_OF_TEXT} has id {tokenizer.token_to_id(END_OF_TEXT)}")
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        # In a text these letters are bytes like any others, as they were in training.
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


def write_tokenizer(name: str, folder: Path, longest: int | None = None) -> None:
    """Write the tokenizer that `data.tokenizer` = `name` stands for into `folder`, which exists.

    longest: tokens that the model takes. Raises BadInput where the tokenizer cannot be loaded; OSError.
    """
    if name == ByteTokenizer.identity:
        tokenizer = byte_tokenizer()
    else:
        source = Path(name).expanduser()
        try:
            tokenizer = AutoTokenizer.from_pretrained(source, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise BadInput(f"the tokenizer {source} cannot be loaded: {' '.join(str(error).split())}") from None
    if longest is not None:
        tokenizer.model_max_length = longest
    tokenizer.save_pretrained(folder)

"""The byte tokenizer as files of Hugging Face: the ids and the bytes are those of `ByteTokenizer`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from geocomm.core.bad_input import BadInput
from geocomm.data.corpus.text_tokenizer import ByteTokenizer, LocalTokenizer
from geocomm.train.export.hf_folder import END_OF_TEXT, byte_symbols, write_tokenizer

MANY = 10**6


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("byte")
    write_tokenizer("byte", made, longest=2048)
    return made


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    loaded = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    assert isinstance(loaded, PreTrainedTokenizerFast)
    return loaded


def ids_of(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


def random_text(seed: int, letters: int) -> str:
    """Of characters of all planes, but for surrogates, which no UTF-8 text has."""
    draw = random.Random(seed)
    planes = [(0, 0x80), (0x80, 0x800), (0x800, 0xD800), (0xE000, 0x10000), (0x10000, 0x110000)]
    return "".join(chr(draw.randrange(*draw.choice(planes))) for _ in range(letters))


def test_every_byte_has_its_own_number_as_id(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_ids_to_tokens(list(range(257))) == [*byte_symbols(), END_OF_TEXT]
    assert (len(tokenizer), tokenizer.eos_token_id, tokenizer.model_max_length) == (257, 256, 2048)


def test_text_of_any_characters_encodes_to_its_bytes_and_comes_back(tokenizer: PreTrainedTokenizerFast) -> None:
    for seed, letters in ((0, 0), (1, 1), (2, 1000), (3, 200_000)):
        text = random_text(seed, letters)
        ids = ids_of(tokenizer, text)
        assert ids == ByteTokenizer().encode(text)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    "text", [" leading", "two  spaces , here", f"a{END_OF_TEXT}b", "\x00\n\r\t\x7f", "don't 've .\u200b"]
)
def test_text_that_tokenizers_like_to_change_stays(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert ids_of(tokenizer, text) == ByteTokenizer().encode(text)
    assert tokenizer.decode(ids_of(tokenizer, text)) == text


def test_random_bytes_come_back_from_their_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    """Bytes that are no UTF-8 are no text that could be encoded; a model may make them, and their ids tell them."""
    raw = random.Random(4).randbytes(MANY)
    byte_of = {symbol: byte for byte, symbol in enumerate(byte_symbols())}
    assert bytes(byte_of[symbol] for symbol in tokenizer.convert_ids_to_tokens(list(raw))) == raw
    assert tokenizer.decode(list(raw)) == raw.decode("utf-8", errors="replace")


def test_end_of_text_is_dropped_from_a_decoded_text_on_request(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.decode([104, 105, 256]) == f"hi{END_OF_TEXT}"
    assert tokenizer.decode([104, 105, 256], skip_special_tokens=True) == "hi"


def test_a_run_that_takes_the_folder_as_its_tokenizer_encodes_alike(folder: Path) -> None:
    local, own = LocalTokenizer(folder), ByteTokenizer()
    assert (local.vocab_size, local.end_of_text) == (own.vocab_size, own.end_of_text)
    for seed in range(5, 8):
        text = random_text(seed, 3000) + END_OF_TEXT
        assert local.encode(text) == own.encode(text)


def test_a_written_tokenizer_folder_is_written_again_alike(folder: Path, tmp_path: Path) -> None:
    write_tokenizer(str(folder), tmp_path)
    text = random_text(9, 3000)
    assert LocalTokenizer(tmp_path).encode(text) == LocalTokenizer(folder).encode(text)
    assert LocalTokenizer(tmp_path).identity == LocalTokenizer(folder).identity


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be loaded"):
        write_tokenizer(str(tmp_path), tmp_path)

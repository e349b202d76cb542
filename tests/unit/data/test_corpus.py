"""Texts and their tokens on disk."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from geocomm.core.bad_input import BadInput
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.text_tokenizer import ByteTokenizer, load_tokenizer
from geocomm.data.corpus.token_store import load_tokens

_END = ByteTokenizer.end_of_text


def _config(tmp_path: Path, source: str, *paths: Path, **more: object) -> DataConfig:
    return DataConfig.model_validate({"source": source, "paths": paths, "cache_dir": tmp_path / "cache", **more})


def _tokens(config: DataConfig) -> list[int]:
    return load_tokens(config, ByteTokenizer()).tokens.tolist()


def test_text_files_become_their_bytes_each_ended(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "b.txt").write_bytes("zwei\r\nGrüße".encode())
    (tmp_path / "texts" / "a.txt").write_text("one")
    (tmp_path / "texts" / "ignored.md").write_text("no")
    assert _tokens(_config(tmp_path, "text", tmp_path / "texts")) == [
        *b"one",
        _END,
        *"zwei\r\nGrüße".encode(),
        _END,
    ]


def test_long_text_file_read_in_pieces_is_whole(tmp_path: Path) -> None:
    text = "".join(f"line {n}\n" for n in range(300_000))
    path = tmp_path / "long.txt"
    path.write_text(text)
    assert bytes(_tokens(_config(tmp_path, "text", path))[:-1]).decode() == text


def test_jsonl_takes_the_named_field(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text("\n".join(json.dumps({"body": text, "n": 1}) for text in ("one", "", "two")) + "\n\n")
    tokens = _tokens(_config(tmp_path, "jsonl", path, text_field="body"))
    assert tokens == [*b"one", _END, *b"two", _END]


@pytest.mark.parametrize(
    ("lines", "mentions"),
    [('{"text": "a"}\n{"txt": "b"}', ":2:"), ("{", ":1:"), ('{"text": 5}', ":1:"), ("[1]", ":1:")],
)
def test_jsonl_wrong_line_is_refused_with_its_number(tmp_path: Path, lines: str, mentions: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(lines)
    with pytest.raises(BadInput, match=mentions):
        _tokens(_config(tmp_path, "jsonl", path))
    assert not list((tmp_path / "cache").glob("*.tokens"))


def test_missing_empty_and_binary_paths_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "nothing.txt").write_text("")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    for name in ("absent.txt", "empty", "nothing.txt", "binary.txt"):
        with pytest.raises(BadInput):
            _tokens(_config(tmp_path, "text", tmp_path / name))


def test_builtin_corpus_is_large_enough_for_the_default_run(tmp_path: Path) -> None:
    array = load_tokens(DataConfig(cache_dir=tmp_path), ByteTokenizer())
    assert len(array.tokens) > 300_000
    assert array.tokens.max() == _END


def test_tokens_change_with_the_file_and_are_reused_without_change(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("first")
    config = _config(tmp_path, "text", path)
    first = load_tokens(config, ByteTokenizer())
    cached = sorted((tmp_path / "cache").glob("*.tokens"))
    assert load_tokens(config, ByteTokenizer()).sha256 == first.sha256
    assert sorted((tmp_path / "cache").glob("*.tokens")) == cached
    path.write_text("second")
    assert load_tokens(config, ByteTokenizer()).sha256 != first.sha256


def test_tokenizing_without_disk_space_is_refused_and_leaves_no_array(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from geocomm.data.corpus.token_store import load_tokens;"
        "from geocomm.data.corpus.text_tokenizer import ByteTokenizer;"
        "from geocomm.data.corpus.data_settings import DataConfig; from geocomm.core.bad_input import BadInput\n"
        "try: load_tokens(DataConfig(cache_dir=Path(sys.argv[1])), ByteTokenizer())\n"
        "except BadInput: sys.exit(2)"
    )
    limited = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
        check=False,
    )
    assert limited.returncode == 2
    assert not list(tmp_path.glob("*.tokens"))
    assert not list(tmp_path.glob("*.partial"))
    assert len(load_tokens(DataConfig(cache_dir=tmp_path), ByteTokenizer()).tokens) > 100_000


def test_processes_that_tokenize_at_once_read_the_same_array(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path;"
        "from geocomm.data.corpus.token_store import load_tokens;"
        "from geocomm.data.corpus.text_tokenizer import ByteTokenizer;"
        "from geocomm.data.corpus.data_settings import DataConfig;"
        "print(load_tokens(DataConfig(cache_dir=Path(sys.argv[1])), ByteTokenizer()).sha256)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    outputs = {child.communicate()[0] for child in children}
    assert outputs == {load_tokens(DataConfig(cache_dir=tmp_path), ByteTokenizer()).sha256 + "\n"}


def test_truncated_cache_is_refused(tmp_path: Path) -> None:
    config = DataConfig(cache_dir=tmp_path)
    load_tokens(config, ByteTokenizer())
    path = next(tmp_path.glob("*.tokens"))
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(BadInput):
        load_tokens(config, ByteTokenizer())


def test_local_tokenizer_encodes_and_has_an_identity(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<end>": 0, "one": 1, "two": 2, "?": 3}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>").save_pretrained(tmp_path / "tok")
    tokenizer = load_tokenizer(str(tmp_path / "tok"))
    (tmp_path / "a.txt").write_text("two one three")
    array = load_tokens(_config(tmp_path, "text", tmp_path / "a.txt"), tokenizer)
    np.testing.assert_array_equal(array.tokens, [2, 1, 3, 0])
    assert tokenizer.identity != ByteTokenizer.identity
    with pytest.raises(BadInput):
        load_tokenizer(str(tmp_path / "absent"))


def test_saved_dataset_is_read_or_its_package_is_asked_for(tmp_path: Path) -> None:
    try:
        import datasets
    except ImportError:
        (tmp_path / "set").mkdir()
        (tmp_path / "set" / "state.json").write_text("{}")
        with pytest.raises(BadInput, match="pip install datasets"):
            _tokens(_config(tmp_path, "dataset", tmp_path / "set"))
        return
    # A given fingerprint spares the hashing of pyarrow's internals, which some versions of dill cannot do.
    table = datasets.table.InMemoryTable.from_pydict({"text": ["one", "two"]})
    saved = datasets.DatasetDict({"train": datasets.Dataset(table, fingerprint="0123456789abcdef")})
    saved.save_to_disk(str(tmp_path / "set"))
    config = _config(tmp_path, "dataset", tmp_path / "set")
    assert _tokens(config) == [*b"one", _END, *b"two", _END]
    for wrong in ({"split": "trian"}, {"text_field": "txt"}):
        with pytest.raises(BadInput, match="did you mean"):
            _tokens(_config(tmp_path, "dataset", tmp_path / "set", **wrong))


def test_killed_tokenizing_is_repeated(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path;"
        "from geocomm.data.corpus.token_store import load_tokens;"
        "from geocomm.data.corpus.text_tokenizer import ByteTokenizer;"
        "from geocomm.data.corpus.data_settings import DataConfig;"
        "os.fsync = lambda descriptor: os.kill(os.getpid(), signal.SIGKILL);"
        "load_tokens(DataConfig(cache_dir=Path(sys.argv[1])), ByteTokenizer())"
    )
    killed = subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("*.partial"))
    assert len(load_tokens(DataConfig(cache_dir=tmp_path), ByteTokenizer()).tokens) > 300_000

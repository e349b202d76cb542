"""What llama.cpp computes from a GGUF file: its own server, in a process of its own.

Takes the package xllamacpp, a build of llama.cpp by a third party. No part of geocomm needs it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch

PACKAGE = "xllamacpp"
CHECKED = "2026.10.11549"
TIME_LIMIT_S = 120
ANSWERS = Path(__file__).with_name("llama_cpp_answers.py")
PRINTABLE = range(32, 127)
"""What continuations are made of. The server leaves out the probabilities at bytes that are no text by themselves."""


@dataclass(frozen=True)
class LlamaCppAnswers:
    """Of each prompt the greedy continuation out of `PRINTABLE`, and the log-probabilities there `[position, token]`.

    Of each text its tokens, and the text that they make.
    """

    continuations: list[list[int]]
    log_probabilities: list[torch.Tensor]
    tokens: list[list[int]]
    texts: list[str]


def skip_without_llama_cpp() -> None:
    """Skips the test unless the version of the package that was tried is installed."""
    try:
        found = version(PACKAGE)
    except PackageNotFoundError:
        found = "none"
    if found != CHECKED:
        pytest.skip(f"needs llama.cpp: pip install --no-deps {PACKAGE}=={CHECKED} (found: {found})")


def ask_llama_cpp(
    model: Path, vocab_size: int, prompts: list[list[int]], new_tokens: int, texts: list[str]
) -> LlamaCppAnswers:
    """Loads `model` and asks it all; writes beside it. The key-value cache is in float32, without flash attention."""
    scratch = model.parent
    forbidden = sorted(set(range(vocab_size)) - set(PRINTABLE))
    question = {
        "vocab_size": vocab_size,
        "forbidden": forbidden,
        "prompts": prompts,
        "new_tokens": new_tokens,
        "texts": texts,
    }
    (scratch / "question.json").write_text(json.dumps(question))
    command = [sys.executable, str(ANSWERS), str(model)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT_S)
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    answer = json.loads((scratch / "answer.json").read_text())
    return LlamaCppAnswers(
        answer["continuations"], [torch.tensor(rows) for rows in answer["rows"]], answer["tokens"], answer["texts"]
    )

"""Asks llama.cpp's server what tests/support/llama_cpp.py wants to know. A process of its own, without torch."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path
from typing import Any

import xllamacpp

TIME_LIMIT_S = 60


def answer_questions(model: Path) -> None:
    """Reads `question.json` beside the model, writes `answer.json`."""
    question = json.loads((model.parent / "question.json").read_text())
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.n_ctx, params.n_parallel, params.port, params.warmup, params.fit_params = 512, 1, 0, False, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # two would spin while they wait for each other
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(params)
    address = server.listening_address

    def ask(path: str, **body: Any) -> Any:
        request = urllib.request.Request(
            f"{address}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIME_LIMIT_S) as answer:
            return json.load(answer)

    continuations, rows = [], []
    forbidden = [[token, False] for token in question["forbidden"]]
    for prompt in question["prompts"]:
        reply = ask(
            "completion",
            prompt=prompt,
            n_predict=question["new_tokens"],
            temperature=0.0,
            logit_bias=forbidden,
            n_probs=question["vocab_size"],
            return_tokens=True,
            cache_prompt=False,
        )
        continuations.append(reply["tokens"])
        by_token = [{p["id"]: p["logprob"] for p in one["top_logprobs"]} for one in reply["completion_probabilities"]]
        rows.append([[found[token] for token in sorted(found)] for found in by_token])
    tokens = [
        ask("tokenize", content=text, add_special=True, parse_special=True)["tokens"] for text in question["texts"]
    ]
    texts = [ask("detokenize", tokens=ids)["content"] for ids in tokens]
    answer = {"continuations": continuations, "rows": rows, "tokens": tokens, "texts": texts}
    (model.parent / "answer.json").write_text(json.dumps(answer))


if __name__ == "__main__":
    answer_questions(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)  # the server's threads do not end by themselves

"""llama.cpp's own server, from the package xllamacpp, by some options of its program `llama-server`."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path

import xllamacpp


def serve() -> None:
    """Until a signal comes."""
    parser = argparse.ArgumentParser()
    for name in ("--model", "--alias", "--host", "--api-key-file"):
        parser.add_argument(name)
    parser.add_argument("--port", type=int)
    asked = parser.parse_args()
    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = asked.model, [asked.host], asked.port
    params.model_alias = {asked.alias}
    params.n_ctx, params.n_parallel, params.warmup, params.fit_params = 512, 1, False, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    if asked.api_key_file:
        params.api_keys = Path(asked.api_key_file).read_text().split()
    _server = xllamacpp.Server(params)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    serve()

"""The engines that serve models: which fits a folder, what it needs, and how its own server is started."""

from __future__ import annotations

import enum
import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from geocomm.core.bad_input import BadInput
from geocomm.train.serve.model_folder import Format, ModelFolder

_LLAMA_SERVER = "llama-server"
_FIND = "import importlib.util, sys; print(*[name for name in sys.argv[1:] if importlib.util.find_spec(name)])"
_HAS_GPU = "import torch; print(torch.cuda.is_available())"
_PROBE_SECONDS = 120
_REVISION = "0" * 40


class Engine(enum.StrEnum):
    """What computes the answers; auto: the first that fits and is there."""

    AUTO = "auto"
    TRANSFORMERS = "transformers"
    VLLM = "vllm"
    LLAMA_CPP = "llama.cpp"


FORMAT_OF = {Engine.TRANSFORMERS: Format.HF, Engine.VLLM: Format.HF, Engine.LLAMA_CPP: Format.GGUF}
_NEEDS = {
    Engine.TRANSFORMERS: (
        ("transformers", "fastapi", "uvicorn", "openai", "accelerate"),
        "transformers[serving]>=5.23",
    ),
    Engine.VLLM: (("vllm",), "vllm"),
    Engine.LLAMA_CPP: (("llama_cpp", "fastapi", "uvicorn"), "llama-cpp-python[server]"),
}
"""Modules that an engine imports, and what pip installs them by."""


@dataclass(frozen=True)
class Launch:
    """How an engine's server is started."""

    command: Sequence[str]
    health: str
    """A path that answers 200 once the model is loaded."""
    variables: dict[str, str] = field(default_factory=dict[str, str])


def choose_engine(asked: Engine, folder: ModelFolder, python: str) -> Engine:
    """The engine that serves `folder`, and is there for `python`. Raises BadInput, which says what to install."""
    if folder.format is Format.ONNX:
        raise BadInput(
            f"{folder.path} is an ONNX folder, and no engine has a server for it (docs/how-to/serve-a-model.md): "
            "serve the folder of geocomm export --format hf, or run model.onnx in onnxruntime"
        )
    if asked is Engine.AUTO:
        asked = Engine.LLAMA_CPP if folder.format is Format.GGUF else _for_hf(python)
    if FORMAT_OF[asked] is not folder.format:
        raise BadInput(
            f"{asked} serves {FORMAT_OF[asked]} folders, and {folder.path} is {folder.format}: drop --engine, or "
            f"export with --format {FORMAT_OF[asked]}"
        )
    if asked is Engine.LLAMA_CPP and shutil.which(_LLAMA_SERVER):
        return asked
    needed, package = _NEEDS[asked]
    if lacking := set(needed) - _modules(python, needed):
        also = f", or put {_LLAMA_SERVER} on the PATH" if asked is Engine.LLAMA_CPP else ""
        raise BadInput(f"{asked} needs {', '.join(sorted(lacking))}: {python} -m pip install '{package}'{also}")
    return asked


def launch(
    engine: Engine, folder: ModelFolder, name: str, python: str, address: tuple[str, int], workplace: Path
) -> Launch:
    """How `engine` serves `folder` as `name` on `address`. workplace: an empty folder that lives as long as it does."""
    host, port = address
    listen = ["--host", host, "--port", str(port)]
    if engine is Engine.TRANSFORMERS:
        _lay_out_cache(folder, name, workplace)
        variables = {"HF_HUB_CACHE": str(workplace), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
        return Launch([python, "-m", "transformers.cli.transformers", "serve", name, *listen], "/health", variables)
    if engine is Engine.VLLM:
        command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(folder.path), "--served-model-name", name]
        return Launch([*command, *listen], "/health", {"HF_HUB_OFFLINE": "1"})
    model = str(folder.gguf_file)
    if binary := shutil.which(_LLAMA_SERVER):
        return Launch([binary, "--model", model, "--alias", name, *listen], "/health")
    command = [python, "-m", "llama_cpp.server", "--model", model, "--model_alias", name, *listen]
    return Launch(command, "/v1/models")


def versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Versions of those of `packages` that are installed for `python`."""
    program = (
        "import importlib.metadata as m, json, sys; there = {d.metadata['Name'].lower(): d.version for d in "
        "m.distributions()}; print(json.dumps({n: there[n] for n in sys.argv[1:] if n in there}))"
    )
    return json.loads(_run(python, program, *packages))


def _for_hf(python: str) -> Engine:
    """vLLM where it and a GPU are there, else transformers."""
    if _modules(python, ("vllm",)) and _run(python, _HAS_GPU).strip() == "True":
        return Engine.VLLM
    return Engine.TRANSFORMERS


def _modules(python: str, names: Sequence[str]) -> set[str]:
    """The modules of `names` that `python` can import."""
    return set(_run(python, _FIND, *names).split())


def _run(python: str, program: str, *arguments: str) -> str:
    """What a small program prints. Raises BadInput where `python` is none."""
    try:
        return subprocess.run(
            [python, "-c", program, *arguments], check=True, capture_output=True, text=True, timeout=_PROBE_SECONDS
        ).stdout
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no output"])[-1]
        raise BadInput(f"--python {python} failed: {last}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadInput(f"--python {python} cannot be run: {error}") from None


def _lay_out_cache(folder: ModelFolder, name: str, cache: Path) -> None:
    """A cache of the hub in which `name` is a model whose files are those of `folder`.

    transformers serve knows a model by its path or by its name at the hub. This gives it a name: the path may have an
    "@", which it would cut at, and /v1/models lists this model, and no other of the user's cache.
    """
    model = cache / f"models--{name}"
    snapshot = model / "snapshots" / _REVISION
    snapshot.mkdir(parents=True)
    for file in folder.path.iterdir():
        (snapshot / file.name).symlink_to(file)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(_REVISION, encoding="utf-8")

"""The engines that serve models: what a folder holds, which engine fits it and what that needs, and how its own server
is started."""

from __future__ import annotations

import enum
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from geocomm.core.bad_input import BadInput
from geocomm.core.installation import install_command
from geocomm.core.records import Record, line_of
from geocomm.train.runs.run_folder import MANIFEST, RunFolder

_RECORD = "export.json"
_WEIGHTS = (".safetensors", ".gguf", ".onnx", ".data")
_LONGEST_NAME = 96
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?")


class Format(enum.StrEnum):
    """What a folder has: `geocomm export` wrote it, or llama.cpp's converter (GGUF)."""

    HF = "hf"
    ONNX = "onnx"
    GGUF = "gguf"


@dataclass(frozen=True)
class ModelFolder:
    """A folder that holds one model."""

    path: Path
    """Absolute."""
    format: Format

    @property
    def gguf_file(self) -> Path:
        """The file of a GGUF folder. BadInput: it has none, or several."""
        files = sorted(self.path.glob("*.gguf"))
        if len(files) != 1:
            raise BadInput(f"{self.path} holds {len(files)} *.gguf files; one is served: move the others away")
        return files[0]


def default_name(folder: Path) -> str:
    """The folder's own name, also where it is a link to another one, less what a model's name may not have."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", Path(os.path.abspath(folder)).name)
    name = re.sub(r"([-.])[-.]+", r"\1", name)[:_LONGEST_NAME].strip("-.")
    return name or "model"


def open_folder(path: Path) -> ModelFolder:
    """What `path` holds: by its export.json, else by its files. Raises BadInput."""
    if not path.is_dir():
        raise BadInput(f"{path} is {'no folder' if path.exists() else 'not there'}; name a folder of geocomm export")
    path = path.resolve()
    record = path / _RECORD
    if record.is_file():
        return ModelFolder(path, _recorded_format(record))
    if RunFolder(path).has_run() or (path / MANIFEST).exists():
        raise BadInput(f"{path} is a run or a checkpoint; first: geocomm export {path} FOLDER --format hf")
    if any(path.glob("*.gguf")):
        return ModelFolder(path, Format.GGUF)
    if any(path.glob("*.onnx")):
        return ModelFolder(path, Format.ONNX)
    if (path / "config.json").is_file() and any(path.glob("*.safetensors")):
        return ModelFolder(path, Format.HF)
    raise BadInput(f"{path} holds no model: neither config.json with *.safetensors nor a *.gguf file")


def check_name(name: str) -> str:
    """`name`, if the engines take it as the name of a model. Raises BadInput."""
    if len(name) > _LONGEST_NAME or not _NAME.fullmatch(name) or "--" in name or ".." in name:
        raise BadInput(
            f"--name {name}: expected 1 to {_LONGEST_NAME} letters, digits, '.', '_' and '-', the last two neither "
            "doubled nor at an end"
        )
    return name


def _recorded_format(record: Path) -> Format:
    """The format that export.json says; BadInput where its weights are not those that it lists, as in half a copy.

    The other files may be changed: a user adds a chat template, or writes a better README.
    """
    try:
        found: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
        kind = Format(found["format"])
        files = {name: int(file["bytes"]) for name, file in found["files"].items() if name.endswith(_WEIGHTS)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise BadInput(f"{record} is not a record of geocomm export; export the model again") from None
    for name, size in files.items():
        file = record.parent / name
        if not file.is_file() or file.stat().st_size != size:
            raise BadInput(f"{file} is not as it was exported ({size} bytes); copy or export the folder again")
    return kind


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
}
"""Modules that an engine imports, and what pip installs them by."""
HEALTH = "/health"
"""A path of each engine that answers 200 once the model is loaded, without a key."""


@dataclass(frozen=True)
class ApiKey:
    """What clients must show."""

    text: str
    file: Path
    """That has it, absolute."""


class FollowSettings(Record):
    """A stream of weights that a server follows. Paths are absolute: it works in another folder."""

    sources: tuple[str, ...]
    keys: str
    """A folder; empty: versions need not be signed."""
    publisher: str
    """The site whose versions count; empty: any of the job."""


@dataclass(frozen=True)
class Launch:
    """How an engine's server is started."""

    command: Sequence[str]
    variables: dict[str, str] = field(default_factory=dict[str, str])


def choose_engine(asked: Engine, folder: ModelFolder, python: str, *, asks_key: bool, follows: bool = False) -> Engine:
    """The engine that serves `folder`, and is there for `python`. asks_key: of its clients. follows: a stream of
    weights. Raises BadInput, which says what to install."""
    if folder.format is Format.ONNX:
        raise BadInput(
            f"{folder.path} is an ONNX folder, and no engine has a server for it (docs/how-to/serve-a-model.md): "
            "serve the folder of geocomm export --format hf, or run model.onnx in onnxruntime"
        )
    if follows and asked not in (Engine.AUTO, Engine.TRANSFORMERS):
        raise BadInput(f"--follow is for {Engine.TRANSFORMERS}; for {asked}: geocomm subscribe, with --then")
    if asked is Engine.AUTO and follows:
        asked = Engine.TRANSFORMERS
    if asked is Engine.AUTO:
        asked = Engine.LLAMA_CPP if folder.format is Format.GGUF else _for_hf(python)
    if FORMAT_OF[asked] is not folder.format:
        raise BadInput(
            f"{asked} serves {FORMAT_OF[asked]} folders, and {folder.path} is {folder.format}: drop --engine, or "
            f"export with --format {FORMAT_OF[asked]}"
        )
    if asked is Engine.LLAMA_CPP:
        if not shutil.which(_LLAMA_SERVER):
            raise BadInput(f"{asked} needs {_LLAMA_SERVER} on the PATH: github.com/ggml-org/llama.cpp has builds of it")
        return asked
    needed, package = _NEEDS[asked]
    needed = (*needed, "geocomm") if follows else needed
    if lacking := set(needed) - _modules(python, needed):
        is_extra = asked is Engine.TRANSFORMERS and python == sys.executable
        how = install_command("serve") if is_extra else f"{python} -m pip install '{package}'"
        raise BadInput(f"{asked} needs {', '.join(sorted(lacking))}: {how}")
    if asks_key and asked is Engine.TRANSFORMERS:
        raise BadInput(
            f"{asked} asks for no key: serve with --engine {Engine.VLLM}, or a GGUF file with {Engine.LLAMA_CPP}; or "
            "leave out --host and --api-key-file, and put a reverse proxy before it that asks for one"
        )
    return asked


def launch(
    engine: Engine,
    folder: ModelFolder,
    name: str,
    python: str,
    address: tuple[str, int],
    workplace: Path,
    key: ApiKey | None = None,
    follow: FollowSettings | None = None,
) -> Launch:
    """How `engine` serves `folder` as `name` on `address`. workplace: an empty folder that lives as long as it does."""
    host, port = address
    listen = ["--host", host, "--port", str(port)]
    if engine is Engine.TRANSFORMERS:
        _lay_out_cache(folder, name, workplace)
        variables = {"HF_HUB_CACHE": str(workplace), "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_UPDATE_CHECK": "1"}
        program = ["transformers.cli.transformers"]
        if follow is not None:
            program = ["geocomm.train.serve.followed_server", line_of(follow)]
        return Launch([python, "-m", *program, "serve", name, *listen], variables)
    if engine is Engine.VLLM:
        command = [python, "-m", "vllm.entrypoints.cli.main", "serve", str(folder.path), "--served-model-name", name]
        # Not --api-key: every user of this machine sees command lines.
        return Launch([*command, *listen], {"HF_HUB_OFFLINE": "1"} | ({"VLLM_API_KEY": key.text} if key else {}))
    keys = ["--api-key-file", str(key.file)] if key else []
    return Launch([_LLAMA_SERVER, "--model", str(folder.gguf_file), "--alias", name, *listen, *keys])


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

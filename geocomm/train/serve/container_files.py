"""A folder from which podman or docker builds an image that serves a model with `geocomm serve`."""

from __future__ import annotations

import shlex
import shutil
import sys
from pathlib import Path

from geocomm.core.bad_input import BadInput
from geocomm.core.file_systems import new_folder
from geocomm.train.serve.engines import Engine, choose_engine, versions
from geocomm.train.serve.model_folder import ModelFolder

_PACKAGES = {
    Engine.TRANSFORMERS: (
        *("torch", "transformers", "tokenizers", "safetensors", "accelerate", "huggingface-hub", "httpx2"),
        *("fastapi", "starlette", "uvicorn", "openai", "pydantic", "typer", "rich"),
    ),
    Engine.VLLM: ("vllm", "torch", "transformers", "fastapi", "starlette", "uvicorn", "httpx2", "typer", "rich"),
}
_PORT = 8000
_KEY = "/run/secrets/api-key"


def write_container(out: Path, folder: ModelFolder, name: str, asked: Engine, python: str) -> str:
    """Write `out`; how to build and run it, for people. Versions are those installed for `python`. Raises BadInput."""
    if out.exists():
        raise BadInput(f"--container {out} is there already; name a new folder")
    engine = choose_engine(asked, folder, python)
    if engine not in _PACKAGES:
        raise BadInput(
            f"--container knows {' and '.join(_PACKAGES)}; {engine} has images of its own "
            "(ghcr.io/ggml-org/llama.cpp:server): mount the folder there"
        )
    with new_folder(out) as folder_of_image:
        # Of this version, without its native module: serving needs none.
        shutil.copytree(
            Path(__file__).resolve().parents[2],
            folder_of_image / "geocomm",
            ignore=shutil.ignore_patterns("_native", "_bin", "__pycache__", "_build_info.py"),
        )
        text = _containerfile(engine, name, versions(python, _PACKAGES[engine]))
        (folder_of_image / "Containerfile").write_text(text, encoding="utf-8")
    place = shlex.quote(str(out))
    return (
        f"podman build -t {name.lower()} --build-context model={shlex.quote(str(folder.path))} {place}\n"
        f'podman run --rm -p {_PORT}:{_PORT} -v "$PWD/api.key:{_KEY}:ro,Z" {name.lower()}'
    )


def _containerfile(engine: Engine, name: str, found: dict[str, str]) -> str:
    build = found.get("torch", "").partition("+")[2]
    index = f"--extra-index-url https://download.pytorch.org/whl/{build} " if build else ""
    pins = " \\\n      ".join(f"'{package}=={version}'" for package, version in found.items())
    return f"""\
# Serves a model with {engine}. The key comes by a mount of a file that only its owner can read; it is not in the image.
FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim
RUN pip install --no-cache-dir {index}\\
      {pins}
COPY geocomm /opt/geocomm
COPY --from=model . /model
ENV PYTHONPATH=/opt
EXPOSE {_PORT}
CMD ["python", "-m", "geocomm", "serve", "/model", "--engine", "{engine}", "--name", "{name}", \\
     "--host", "0.0.0.0", "--port", "{_PORT}", "--api-key-file", "{_KEY}"]
"""

"""The folder that --container writes."""

from __future__ import annotations

import importlib.metadata
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.train.serve.container_files import write_container
from geocomm.train.serve.engines import Engine
from geocomm.train.serve.model_folder import Format, ModelFolder

pytestmark = pytest.mark.skipif(find_spec("openai") is None, reason="openai is not installed")


def test_image_has_the_installed_versions_and_no_key(tmp_path: Path) -> None:
    out = tmp_path / "image"
    told = write_container(out, ModelFolder(tmp_path / "a model", Format.HF), "Mine", Engine.AUTO, sys.executable)
    text = (out / "Containerfile").read_text()
    pins = dict(re.findall(r"'([a-z0-9-]+)==([^']+)'", text))
    assert {"torch", "transformers", "uvicorn", "openai", "httpx2"} <= pins.keys()
    assert pins == {name: importlib.metadata.version(name) for name in pins}
    assert f"FROM python:{sys.version_info.major}.{sys.version_info.minor}-slim" in text
    assert '"--name", "Mine"' in text
    assert "--build-context model='" in told
    assert "podman build -t mine " in told
    found = {file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()}
    assert {"Containerfile", "geocomm/__main__.py", "geocomm/train/serve/key_proxy.py"} <= found
    assert not [name for name in found if name.endswith((".so", ".pyc"))]
    assert not list(tmp_path.glob(".partial-*"))


def test_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is there already"):
        write_container(tmp_path, ModelFolder(tmp_path, Format.HF), "m", Engine.AUTO, sys.executable)


def test_llama_cpp_is_pointed_to_its_own_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "llama-server").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="images of its own"):
        write_container(tmp_path / "i", ModelFolder(tmp_path, Format.GGUF), "m", Engine.AUTO, sys.executable)

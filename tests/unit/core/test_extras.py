"""How to install an extra, by where geocomm was installed from."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shlex
import tomllib
from importlib.metadata import Distribution, PathDistribution
from pathlib import Path

import pytest

from geocomm.core.installation import install_command

ROOT = Path(__file__).resolve().parents[3]
REQUIREMENTS = """\
Requires-Dist: torch==2.13.*
Requires-Dist: onnx<2,>=1.22; extra == "export"
Requires-Dist: gguf<0.20,>=0.19; extra == 'export'
Requires-Dist: transformers[serving]>=5.23; extra == "serve"
"""


def installed(folder: Path, direct_url: object = None) -> Distribution:
    """geocomm as pip leaves it in site-packages; `direct_url`: what pip notes of where it came from."""
    info = folder / "geocomm-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.4\nName: geocomm\nVersion: 1\n{REQUIREMENTS}")
    if direct_url is not None:
        (info / "direct_url.json").write_text(json.dumps(direct_url))
    return PathDistribution(info)


def source_tree(folder: Path) -> Path:
    folder.mkdir()
    (folder / "pyproject.toml").touch()
    return folder


def test_editable_installation_is_made_again_with_the_extra(tmp_path: Path) -> None:
    source = source_tree(tmp_path / "my geocomm")
    geocomm = installed(tmp_path, {"url": source.as_uri(), "dir_info": {"editable": True}})
    assert shlex.split(install_command("export", geocomm)) == [
        "pip", "install", "--no-build-isolation", "-e", f"{source}[export]",
    ]  # fmt: skip


def test_installation_from_a_folder_is_made_again_with_the_extra(tmp_path: Path) -> None:
    source = source_tree(tmp_path / "source")
    geocomm = installed(tmp_path, {"url": source.as_uri(), "dir_info": {}})
    assert install_command("export", geocomm) == f"pip install --no-build-isolation '{source}[export]'"


@pytest.mark.parametrize(
    "direct_url",
    [
        None,
        {"url": "file:///tmp/geocomm-1.whl", "archive_info": {"hash": "sha256=00"}},
        {"url": "https://example.org/geocomm.git", "vcs_info": {"vcs": "git", "commit_id": "00"}},
        {"url": "file:///nobody/has/this/folder", "dir_info": {"editable": True}},
    ],
    ids=["index", "wheel", "git", "folder that is gone"],
)
def test_packages_are_named_where_there_is_no_folder(tmp_path: Path, direct_url: object) -> None:
    geocomm = installed(tmp_path, direct_url)
    assert install_command("export", geocomm) == "pip install 'onnx<2,>=1.22' 'gguf<0.20,>=0.19'"
    assert install_command("serve", geocomm) == "pip install 'transformers[serving]>=5.23'"


def test_source_tree_that_is_not_installed_is_told_where_the_packages_are_listed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def not_there(name: str) -> Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("geocomm.core.installation.distribution", not_there)
    assert "pyproject.toml" in install_command("export")


def test_every_extra_that_the_code_names_exists() -> None:
    named = {
        extra
        for file in (ROOT / "geocomm").rglob("*.py")
        for extra in re.findall(r"install_command\(['\"](\w+)['\"]\)", file.read_text())
    }
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {"train", "export", "serve", "metrics", "torchft"} <= named <= extras.keys()

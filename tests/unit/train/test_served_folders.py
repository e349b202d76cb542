"""What is served, and what is refused with one line."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.train.serve.engines import (
    ApiKey,
    Engine,
    Format,
    ModelFolder,
    check_name,
    choose_engine,
    default_name,
    launch,
    open_folder,
)
from geocomm.train.serve.serving import Serving, is_loopback, key_for, read_key, serve
from support.local_jobs import free_port


def _folder(path: Path, *names: str) -> Path:
    path.mkdir()
    for name in names:
        (path / name).write_text("{}")
    return path


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("config.json", "model.safetensors"), Format.HF),
        (("config.json", "model-00001-of-00002.safetensors"), Format.HF),
        (("config.json", "model.onnx"), Format.ONNX),
        (("model.gguf", "README.md"), Format.GGUF),
    ],
)
def test_folder_is_known_by_its_files(tmp_path: Path, names: tuple[str, ...], found: Format) -> None:
    assert open_folder(_folder(tmp_path / "m", *names)).format is found


def test_record_of_the_export_says_what_the_folder_is(tmp_path: Path) -> None:
    folder = _folder(tmp_path / "m", "config.json", "model.onnx")
    files = {"model.onnx": {"bytes": 2, "sha256": "0"}, "README.md": {"bytes": 9, "sha256": "0"}}
    record = {"format": "onnx", "files": files}
    (folder / "export.json").write_text(json.dumps(record))
    assert open_folder(folder).format is Format.ONNX
    (folder / "README.md").write_text("changed since")
    assert open_folder(folder).format is Format.ONNX
    (folder / "model.onnx").write_text("{")
    with pytest.raises(BadInput, match=r"model\.onnx is not as it was exported \(2 bytes\)"):
        open_folder(folder)
    (folder / "model.onnx").unlink()
    with pytest.raises(BadInput, match=r"model\.onnx"):
        open_folder(folder)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"files": {}}', '{"format": "h5", "files": {}}', '{"format": "hf", "files": {"a.gguf": 1}}']
)
def test_record_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    folder = _folder(tmp_path / "m", "config.json", "model.safetensors")
    (folder / "export.json").write_text(text)
    with pytest.raises(BadInput, match="is not a record of geocomm export"):
        open_folder(folder)


def test_what_holds_no_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not there"):
        open_folder(tmp_path / "nothing")
    (tmp_path / "file").touch()
    with pytest.raises(BadInput, match="is no folder"):
        open_folder(tmp_path / "file")
    with pytest.raises(BadInput, match="holds no model"):
        open_folder(_folder(tmp_path / "other", "config.json"))
    with pytest.raises(BadInput, match="geocomm export"):
        open_folder(_folder(tmp_path / "run", "metrics.jsonl"))


@pytest.mark.parametrize(
    ("folder", "name"),
    [("tiny@1 model", "tiny-1-model"), ("Ünï", "n"), ("a--b..c", "a-b.c"), ("@@", "model"), ("m" * 120, "m" * 96)],
)
def test_default_name_is_one_that_engines_take(folder: str, name: str) -> None:
    assert default_name(Path("/x") / folder) == name
    assert check_name(name) == name


def test_link_to_a_folder_keeps_its_name(tmp_path: Path) -> None:
    """As geocomm subscribe makes it: what it names changes with each version."""
    folder = _folder(tmp_path / ".model.17", "config.json", "model.safetensors")
    (tmp_path / "model").symlink_to(folder)
    assert default_name(tmp_path / "model") == "model"
    assert open_folder(tmp_path / "model").path == folder


@pytest.mark.parametrize("name", ["", "a b", "a@b", "a/b", "-a", "a.", "a--b", "a..b", "m" * 97])
def test_name_that_engines_do_not_take_is_refused(name: str) -> None:
    with pytest.raises(BadInput, match="--name"):
        check_name(name)


def test_gguf_folder_has_one_file(tmp_path: Path) -> None:
    folder = open_folder(_folder(tmp_path / "m", "a.gguf"))
    assert folder.gguf_file.name == "a.gguf"
    (folder.path / "b.gguf").touch()
    with pytest.raises(BadInput, match="2"):
        _ = folder.gguf_file


def test_key_file(tmp_path: Path) -> None:
    path = tmp_path / "api.key"
    with pytest.raises(BadInput, match="is not there; make it with"):
        read_key(path)
    path.touch(0o600)
    with pytest.raises(BadInput, match="is empty"):
        read_key(path)
    path.write_text("two words\n")
    with pytest.raises(BadInput, match="more than one word"):
        read_key(path)
    path.write_text("secret\n")
    assert read_key(path) == "secret"
    path.chmod(0o640)
    with pytest.raises(BadInput, match=r"mode 640.*chmod 600"):
        read_key(path)
    with pytest.raises(BadInput, match="cannot be read"):
        read_key(tmp_path)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_other_machines_need_a_key(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    if loopback:
        assert key_for(host, None) is None
    else:
        with pytest.raises(BadInput, match="--api-key-file"):
            key_for(host, None)


@pytest.fixture
def hf(tmp_path: Path) -> ModelFolder:
    return open_folder(_folder(tmp_path / "hf", "config.json", "model.safetensors"))


def test_onnx_is_refused_with_what_to_do(tmp_path: Path) -> None:
    folder = open_folder(_folder(tmp_path / "onnx", "config.json", "model.onnx"))
    for engine in Engine:
        with pytest.raises(BadInput, match="--format hf"):
            choose_engine(engine, folder, sys.executable, asks_key=False)


def test_engine_of_another_format_is_refused(hf: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"llama\.cpp serves gguf folders"):
        choose_engine(Engine.LLAMA_CPP, hf, sys.executable, asks_key=False)
    gguf = open_folder(_folder(tmp_path / "g", "model.gguf"))
    with pytest.raises(BadInput, match="vllm serves hf folders"):
        choose_engine(Engine.VLLM, gguf, sys.executable, asks_key=False)


def test_engine_that_is_not_installed_is_named_with_the_command(hf: ModelFolder, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(tmp_path / "bare/bin/python")
    with pytest.raises(BadInput, match=r"pip install 'transformers\[serving\]>=5.23'"):
        choose_engine(Engine.AUTO, hf, bare, asks_key=False)
    with pytest.raises(BadInput, match="pip install 'vllm'"):
        choose_engine(Engine.VLLM, hf, bare, asks_key=False)
    gguf = open_folder(_folder(tmp_path / "g", "model.gguf"))
    if not shutil.which("llama-server"):
        with pytest.raises(BadInput, match="llama-server on the PATH"):
            choose_engine(Engine.AUTO, gguf, bare, asks_key=False)


def test_python_that_is_none_is_refused(hf: ModelFolder, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot be run"):
        choose_engine(Engine.AUTO, hf, str(tmp_path / "python"), asks_key=False)
    with pytest.raises(BadInput, match="failed"):
        choose_engine(Engine.AUTO, hf, "/bin/false", asks_key=False)


def test_commands_name_the_model_and_the_address(hf: ModelFolder, tmp_path: Path) -> None:
    gguf = open_folder(_folder(tmp_path / "g", "model.gguf"))
    address = ("127.0.0.1", 5000)
    listen = ["--host", "127.0.0.1", "--port", "5000"]
    vllm = launch(Engine.VLLM, hf, "mine", "py", address, tmp_path)
    assert vllm.command[1:] == [
        *("-m", "vllm.entrypoints.cli.main", "serve", str(hf.path), "--served-model-name", "mine", *listen)
    ]
    llama = launch(Engine.LLAMA_CPP, gguf, "mine", "py", address, tmp_path)
    model = str(gguf.path / "model.gguf")
    assert llama.command == ["llama-server", "--model", model, "--alias", "mine", *listen]


def test_engines_get_the_key_by_their_own_option_and_no_command_line_has_it(hf: ModelFolder, tmp_path: Path) -> None:
    gguf = open_folder(_folder(tmp_path / "g", "model.gguf"))
    key, address = ApiKey("secret", tmp_path / "api.key"), ("0.0.0.0", 5000)
    vllm = launch(Engine.VLLM, hf, "mine", "py", address, tmp_path, key)
    assert vllm.variables["VLLM_API_KEY"] == "secret"
    llama = launch(Engine.LLAMA_CPP, gguf, "mine", "py", address, tmp_path, key)
    assert list(llama.command)[-2:] == ["--api-key-file", str(tmp_path / "api.key")]
    assert not [word for word in (*vllm.command, *llama.command) if "secret" in word]


def test_engine_that_asks_for_no_key_is_refused_where_one_is_wanted(hf: ModelFolder) -> None:
    pytest.importorskip("openai")
    assert choose_engine(Engine.TRANSFORMERS, hf, sys.executable, asks_key=False) is Engine.TRANSFORMERS
    with pytest.raises(BadInput, match=r"transformers asks for no key.*--engine vllm"):
        choose_engine(Engine.TRANSFORMERS, hf, sys.executable, asks_key=True)


def _serving(folder: Path, python: Path, port: int) -> Serving:
    return Serving(folder, Engine.VLLM, "127.0.0.1", port, None, str(python), None, 30)


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """A Python whose vllm ends at once."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "broken"], check=True)
    package = next((tmp_path / "broken/lib").glob("python*/site-packages")) / "vllm"
    (package / "entrypoints/cli").mkdir(parents=True)
    for folder in (package, package / "entrypoints", package / "entrypoints/cli"):
        (folder / "__init__.py").touch()
    (package / "entrypoints/cli/main.py").write_text("import sys; print('no GPU here'); sys.exit(7)")
    return tmp_path / "broken/bin/python"


def test_port_in_use_is_refused(hf: ModelFolder, failing: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=f"port {port}.*another --port"):
            serve(_serving(hf.path, failing, port))


def test_engine_that_dies_gives_its_status_and_its_last_lines(
    hf: ModelFolder, failing: Path, capfd: pytest.CaptureFixture[str], unused_port: int
) -> None:
    assert serve(_serving(hf.path, failing, unused_port)) == 7
    said = capfd.readouterr().err
    assert said.index("no GPU here") < said.index("vllm ended with status 7 before it was ready")


@pytest.fixture
def unused_port() -> int:
    return free_port()

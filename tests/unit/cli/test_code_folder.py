"""What of the script's folder goes to the sites: no private key, whatever the folder is."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, cast

import pytest

from geocomm.cli.ssh_sites import code_folder
from geocomm.cli.ssh_sites.code_folder import WITHOUT_VALUE, CodeFolder
from geocomm.core.bad_input import BadInput
from geocomm.security.job_ca import JobCa

KEYS = Path("geocomm-keys")


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "my work"
    (folder / ".git").mkdir(parents=True)
    (folder / "data").mkdir()
    for name in ("train.py", "a b.py", ".git/config", "data/large", "x.pyc"):
        (folder / name).write_text("1234")
    monkeypatch.chdir(folder)
    return folder


def packed(code: CodeFolder) -> set[str]:
    archive = subprocess.run(code.tar(), capture_output=True, check=True).stdout
    listed = subprocess.run(["tar", "-tzf", "-"], input=archive, capture_output=True, check=True).stdout.decode()
    return {name.removeprefix("./") for name in listed.splitlines() if not name.endswith("/")}


def synced(code: CodeFolder, to: Path) -> set[str]:
    words = code.rsync("ssh", f"{to}/")
    subprocess.run([word for word in words if word not in ("-e", "ssh")], check=True)
    return {str(path.relative_to(to)) for path in to.rglob("*") if path.is_file()}


def test_both_ways_of_copying_leave_out_the_same(work: Path, tmp_path: Path) -> None:
    for folder in (KEYS, Path("old/keys of before")):
        JobCa.create(folder, "job", ["a", "b"], 2)
    Path("own").mkdir()
    Path("own/key.pem").write_text("secret")
    Path("own/sub").mkdir()
    Path("own/sub/module.py").write_text("")
    code = CodeFolder.of(["--nproc-per-node", "8", "train.py", "--lr", "1"], ["data"], KEYS)
    assert code.arguments == ("--nproc-per-node", "8", "train.py", "--lr", "1")
    assert packed(code) == {"train.py", "a b.py", "own/sub/module.py"}
    (tmp_path / "there").mkdir()
    assert synced(code, tmp_path / "there") == packed(code)
    assert code.size_bytes == 8


def test_keys_that_are_made_later_are_left_out(work: Path) -> None:
    code = CodeFolder.of(["train.py"], ["data"], KEYS)
    JobCa.create(KEYS, "job", ["a", "b"], 2)
    assert packed(code) == {"train.py", "a b.py"}


def test_script_elsewhere_is_called_by_its_name_there(work: Path) -> None:
    Path("src").mkdir()
    Path("src/main.py").write_text("")
    code = CodeFolder.of(["--max-restarts=2", "src/main.py", "src/main.py"], [], KEYS)
    assert code.path == work / "src"
    assert code.arguments == ("--max-restarts=2", "main.py", "src/main.py")
    Path("link.py").symlink_to("src/main.py")
    assert CodeFolder.of(["link.py"], [], KEYS).arguments == ("main.py",)
    assert CodeFolder.of(["link.py"], [], KEYS).path == work / "src"
    assert CodeFolder.of(["--no-python", "./link.py"], [], KEYS).arguments == ("--no-python", "./main.py")


def test_script_is_the_first_word_that_is_no_option_and_no_value_of_one(work: Path) -> None:
    Path("8").write_text("")  # a file is no script for that
    options = [
        "--nproc-per-node",
        "8",
        "--max-restarts=2",
        "--standalone",
        "--stand",
        "-t",
        "3",
        "-r3",
        "--role",
        "a b.py",
    ]
    code = CodeFolder.of([*options, "./train.py", "8"], [], KEYS)
    assert code.arguments == (*options, "train.py", "8")
    Path("src").mkdir()
    Path("src/main.py").write_text("")
    with pytest.raises(BadInput, match=r"src/mian\.py: there is no such file in .*did you mean 'src/main\.py'\?"):
        CodeFolder.of([*options, "src/mian.py", "train.py"], [], KEYS)
    assert CodeFolder.of([*options, "-m", "missing", "train.py"], [], KEYS).path == work


def test_options_without_a_value_are_torchruns() -> None:
    from torch.distributed.run import get_args_parser

    actions = cast(Any, get_args_parser())._actions
    flags = {option for action in actions if action.nargs == 0 for option in action.option_strings}
    assert flags == set(WITHOUT_VALUE)


def test_folder_is_excluded_however_it_is_written(work: Path, tmp_path: Path) -> None:
    Path("data/raw").mkdir()
    Path("data/raw/huge").write_text("12345678")
    for number, pattern in enumerate(("data/raw", "data/raw/", "./data/raw/", "raw/")):
        code = CodeFolder.of(["train.py"], [pattern], KEYS)
        assert packed(code) == {"train.py", "a b.py", "data/large"}
        assert code.size_bytes == 12
        (tmp_path / str(number)).mkdir()
        assert synced(code, tmp_path / str(number)) == packed(code)


def test_module_takes_the_current_folder(work: Path) -> None:
    code = CodeFolder.of(["-m", "geocomm.train", "--config", "a b.py"], [], KEYS)
    assert code.path == work
    assert code.arguments[:2] == ("-m", "geocomm.train")


@pytest.mark.usefixtures("work")
def test_no_script_home_keys_and_too_much_are_refused(monkeypatch: pytest.MonkeyPatch, work: Path) -> None:
    with pytest.raises(BadInput, match="no script"):
        CodeFolder.of(["--standalone"], [], KEYS)
    with pytest.raises(BadInput, match="is a folder"):
        CodeFolder.of(["data"], [], KEYS)
    with pytest.raises(BadInput, match=r"train\.py would not be copied"):
        CodeFolder.of(["train.py"], ["*.py"], KEYS)
    monkeypatch.setattr(code_folder, "MOST_BYTES", 11)
    with pytest.raises(BadInput, match="exclude ="):
        CodeFolder.of(["train.py"], [], KEYS)
    JobCa.create(KEYS, "job", ["a"], 2)
    (KEYS / "train.py").write_text("")
    with pytest.raises(BadInput, match="folder of keys"):
        CodeFolder.of([str(KEYS / "train.py")], [], KEYS)
    monkeypatch.setenv("HOME", str(work))
    with pytest.raises(BadInput, match="a folder of its own"):
        CodeFolder.of(["train.py"], [], KEYS)

"""What `geocomm run` refuses before it starts ranks."""

from __future__ import annotations

import os
import py_compile
import socket
import zipapp
from argparse import Namespace
from pathlib import Path

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.core.errors import InvalidArgumentError, UnsupportedError
from geocomm.core.options import Options
from geocomm.group.rendezvous import launch_checks
from geocomm.group.rendezvous.launch_checks import (
    check_codec,
    check_nodes,
    check_ports,
    check_program,
    check_variables,
    local_ranks,
)
from support.local_jobs import free_port


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("GEOCOMM_")]:
        monkeypatch.delenv(name)


def program(path: object, **changes: object) -> Namespace:
    return Namespace(**{"training_script": str(path), "no_python": False, "run_path": False, "module": False} | changes)


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("GEOCOMM_STREAMS", "many", "a whole number from 1 to 64"),
        ("GEOCOMM_PORT", "99999", "a whole number from 1 to 65535"),
        ("GEOCOMM_SECURITY", "requird", "did you mean 'required'"),
        ("GEOCOMM_ONE_SITE", "maybe", "1 or 0"),
        ("GEOCOMM_LINK_DEADLINE", "soon", "such as 90s"),
        ("GEOCOMM_LOG", "loud", "debug, info, warning, error, off"),
        ("GEOCOMM_CPU", "sve", "scalar, avx2, avx512, neon"),
        ("GEOCOMM_BACKEND", "nccl", "script, geocomm"),
        ("GEOCOMM_BACKEND_NAME", "gloe", "did you mean 'gloo'"),
        ("GEOCOMM_EGRESS_PRICE", "-1", "a number of dollars"),
        ("GEOCOMM_ALERT_WEBHOOK", "ftp://x", "https://"),
    ],
)
def test_variable_that_cannot_be_is_refused_with_what_it_may_be(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, told: str
) -> None:
    check_variables()
    monkeypatch.setenv(variable, text)
    with pytest.raises(InvalidArgumentError) as refused:
        check_variables()
    assert variable in str(refused.value)
    assert told in str(refused.value)


def test_codec_that_cannot_be_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEOCOMM_CODEC", "int9")
    check_variables()  # without the grammar of codecs, and so without torch
    with pytest.raises(InvalidArgumentError, match=r"GEOCOMM_CODEC.*did you mean 'int8'"):
        check_codec()
    monkeypatch.setenv("GEOCOMM_CODEC", "topk")
    with pytest.raises(UnsupportedError, match="error feedback"):
        check_codec()
    monkeypatch.setenv("GEOCOMM_CODEC", "auto")
    check_codec()
    monkeypatch.setenv("GEOCOMM_CODECS", "int8,int9")
    with pytest.raises(InvalidArgumentError, match=r"GEOCOMM_CODECS.*int9"):
        check_codec()


def test_port_that_another_process_has_is_refused_with_its_pid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch_checks, "_PORT_LIMIT_S", 0.0)
    port = free_port()  # none that the kernel gives out, and so the one before is free too
    with socket.create_server(("127.0.0.1", port)):
        for options in (Options(port=port - 1), Options(metrics_port=port - 1)):
            with pytest.raises(BadInput, match=rf"port {port} is taken by pid {os.getpid()} \("):
                check_ports(options, 2)
    check_ports(Options(port=port), 1)


def test_ports_beyond_the_last_are_refused() -> None:
    with pytest.raises(BadInput, match="65535 is the last"):
        check_ports(Options(port=65535), 2)


@pytest.mark.parametrize(
    ("nnodes", "node_rank", "told"),
    [
        ("two", 0, "--nnodes two"),
        ("0", 0, "--nnodes 0"),
        ("1:2", 0, "has to be fixed"),
        ("2", None, "needs --node-rank: 0 to 1"),
        ("2", 2, "--node-rank 2"),
        ("2", -1, "--node-rank -1"),
    ],
)
def test_nodes_that_cannot_be_are_refused(nnodes: str, node_rank: int | None, told: str) -> None:
    check_nodes(Namespace(nnodes="1", node_rank=None))
    check_nodes(Namespace(nnodes="2:2", node_rank=1))
    with pytest.raises(BadInput, match=told):
        check_nodes(Namespace(nnodes=nnodes, node_rank=node_rank))


def test_ranks_of_a_node_are_counted_or_refused() -> None:
    assert local_ranks(Namespace(nproc_per_node="3")) == 3
    for text in ("x", "0"):
        with pytest.raises(BadInput, match=f"--nproc-per-node {text}"):
            local_ranks(Namespace(nproc_per_node=text))


def test_program_that_cannot_run_is_refused(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text("raise SystemExit  # it is not run\n")
    bad.write_text("import os\ndef f(:\n")
    check_program(program(good))
    check_program(program("json.tool", module=True))
    check_program(program("no such program", no_python=True))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/__main__.py").write_text("")
    check_program(program(tmp_path / "folder"))
    zipapp.create_archive(tmp_path / "folder", tmp_path / "app")
    check_program(program(tmp_path / "app"))
    check_program(program(py_compile.compile(str(good), str(tmp_path / "good.pyc"))))
    with pytest.raises(BadInput, match=r"bad\.py, line 2: SyntaxError: "):
        check_program(program(bad))
    with pytest.raises(BadInput, match=r"nothere\.py: there is no such file in /"):
        check_program(program("nothere.py"))
    with pytest.raises(BadInput, match=r"nothere\.py: there is no such file$"):
        check_program(program(tmp_path / "nothere.py"))
    with pytest.raises(BadInput, match="no such module"):
        check_program(program("geocom.train", module=True))


def test_program_of_another_python_is_not_judged_by_this_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    newer = tmp_path / "newer.py"
    newer.write_text("syntax of tomorrow\n")
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python99/bin/python")
    check_program(program(newer))
    check_program(program("only.there", module=True))


def test_program_that_warns_is_not_told_of_twice(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    warns = tmp_path / "warns.py"
    warns.write_text("1 is 1\n")
    check_program(program(warns))
    assert not [one for one in recwarn if one.filename == str(warns)]

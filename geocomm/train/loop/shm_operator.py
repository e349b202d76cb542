"""DeepSpeed's operator deepspeed_shm_comm, which is compiled at its first use on a machine: by `make build`, or by the
first `geocomm train`.

DeepSpeed compiles it silently, in one to three minutes. Meanwhile torch keeps a file `lock` beside the result
(torch.utils.file_baton). A process that is killed leaves that file behind, and every later one waits for it for ever.
So `load_operator` compiles under a lock of the kernel's, which ends with its owner, and removes torch's.

Run as a program, this compiles the operator ahead of time: python -m geocomm.train.loop.shm_operator

It uses private parts of torch and DeepSpeed; checked with torch 2.13 and DeepSpeed 0.19.8.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import sysconfig
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
from geocomm.core.file_systems import FolderInUseError, held_by_one
from geocomm.core.message_log import tell
from geocomm.core.patience import said_while

NAME = "deepspeed_shm_comm"
Say = Callable[[str], None]

_LIMIT_S = 900.0
"""How long to wait for another process that compiles it."""


def load_operator(say: Say) -> None:
    """Load the operator into this process, compiled first if need be; nothing where DeepSpeed does not use it.

    Where there is no compiler, DeepSpeed does without: it reduces between ranks of one machine by torch's backend.

    `say` gets a line when it compiles, and when it waits for long. Raises BadInput if it cannot be compiled.
    """
    _build_inside_environment()
    os.environ["PATH"] = _search_path()
    import deepspeed
    from deepspeed.accelerator import get_accelerator
    from torch.utils.cpp_extension import _get_build_directory  # pyright: ignore[reportPrivateUsage]

    accelerator: Any = get_accelerator()
    builder = accelerator.create_op_builder("ShareMemCommBuilder")
    if builder is None or not deepspeed.ops.__compatible_ops__.get(NAME, False):
        return
    if missing := _missing():
        say(f"{missing} not here: ranks of one machine reduce without DeepSpeed's operator {NAME}, which is faster")
        deepspeed.ops.__compatible_ops__[NAME] = False
        return
    folder = Path(_get_build_directory(NAME, verbose=False))
    if not (folder / f"{NAME}.so").exists():
        say(f"compiles DeepSpeed's operator {NAME} for this torch, once on this machine: one to three minutes")
    try:
        with build_guard(folder, say):
            builder.load(verbose=False)
    except FolderInUseError as error:
        raise BadInput(
            f"{error} has compiled DeepSpeed's operator in {folder} for 15 minutes: wait, or end it"
        ) from None
    except (RuntimeError, OSError) as error:
        raise BadInput(
            f"DeepSpeed's operator {NAME} cannot be built in {folder}: {_reason(error)}; it needs g++ and "
            f"Python's headers, and `{Path(sys.executable).name} -m {__spec__.name}` shows the whole output"
        ) from error


def _missing() -> str:
    """What compiling takes and this machine lacks; "": nothing."""
    compiler = os.environ.get("CXX", "c++")
    header = Path(sysconfig.get_path("include"), "Python.h")
    lacks = [*([] if shutil.which(compiler) else [compiler]), *([] if header.exists() else [str(header)])]
    return f"{' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'}" if lacks else ""


def _search_path() -> str:
    """PATH with this environment's own programs first, of which DeepSpeed needs ninja: it may not be activated.

    Without folders that this user may not search: DeepSpeed's look for numactl, where there is none, would end in
    PermissionError in place of FileNotFoundError.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    may_search = [one for one in folders if os.access(one, os.X_OK, effective_ids=True)]
    return os.pathsep.join([str(Path(sys.executable).parent), *may_search])


def _build_inside_environment() -> None:
    """Have torch build in the virtual environment, unless the user has chosen a folder.

    The result fits one torch and one DeepSpeed, and torch's own choice is a folder that all environments share.
    """
    if sys.prefix != sys.base_prefix and os.access(sys.prefix, os.W_OK):
        os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(Path(sys.prefix) / "torch_extensions"))


@contextlib.contextmanager
def build_guard(folder: Path, say: Say) -> Generator[None]:
    """Let one process at a time build with torch in `folder`, and tell of a long wait. It finds no lock of torch's:
    whose that was has ended."""
    waiting = said_while(say, lambda: f"DeepSpeed's operator to be compiled in {folder}")
    with waiting, held_by_one(folder / "geocomm.lock", _LIMIT_S):
        (folder / "lock").unlink(missing_ok=True)
        yield


def _reason(error: BaseException) -> str:
    """The line that says most of what a compiler or torch said."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower() and "building extension" not in line), lines[0])


def main() -> int:
    """Compile it; the exit status."""
    import torch

    if not torch.cuda.is_available():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")  # else DeepSpeed warns that it found no other
    try:
        load_operator(lambda line: print(f"geocomm: {line}", flush=True))
    except BadInput as error:
        tell("train", f"{error}; the compiler said:\n{error.__cause__}")
        return EXIT_BAD_INPUT
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""DeepSpeed's operator deepspeed_shm_comm, which is compiled at its first use on a machine.

DeepSpeed compiles it silently, in one to three minutes. Meanwhile torch keeps a file `lock` beside the result
(torch.utils.file_baton). A process that is killed leaves that file behind, and every later one waits for it for ever.

`load_operator` compiles under a lock of the kernel's instead, which ends with its owner. Its holder may remove
torch's file once no process has it open. It says what it does, and DeepSpeed finds the operator loaded afterwards.

Run as a program, this compiles the operator ahead of time: python -m geocomm.train.loop.shm_operator

It uses private parts of torch and DeepSpeed; checked with torch 2.13 and DeepSpeed 0.19.8.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

from geocomm.core.bad_input import EXIT_BAD_INPUT, BadInput
from geocomm.core.message_log import tell
from geocomm.core.patience import Waiting

NAME = "deepspeed_shm_comm"
Say = Callable[[str], None]

_SAY_EVERY_S = 15.0
_POLL_S = 0.25
# torch closes its lock and removes it a moment later: a lock that nobody has open may be removed only after this time.
_CLOSED_FOR_S = 1.0
# What goes on in the folder after the process that started it was killed.
_BUILD_TOOLS = frozenset({"ninja", "ccache", "c++", "g++", "clang++", "cc1plus", "as", "collect2", "ld"})
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


def load_operator(say: Say) -> None:
    """Load the operator into this process, compiled first if need be; nothing where DeepSpeed does not use it.

    Where there is no compiler, DeepSpeed does without: it reduces between ranks of one machine by torch's backend.

    `say` gets a line when it compiles or waits, and every 15 s until that is over. Raises BadInput if it cannot be
    compiled.
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
    with build_guard(folder, say), _saying(folder, say):
        try:
            builder.load(verbose=False)
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
    """Let one process at a time build with torch in `folder`; it finds no lock without an owner.

    Waits for the others, and for builds that were started without this guard.
    """
    with (folder / "geocomm.lock").open("a+") as guard:
        if _lock(guard.fileno(), folder, say):
            guard.truncate(0)
            guard.write(str(os.getpid()))
            guard.flush()
            _await_lock(folder, say)
        yield


def _lock(guard: int, folder: Path, say: Say) -> bool:
    """Wait for the lock of the kernel's; whether this file system has any."""
    waiting = Waiting(say)
    while True:
        try:
            fcntl.flock(guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = (folder / "geocomm.lock").read_text() or "unknown"
            waiting.tell(lambda owner=owner: f"process {owner}, which builds DeepSpeed's operator in {folder}")
            time.sleep(_POLL_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
        else:
            return True


def _await_lock(folder: Path, say: Say) -> None:
    """Wait until no build has torch's lock in `folder`, and remove one that has no owner."""
    lock = folder / "lock"
    waiting = Waiting(say)
    closed_since: float | None = None
    while True:
        try:
            foreign = os.geteuid() not in (0, lock.stat().st_uid)
        except FileNotFoundError:
            return
        builders = builders_in(folder)
        if builders or foreign:
            closed_since = None
            whom = f"process {builders[0]}" if builders else "a process of another user"
            hint = "" if builders else f"; if there is none, remove {lock}"
            said = f"{whom}, which builds DeepSpeed's operator in {folder}{hint}"
            waiting.tell(lambda said=said: said)
        elif closed_since is None:
            closed_since = time.monotonic()
        elif time.monotonic() - closed_since >= _CLOSED_FOR_S:
            lock.unlink(missing_ok=True)
            say(f"removed {lock}: the build that left it was ended")
            return
        time.sleep(_POLL_S)


def builders_in(folder: Path) -> list[int]:
    """Processes of this machine that have torch's lock in `folder` open, or compile there. Sees those that it may."""
    found = []
    resolved = folder.resolve()
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and int(process.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is somebody else's
                tool = (process / "comm").read_text().strip() in _BUILD_TOOLS
                if (tool and (process / "cwd").readlink() == resolved) or _has_open(process, resolved / "lock"):
                    found.append(int(process.name))
    return sorted(found)


def _has_open(process: Path, file: Path) -> bool:
    for descriptor in (process / "fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if descriptor.readlink() == file:
                return True
    return False


@contextlib.contextmanager
def _saying(folder: Path, say: Say) -> Generator[None]:
    """Say that the operator is compiled in `folder`, and how long that has taken, until the context ends."""
    began = time.monotonic()
    over = threading.Event()
    first = not (folder / f"{NAME}.so").exists()
    if first:
        say(f"compiles DeepSpeed's operator {NAME} for this torch, once on this machine: one to three minutes")

    def remind() -> None:
        while not over.wait(_SAY_EVERY_S):
            say(f"still builds DeepSpeed's operator {NAME} ({time.monotonic() - began:.0f} s so far)")

    thread = threading.Thread(target=remind, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if first:
        say(f"compiled DeepSpeed's operator {NAME} in {time.monotonic() - began:.0f} s")


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

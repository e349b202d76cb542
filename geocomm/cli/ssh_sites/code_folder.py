"""The folder that goes to every site: that of the script, without keys, repositories and environments."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from geocomm.core.bad_input import BadInput, did_you_mean
from geocomm.security.job_ca import CA_KEY_FILE
from geocomm.security.key_folder import KEY_FILE

MOST_BYTES = 1 << 30
_NEVER = (".git", "__pycache__", ".venv", "*.pyc", CA_KEY_FILE, KEY_FILE)
"""Private keys go to their own site alone, and another way."""
_NO_PYTHON = {"--no-python", "--no_python"}
_MODULE = {"-m", "--module"}
WITHOUT_VALUE = (
    *("-h", "--help", "--standalone", "-m", "--module", "--no-python", "--no_python", "--run-path", "--run_path"),
    *("--virtual-local-rank", "--virtual_local_rank"),
)
"""torchrun's options that take no value; of each other one the next word is the value. Importing torch to ask it takes
seconds."""


@dataclass(frozen=True)
class CodeFolder:
    """A folder, and what of it is left here."""

    path: Path
    arguments: tuple[str, ...]
    """The arguments of torchrun, with the script as it is called inside the folder."""
    excluded: tuple[str, ...]
    """Patterns, as rsync and tar both take them."""
    keys: tuple[str, ...]
    """Folders of keys inside, relative: never copied."""
    size_bytes: int

    @classmethod
    def of(cls, arguments: Sequence[str], exclude: Sequence[str], own_keys: Path) -> CodeFolder:
        """The folder of the script among torchrun's arguments; the current folder for `-m module`. BadInput."""
        words = list(arguments)
        script = _script(words)
        excluded = (*_NEVER, *(pattern.removeprefix("./").rstrip("/") for pattern in exclude))
        if script is None:
            raise BadInput(f"no script in {' '.join(words)!r}: write -- train.py, or -- -m module, after the options")
        if _MODULE.intersection(words[:script]):
            path = Path.cwd()
        else:
            program = _program(words[script])
            path = program.parent
            if _matches(program.name, excluded):
                raise BadInput(f"{words[script]} would not be copied to the sites: exclude = in sites.toml names it")
            # Without Python, torchrun looks a bare name up in PATH.
            words[script] = f"./{program.name}" if _NO_PYTHON.intersection(words[:script]) else program.name
        if path in (Path.home(), Path("/")):
            raise BadInput(f"{path} would be copied to every site: put the script into a folder of its own")
        keys, size_bytes = _look(path, excluded, own_keys.resolve())
        if size_bytes > MOST_BYTES:
            raise BadInput(
                f"{path} has over {MOST_BYTES >> 30} GiB, too much to copy to each site: name what the script does not "
                'need with exclude = ["data", …] in sites.toml, or put the script into a folder of its own'
            )
        return cls(path, tuple(words), excluded, keys, size_bytes)

    def rsync(self, ssh: str, destination: str) -> list[str]:
        """What copies it. ssh: the command that rsync runs, as one word."""
        leave = [f"--exclude={pattern}" for pattern in (*self.excluded, *(f"/{folder}" for folder in self.keys))]
        return ["rsync", "-rlptz", "--protect-args", "-e", ssh, *leave, f"{self.path}/", destination]

    def tar(self) -> list[str]:
        """What writes it to standard output, packed."""
        leave = [f"--exclude={pattern}" for pattern in (*self.excluded, *(f"./{folder}" for folder in self.keys))]
        return ["tar", "-C", str(self.path), *leave, "-czf", "-", "."]


def _script(words: Sequence[str]) -> int | None:
    """Which of torchrun's arguments is the script or the module: the first that is neither an option nor its value."""
    number = 0
    while number < len(words) and (word := words[number]).startswith("-"):
        has_value = "=" in word or word in ("-", "--") or (not word.startswith("--") and len(word) > len("-t"))
        is_flag = any(flag.startswith(word) if word.startswith("--") else flag == word for flag in WITHOUT_VALUE)
        number += 1 if has_value or is_flag else 2
    return number if number < len(words) else None


def _program(word: str) -> Path:
    """The script's file. BadInput: it is not there."""
    given = Path(word)
    if not given.is_file():
        folder = given.parent
        beside = [str(path.relative_to(folder)) for path in folder.glob("*.py")] if folder.is_dir() else []
        prefix = "" if folder == Path() else f"{folder}/"
        what = "is a folder" if given.is_dir() else f"there is no such file in {Path.cwd()}"
        raise BadInput(
            f"{word}: {what}{did_you_mean(given.name, beside, prefix)}. The script goes from here to each site"
        )
    return given.resolve()


def _look(path: Path, excluded: Sequence[str], own_keys: Path) -> tuple[tuple[str, ...], int]:
    """The folders of keys inside, and the bytes of the rest. Stops counting beyond MOST_BYTES."""
    keys = [str(own_keys.relative_to(path))] if own_keys.is_relative_to(path) else []  # it may be made later
    size_bytes = 0
    for folder, folders, files in os.walk(path):
        if CA_KEY_FILE in files:
            if Path(folder) == path:
                raise BadInput(f"{path} is a folder of keys: its script would take them to every site")
            keys.append(str(Path(folder).relative_to(path)))
            folders.clear()
            continue
        inside = os.path.relpath(folder, path)
        folders[:] = [name for name in folders if not _matches(os.path.join(inside, name), excluded)]
        for name in files:
            if not _matches(os.path.join(inside, name), excluded):
                size_bytes += os.lstat(os.path.join(folder, name)).st_size
        if size_bytes > MOST_BYTES:
            break
    return tuple(dict.fromkeys(keys)), size_bytes


def _matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a pattern is that of the end of a path, from the start of a name on."""
    parts = path.split("/")
    ends = ["/".join(parts[number:]) for number in range(len(parts))]
    return any(fnmatch(end, pattern) for end in ends for pattern in patterns)

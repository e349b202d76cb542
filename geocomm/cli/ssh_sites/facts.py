"""What a machine is, before a run starts there: `geocomm up` sends this program to its Python, which may lack geocomm.

Arguments: the folder of the run, the hub's host and port, the number of the node, the name of a certificate authority's
file. Prints JSON.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any


def main(folder: Path, host: str, port: int, number: str, ca_file: str) -> None:
    """Print the facts."""
    facts: dict[str, Any] = {"now": time.time(), "python": sys.version.split()[0], "problem": "", "hub_here": False}
    try:
        from importlib.metadata import version

        from geocomm._version import __version__
        from geocomm.core.addresses import Address

        facts["geocomm"] = __version__
        facts["torch"] = version("torch")
        with contextlib.suppress(OSError):  # a name that nobody here knows is not this machine's
            facts["hub_here"] = Address(host, port).is_here
    except ImportError as error:  # what has no version is a ModuleNotFoundError
        facts["problem"] = str(error)
    there = folder.absolute()
    while not os.path.exists(there):  # where it may not look, too
        there = there.parent
    facts["free_bytes"] = shutil.disk_usage(there).free
    facts["writable"] = os.access(there, os.W_OK | os.X_OK)
    facts["rsync"] = shutil.which("rsync") is not None
    facts["lacks"] = [name for name in ("flock", "setsid", "nohup", "tail", "tar") if shutil.which(name) is None]
    facts["running"] = is_locked(folder / f"node-{number}.lock")
    facts["ca"] = ""
    with contextlib.suppress(OSError):
        facts["ca"] = hashlib.sha256((folder / "keys" / ca_file).read_bytes()).hexdigest()
    print(json.dumps(facts))


def is_locked(path: Path) -> bool:
    """Whether the run of a node holds its lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), *sys.argv[4:])

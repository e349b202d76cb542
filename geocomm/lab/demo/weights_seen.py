"""What the sites of the demo of weights say: a line of JSON each time, in FOLDER/SITE.jsonl.

python -m geocomm.lab.demo.weights_seen FOLDER: says the bits of a model's folder; what `geocomm subscribe --then` runs.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from geocomm.core.site import site_name


def note(folder: Path, said: Mapping[str, Any]) -> None:
    """Say something as this site, and when."""
    with (folder / f"{site_name()}.jsonl").open("ab", buffering=0) as file:  # by one call: a site has several processes
        file.write(json.dumps({"at": time.time(), **said}).encode() + b"\n")


def tensor_digests(file: Path) -> dict[str, str]:
    """SHA-256 of each tensor in a file of safetensors, by name and dtype."""
    content = memoryview(file.read_bytes())
    begin = 8 + int.from_bytes(content[:8], "little")
    entries = json.loads(bytes(content[8:begin]))
    return {
        f"{name} {entry['dtype']}": hashlib.sha256(content[begin:][slice(*entry["data_offsets"])]).hexdigest()
        for name, entry in entries.items()
        if name != "__metadata__"
    }


def main() -> None:
    """Of the version that the folder is."""
    weights = Path(os.environ["WEIGHTS_FOLDER"])
    at = time.time()
    digests = tensor_digests(weights / "model.safetensors")
    note(Path(sys.argv[1]), {"at": at, "folder": int(os.environ["WEIGHTS_VERSION"]), "digests": digests})


if __name__ == "__main__":
    main()

"""What a disk does to a file."""

from __future__ import annotations

import random
from pathlib import Path

_PAGE_BYTES = 4096
_HEAD_BYTES = 100
"""Of a SQLite file."""

_VERSION = range(60, 64)
"""Of the journal's format: one of another version is left as it is."""


def damage(path: Path, chance: random.Random) -> str:
    """Change a file that nobody has open, or lose it. What was done."""
    content = bytearray(path.read_bytes())
    match chance.choice(["bit", "bit", "page", "end", "gone"]) if content else "gone":
        case "bit":
            at = chance.randrange(_HEAD_BYTES if chance.random() < 0.2 else len(content)) % len(content)
            at = 0 if at in _VERSION else at
            content[at] ^= 1 << chance.randrange(8)
            done = f"a bit of byte {at} of {len(content)} is another one"
        case "page":
            at = chance.randrange(0, len(content), _PAGE_BYTES)
            torn = min(len(content) - at, _PAGE_BYTES) // 2
            content[at + torn : at + 2 * torn] = bytes(torn)
            done = f"the page at {at} of {len(content)} is torn"
        case "end":
            size = chance.randrange(len(content))
            done = f"{size} bytes are left of {len(content)}"
            del content[size:]
        case _:
            path.unlink()
            return "gone"
    path.write_bytes(content)
    return done

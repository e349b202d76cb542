"""The key that clients of a served model show, read from a file."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path

from geocomm.core.bad_input import BadInput

_MAKE_ONE = "(umask 077; openssl rand -hex 32 > api.key)"


def key_for(host: str, path: Path | None) -> str | None:
    """The key in `path`; None without a path, which only a loopback `host` may do. Raises BadInput."""
    if path is not None:
        return read_key(path)
    if not is_loopback(host):
        raise BadInput(f"--host {host} is open to other machines: add --api-key-file api.key; make it with {_MAKE_ONE}")
    return None


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def read_key(path: Path) -> str:
    """The key in a file that only its owner may read. Raises BadInput."""
    try:
        text, mode = path.read_text(encoding="ascii"), path.stat().st_mode
    except FileNotFoundError:
        raise BadInput(f"--api-key-file {path} is not there; make it with {_MAKE_ONE}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"--api-key-file {path} cannot be read: {error}") from None
    if mode & 0o077:
        raise BadInput(f"--api-key-file {path} can be read by others (mode {mode & 0o777:o}); run: chmod 600 {path}")
    key = text.strip()
    if not re.fullmatch(r"[!-~]+", key):
        what = "is empty" if not key else "has more than one word"
        raise BadInput(f"--api-key-file {path} {what}; make it with {_MAKE_ONE}")
    return key

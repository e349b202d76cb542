"""The name of a site: one rule wherever a name is written, in options, keys, links, the emulator and at the hub.

A name stands in a certificate's URI, names a folder, and is a word of `rdma:a,b` and of `--link a:b`. So it has ASCII
letters, digits and few signs.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Mapping

UNNAMED_SITE = "local"
"""What a rank without GEOCOMM_SITE counts as, where ranks are grouped by site."""
MAX_NAME_LENGTH = 64
NAME_RULE = f"1 to {MAX_NAME_LENGTH} letters A to Z, digits, '_', '-' or '.'"
ISSUED_FOLDER = "issued"
"""Folder of `geocomm keys` beside those of the sites."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class SiteNameError(ValueError):
    """A name that no site can have; the message is one sentence, with a name that is near and good."""


def check_site_name(name: object) -> str:
    """`name` itself; SiteNameError where it breaks the rule."""
    checked = check_name(name, "site")
    if checked == ISSUED_FOLDER or checked.endswith(".pem"):
        near = checked.removesuffix(".pem") + "-site"
        raise SiteNameError(f"site {checked!r}: geocomm keys gives this name to a file of its own; use {near!r}")
    return checked


def check_name(name: object, what: str) -> str:
    """`name`, of a `what` ("site", "job"); SiteNameError where it breaks the rule."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    near = suggested_name(name) if isinstance(name, str) else ""
    raise SiteNameError(
        f"{what} {name!r}: a {what}'s name has {NAME_RULE}, and begins with a letter or digit"
        + (f"; use {near!r}" if near else "")
    )


def suggested_name(name: str) -> str:
    """A good name like `name`, such as sao-paulo for "São Paulo"; empty where no letter of it can be kept."""
    ascii_text = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    words = re.sub(r"[^a-z0-9_.]+", "-", ascii_text)
    return words.lstrip("_.-")[:MAX_NAME_LENGTH].rstrip("_.-")


def site_name(environment: Mapping[str, str] = os.environ) -> str | None:
    """This site, from GEOCOMM_SITE, for programs that have no options."""
    return environment.get("GEOCOMM_SITE") or None

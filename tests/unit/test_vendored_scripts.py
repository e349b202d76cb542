"""Scripts of the documentation's site that lie in the repository: they are the released files, and pages load them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
VENDOR = REPOSITORY / "docs/assets/vendor"


def test_every_script_is_the_released_file_and_has_its_licence() -> None:
    lines = (VENDOR / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    expected = {name: digest for digest, name in (line.split("  ") for line in lines)}
    found = {path.relative_to(VENDOR).as_posix(): path for path in VENDOR.rglob("*.js")}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()} == expected
    assert [name for name, path in found.items() if not (path.parent / "LICENSE").exists()] == []


def test_site_names_every_script_that_is_there_and_no_other() -> None:
    sources = (REPOSITORY / "mkdocs.yml", REPOSITORY / "tools/docs_theme/main.html")
    named = set(re.findall(r"assets/vendor/([\w./-]+\.js)", " ".join(path.read_text("utf-8") for path in sources)))
    assert named == {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*.js")}

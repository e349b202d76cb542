"""The page of a run in a headless Chromium, as people use it: by pointer, by keys, by what a screen reader is told."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chromium import Page

from support.warm_executable import warm_executable

KEYS = {"Tab": 9, "Enter": 13, "Escape": 27}
Node = dict[str, Any]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which `geocomm dashboard` serves the page of the store in `folder`."""
    command = [warm_executable(), "-m", "geocomm", "dashboard", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().split()[0]
        finally:
            process.kill()


def open_drawn(page: Page, address: str) -> None:
    """Open the page of a run, and wait until its curves and steps are drawn."""
    page.open(address)
    assert page.wait_for('charts.length > 0 && document.querySelector("#steps svg") !== null', 90)


def press(page: Page, key: str) -> None:
    """Press a key of KEYS."""
    text = {"text": "\r"} if key == "Enter" else {}
    for kind in ("keyDown", "keyUp"):
        more = text if kind == "keyDown" else {}
        page.command("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=KEYS[key], **more)


def mouse(page: Page, kind: str, at: tuple[float, float], *, down: bool = True, clicks: int = 1) -> None:
    """An event of the pointer, with the left button down."""
    more = {"button": "left", "buttons": 1, "clickCount": clicks} if down else {}
    page.command("Input.dispatchMouseEvent", type=kind, x=at[0], y=at[1], **more)


def accessible(page: Page) -> list[tuple[Node, list[Node]]]:
    """What a screen reader is told: each node that is not left out, with those above it, the outermost first."""
    page.command("Accessibility.enable")
    nodes: list[Node] = page.command("Accessibility.getFullAXTree")["nodes"]
    by_id = {node["nodeId"]: node for node in nodes}

    def above(node: Node) -> list[Node]:
        parent = by_id.get(node.get("parentId", ""))
        return [] if parent is None else [*above(parent), parent]

    return [(node, above(node)) for node in nodes if not node["ignored"]]


def role(node: Node) -> str:
    return node["role"]["value"]


def name(node: Node) -> str:
    return str(node.get("name", {}).get("value", "")).strip()


def value(node: Node, wanted: str) -> Any:
    """A property of a node; None: it does not have it."""
    return next((one["value"].get("value") for one in node.get("properties", []) if one["name"] == wanted), None)

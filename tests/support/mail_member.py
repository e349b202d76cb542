"""A process with a mailbox, which the test drives: a command is a line of JSON, and so is what comes of it."""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from datetime import timedelta
from typing import Any

import torch

from geocomm.core.native import native

TOKEN = bytes(range(16))
ODD_BYTES = 5_000_001
"""Of most rounds: more than one chunk, and not a whole number of them."""
_printing = threading.Lock()


def content_of(site: str, round: int) -> torch.Tensor:
    """What `site` sends in a round; each tenth one is empty."""
    if round % 10 == 9:
        return torch.empty(0, dtype=torch.uint8)
    seed = int.from_bytes(hashlib.sha256(f"{site}/{round}".encode()).digest()[:4])
    return torch.randint(0, 256, (ODD_BYTES,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def digest_of(content: torch.Tensor) -> str:
    return hashlib.sha256(content.numpy().tobytes()).hexdigest()


def tell(**event: Any) -> None:
    with _printing:
        print(json.dumps(event), flush=True)


def main(keys: str, site: str) -> None:
    # So short that it would end other channels.
    endpoint = native().Endpoint(keys=keys, site=site, link_deadline=timedelta(seconds=6))
    mail = native().Mail(endpoint=endpoint, token=TOKEN, max_bytes=ODD_BYTES)
    tell(event="here", id=mail.id.hex(), port=mail.port)
    for line in sys.stdin:
        command = json.loads(line)
        peer = bytes.fromhex(command.get("id", ""))
        match command["do"]:
            case "peer":
                mail.peer(peer, "127.0.0.1", command["port"], command["site"], f"site {command['site']}")
            case "send":
                content = content_of(site, command["round"])
                mail.send(peer, command["round"], 0, torch.cat([content, content[: command.get("extra", 0)]]))
            case "receive":

                def came(
                    content: torch.Tensor | None, why: str, id: str = peer.hex(), round: int = command["round"]
                ) -> None:
                    tell(
                        event="came",
                        id=id,
                        round=round,
                        why=why,
                        digest=None if content is None else digest_of(content),
                    )

                mail.receive(peer, command["round"], 0, came)
            case "end":
                mail.end_round(command["round"])
            case "forget":
                mail.forget(peer)
            case "stats":
                tell(event="stats", rows=[row | {"id": row["id"].hex()} for row in mail.stats()])
            case "close":
                mail.close(10)
                tell(event="closed")
            case unknown:
                raise ValueError(unknown)
    # Not closed, with whatever it still waits for.


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A stream of a site, a relay that gives it out, and keys of readers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch

from geocomm.core.addresses import listen_on
from geocomm.core.loop_in_thread import in_a_loop
from geocomm.data.places import Folder
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Keys
from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader
from geocomm.weights.relay import StreamRelay
from geocomm.weights.stream_sources import StreamSources
from support.weight_streams import model_tensors, moved


class CountingPlace(Folder):
    """A folder that knows what was read of it."""

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), path)
        self.reads: list[str] = []
        self.is_away = False

    def read(self, path: str, start: int = 0, count: int | None = None) -> bytes:
        if self.is_away:
            raise OSError("it is away")
        if start == 0:
            self.reads.append(path)
        return super().read(path, start, count)


@contextlib.contextmanager
def serving(work_of: object, host: str = "127.0.0.1") -> Iterator[str]:
    """`serve(listener)` of something in a thread; yields its URL."""
    listener = listen_on(f"{host}:0")
    with in_a_loop(work_of.serve(listener)):  # type: ignore[attr-defined]
        yield f"tls://{host}:{listener.getsockname()[1]}"


class Region:
    """A stream of a site, and keys for a relay and for readers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ca = JobCa.create(folder / "keys", "run7", ["a"], 30)
        for name in ("relay", "engine", "stranger"):
            self.ca.add(name, 30, reader=True)
        self.tensors = model_tensors()
        self.publisher = WeightPublisher(folder / "stream", self.tensors, keys=self.keys("a"), anchor_every=4)
        self.source = CountingPlace(folder / "stream")
        self.lines: list[str] = []

    def keys(self, name: str) -> Path:
        return self.ca.folder / name

    def publish(self, versions: int = 1) -> None:
        for _ in range(versions):
            moved(self.tensors, 0.01)
            self.publisher.publish(wait=True)

    def sources(self, name: str) -> StreamSources:
        keys = Keys.load(self.keys("relay"), readers=True)
        return StreamSources([self.source], self.folder / name, keys=keys, wait_s=0.5)

    def relay(self, name: str = "cache") -> StreamRelay:
        return StreamRelay(self.sources(name), Keys.load(self.keys("relay"), readers=True), self.lines.append)

    def reader(self, *urls: str) -> tuple[WeightReader, dict[str, torch.Tensor]]:
        into = {name: torch.zeros_like(tensor) for name, tensor in self.tensors.items()}
        return WeightReader(urls, into, keys=self.keys("engine"), wait_s=0.5), into

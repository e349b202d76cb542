"""Streams in a bucket of moto's server, by the keys of GEOCOMM_STORES."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from geocomm.core.errors import DataError
from geocomm.data import places
from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader
from support.object_servers import S3Server, s3_server, web_server, write_tables
from support.weight_streams import equal, model_tensors, moved

URL = "s3://tokens/web/stream"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("bucket")
    with s3_server(folder, "eu") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEOCOMM_STORES", str(write_tables(folder / "stores.toml", {URL: server.table})))
        for cached in (places.open_place, places._tables):
            cached.cache_clear()
        yield server
        for cached in (places.open_place, places._tables):
            cached.cache_clear()


def test_stream_in_a_bucket(server: S3Server, tmp_path: Path) -> None:
    tensors = model_tensors()
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with (
        WeightPublisher(URL, tensors, anchor_every=2) as publisher,
        WeightPublisher(URL, tensors) as second,
        WeightReader(URL, into) as reader,
    ):
        for version in range(1, 7):
            publisher.publish(wait=True)
            if version == 1:
                with pytest.raises(DataError, match="another publisher writes to it"):
                    second.publish(wait=True)
                second._publication.refused = ""  # so that its end is none of an error
            if version != 3:
                assert reader.update() == version
                assert equal(into, tensors)
            moved(tensors, 0.01)
    names = places.open_place(URL, URL).names("versions/")
    assert names == [f"versions/{number:09}.json" for number in (3, 4, 5, 6)]
    with WeightPublisher(URL, tensors) as publisher:
        publisher.publish(wait=True)
        assert publisher.last() == 7
    with WeightReader([str(tmp_path / "nowhere"), URL], tmp_path / "model") as reader:
        assert reader.update() == 7


def test_web_server_that_is_a_copy_of_a_stream(tmp_path: Path) -> None:
    tensors = model_tensors()
    with WeightPublisher(tmp_path / "stream", tensors) as publisher:
        publisher.publish(wait=True)
    files = {
        f"/s/{path.relative_to(tmp_path / 'stream')}": path.read_bytes()
        for path in (tmp_path / "stream").rglob("*")
        if path.is_file()
    }
    into = {name: torch.zeros_like(tensor) for name, tensor in tensors.items()}
    with web_server(files) as web, WeightReader(f"{web.url}/s", into) as reader:
        assert reader.update() == 1
    assert equal(into, tensors)

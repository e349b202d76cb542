"""What somebody on the line between a relay and a reader hears."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from geocomm.core.addresses import Address
from support.hub_support import stream_server
from support.weight_relays import Region, serving
from support.weight_streams import equal

pytestmark = pytest.mark.timeout(120)


async def heard_while_updating(region: Region, relay: Address, version: int) -> bytes:
    """All that crosses while a new reader gets to this version."""
    heard = bytearray()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while content := await source.read(65536):
            heard.extend(content)
            target.write(content)
            await target.drain()
        target.close()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(relay.host, relay.port)
        with contextlib.suppress(OSError):
            await asyncio.gather(pump(reader, back), pump(there, writer))

    async with stream_server("127.0.0.1", carry) as port:
        follower, into = region.reader(f"tls://127.0.0.1:{port}")
        with follower:
            assert await asyncio.to_thread(follower.update) == version
    assert equal(into, region.tensors)
    return bytes(heard)


def test_nothing_of_a_stream_crosses_in_plaintext(region: Region) -> None:
    region.publish(2)
    with serving(region.relay()) as url:
        heard = asyncio.run(heard_while_updating(region, Address.parse(url.removeprefix("tls://")), 2))
    files = [path.read_bytes() for path in (region.folder / "cache").rglob("*") if path.is_file()]
    assert len(heard) > sum(map(len, files)) > 100_000  # it has crossed this line
    for content in files:
        assert all(content[at : at + 16] not in heard for at in range(0, len(content) - 15, 499))
    known = (b"turned", b"bfloat16", b"geocomm_weights", b"sha256")
    words = [word for word in known if any(word in content for content in files)]
    assert len(words) > 1
    assert all(word not in heard for word in (*words, b"frames/"))

"""Files between agents: from several sources, past those that die, lie or have not got them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import math
import random
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from geocomm.core import patience
from geocomm.core.addresses import Address, loopback_listener
from geocomm.elastic.files import fetch, file_server
from geocomm.elastic.files.fetch import Fetcher, Outcome
from geocomm.elastic.files.file_server import FileServer, GetFrame, HeldState
from geocomm.elastic.files.fragment_store import FragmentStore
from geocomm.elastic.journal.messages import Wanted
from geocomm.security.key_folder import Identity
from geocomm.wire import file_ranges
from geocomm.wire.dial import dial
from geocomm.wire.doorway import Doorway
from geocomm.wire.file_ranges import RANGE_BYTES
from geocomm.wire.greeting import Greeting, Purpose
from geocomm.wire.tls_stream import TlsStream
from support.hub_support import make_keys, run, stream_server
from support.local_jobs import free_port

pytestmark = pytest.mark.timeout(120)

CONTENT = random.Random(5).randbytes(3 * RANGE_BYTES + 12345)
FRAME = hashlib.sha256(CONTENT).hexdigest()
WANTED = Wanted(fragment=2, version=9, site="a", frame=FRAME, bytes=len(CONTENT))


def nobody() -> str:
    """An address at which nobody answers."""
    return f"127.0.0.1:{free_port()}"


class Sites:
    """Stores of sites with keys."""

    def __init__(self, folder: Path) -> None:
        self.keys = make_keys(folder / "keys", "abcd")
        self.stores = {site: FragmentStore(folder / site) for site in "abcd"}
        self.lines: list[str] = []
        self.servers: dict[str, FileServer] = {}
        self.connections = 0
        """Made to all of them."""
        self.live = 0
        """Of these, that are there."""

    def fetcher(self, site: str, most_frame_bytes: int = 1 << 40) -> Fetcher:
        return Fetcher(self.stores[site], self.keys[site], self.lines.append, lambda: most_frame_bytes)

    def has(self, site: str) -> bool:
        return self.stores[site].has_frame(2, 9, "a", FRAME)

    @contextlib.asynccontextmanager
    async def serving(self, site: str, get_frame: GetFrame | None = None) -> AsyncGenerator[str]:
        """The address at which a site gives files."""
        server = self.servers[site] = FileServer(self.stores[site], lambda: (4, 1), get_frame)

        async def serve(stream: TlsStream, greeting: Greeting, peer: Identity) -> None:
            self.connections += 1
            self.live += 1
            try:
                await server.serve(stream, peer.site)
            finally:
                self.live -= 1

        listener = loopback_listener()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        task = asyncio.create_task(Doorway(listener, self.keys[site], serve, lambda _: None).serve())
        try:
            yield address
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    @contextlib.asynccontextmanager
    async def two_sources(self) -> AsyncGenerator[tuple[str, str]]:
        """The addresses of a and b, which have the frame."""
        for site in "ab":
            self.stores[site].write_frame(2, 9, "a", [CONTENT])
        async with self.serving("a") as a, self.serving("b") as b:
            yield a, b


def test_a_frame_comes_from_all_who_have_it_past_who_has_not(tmp_path: Path) -> None:
    sites = Sites(tmp_path)

    async def scenario() -> None:
        async with sites.two_sources() as (a, b), sites.serving("c") as c:
            assert await sites.fetcher("d").frame(WANTED, [c]) is Outcome.ABSENT
            assert await sites.fetcher("d").frame(WANTED, [c, nobody()]) is Outcome.ABSENT
            assert await sites.fetcher("d").frame(WANTED, [c], nobody()) is Outcome.ABSENT
            assert await sites.fetcher("d").frame(WANTED, [nobody()], c) is Outcome.ABSENT
            assert await sites.fetcher("d").frame(WANTED, [nobody()]) is Outcome.FAILED
            assert await sites.fetcher("d").frame(WANTED, [nobody()], nobody()) is Outcome.FAILED
            before = time.monotonic()
            assert all(sites.servers[site].idle_since < before for site in "ab")
            assert await sites.fetcher("d").frame(WANTED, [nobody(), c, a, b]) is Outcome.HERE
            assert before < max(sites.servers[site].idle_since for site in "ab") <= time.monotonic()
        assert sites.stores["d"].read_frame(2, 9, "a", FRAME) == CONTENT
        assert not list(tmp_path.rglob("*.part"))

    run(scenario())


def test_a_frame_comes_from_the_own_region_where_it_has_it_and_else_from_others(tmp_path: Path) -> None:
    sites = Sites(tmp_path)

    async def scenario() -> None:
        async with sites.two_sources() as (a, b), sites.serving("c") as c:
            store, keys = sites.stores["d"], sites.keys["d"]
            near = {b}
            fetcher = Fetcher(store, keys, sites.lines.append, near=lambda: near)
            assert await fetcher.frame(WANTED, [a, b]) is Outcome.HERE
            assert sites.servers["a"].idle_since == -math.inf
            assert sites.servers["b"].idle_since > -math.inf
            for gone in ({c}, {nobody()}, {nobody(), c}):  # nobody there has it
                store.frame_path(**WANTED.named).unlink()
                near = gone
                assert await fetcher.frame(WANTED, [a, *gone]) is Outcome.HERE
            assert sites.servers["a"].idle_since > -math.inf

    run(scenario())


def test_a_source_of_the_own_region_that_is_slow_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_FAR_AFTER_S", 0.2)
    sites = Sites(tmp_path)

    async def scenario() -> None:
        with loopback_listener() as hangs:
            near = f"127.0.0.1:{hangs.getsockname()[1]}"
            async with sites.two_sources() as (a, _):
                fetcher = Fetcher(sites.stores["d"], sites.keys["d"], sites.lines.append, near=lambda: [near])
                began = time.monotonic()
                assert await fetcher.frame(WANTED, [a, near]) is Outcome.HERE
                assert time.monotonic() >= began + 0.2
                assert not any(near in line for line in sites.lines)  # it has not even refused

    run(scenario())


def test_what_is_larger_than_the_model_is_not_fetched_and_takes_no_room(tmp_path: Path) -> None:
    sites = Sites(tmp_path)

    async def scenario() -> None:
        async with sites.two_sources() as (a, b):
            fetcher = sites.fetcher("d", len(CONTENT) - 1)
            for size in (len(CONTENT), 2**40, 2**62):
                assert await fetcher.frame(WANTED.model_copy(update={"bytes": size}), [a, b], b) is Outcome.FAILED
            held = HeldState(version=9, bytes=2 * len(CONTENT) - 1, digest="0" * 32)
            assert await fetcher.state(2, held, [a, b]) is Outcome.FAILED
            assert not list(sites.stores["d"].run_dir.rglob("*.part"))
            assert len(sites.lines) == 1
            assert await sites.fetcher("d", len(CONTENT)).frame(WANTED, [a, b]) is Outcome.HERE

    run(scenario())


@pytest.mark.parametrize("bad", ["nowhere", "a" * 64 + ".com:1", "", "0.0.0.0:1"])
def test_source_whose_address_is_none_is_passed_over(tmp_path: Path, bad: str) -> None:
    sites = Sites(tmp_path)

    async def scenario() -> None:
        async with sites.two_sources() as (a, _):
            with pytest.raises(ConnectionError):
                await sites.fetcher("d").states(2, bad, 4, 1)
            assert await sites.fetcher("d").frame(WANTED, [bad, a]) is Outcome.HERE

    run(scenario())


@contextlib.asynccontextmanager
async def cut_after(target: str, bytes_through: int, *, silently: bool = False) -> AsyncGenerator[str]:
    """A way to `target` that dies after so many bytes from there, for good. silently: it stays open."""
    host, port = target.split(":")
    through = 0
    dead = asyncio.Event()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, counted: bool) -> None:
        nonlocal through
        with contextlib.suppress(OSError):
            while content := await reader.read(1 << 16):
                through += len(content) * counted
                if through > bytes_through:
                    dead.set()
                    if silently:
                        await asyncio.Event().wait()
                    break
                writer.write(content)
                await writer.drain()
        writer.transport.abort()

    async def carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if dead.is_set():
            writer.transport.abort()
            return
        far_reader, far_writer = await asyncio.open_connection(host, int(port))
        await asyncio.gather(pump(reader, far_writer, False), pump(far_reader, writer, True))

    async with stream_server("127.0.0.1", carry) as own_port:
        yield f"127.0.0.1:{own_port}"


def test_a_source_that_dies_in_the_middle_is_replaced_by_another(tmp_path: Path) -> None:
    sites = Sites(tmp_path)

    async def scenario() -> None:
        async with sites.two_sources() as (a, b):
            async with cut_after(a, RANGE_BYTES // 2) as dying:
                assert await sites.fetcher("c").frame(WANTED, [dying]) is Outcome.FAILED
                assert not sites.has("c")
            async with cut_after(a, RANGE_BYTES + RANGE_BYTES // 2) as dying:
                assert await sites.fetcher("c").frame(WANTED, [dying, b]) is Outcome.HERE
                assert sites.has("c")

    run(scenario())


def test_a_source_that_falls_silent_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (fetch, file_ranges):
        monkeypatch.setattr(module, "SILENCE_S", 1e6)
    sites = Sites(tmp_path)

    async def scenario() -> None:
        async with sites.two_sources() as (a, b), cut_after(a, RANGE_BYTES // 2, silently=True) as silent:
            assert await sites.fetcher("c").frame(WANTED, [silent, b]) is Outcome.HERE
            assert sites.stores["c"].read_frame(2, 9, "a", FRAME) == CONTENT

    run(scenario())


def test_wrong_bytes_are_never_kept_and_the_right_ones_are_found(tmp_path: Path) -> None:
    sites = Sites(tmp_path)

    async def scenario() -> None:
        async with sites.two_sources() as (a, b):
            path = sites.stores["a"].frame_path(2, 9, "a", FRAME)
            path.write_bytes(CONTENT[:-1] + bytes([CONTENT[-1] ^ 1]))
            assert await sites.fetcher("c").frame(WANTED, [a]) is Outcome.FAILED
            assert not sites.has("c")
            assert await sites.fetcher("c").frame(WANTED, [a, b]) is Outcome.HERE
            assert sites.stores["c"].read_frame(2, 9, "a", FRAME) == CONTENT

    run(scenario())


def test_an_agent_gets_for_others_what_only_it_can_reach(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    sites.stores["a"].write_frame(2, 9, "a", [CONTENT])

    async def scenario() -> None:
        async with sites.serving("a") as a:

            async def get(wanted: Wanted) -> bool:
                return await sites.fetcher("b").frame(wanted, [a]) is Outcome.HERE

            async with sites.serving("b", get) as b:
                assert await sites.fetcher("c").frame(WANTED, [b]) is Outcome.ABSENT
                assert not sites.has("b")
                assert await sites.fetcher("c").frame(WANTED, [nobody()], b) is Outcome.HERE
                assert sites.has("b")
                assert sites.has("c")

    run(scenario())


@pytest.mark.parametrize("lives", [True, False])
def test_a_proxy_that_does_not_answer_is_named_while_it_is_waited_for_and_given_up_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lives: bool
) -> None:
    """One that lives says so, and has long; one that is silent may be gone with its machine."""
    # A busy machine may be silent for a while.
    monkeypatch.setattr(file_ranges, "ANSWER_LIMIT_S", 2.0 if lives else 1e6)
    monkeypatch.setattr(file_ranges, "SILENCE_S", 1e6 if lives else 1.0)
    monkeypatch.setattr(file_ranges, "BEAT_S", 0.2 if lives else 1000)
    monkeypatch.setattr(fetch, "_LOOK_S", 0.05)
    monkeypatch.setattr(patience, "FIRST_WORD_S", 0.1)
    sites = Sites(tmp_path)

    async def never(_: Wanted) -> bool:
        return await asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        async with sites.serving("c", never) as c:
            assert await sites.fetcher("d").frame(WANTED, [], c) is Outcome.FAILED
            name = sites.stores["d"].frame_path(2, 9, "a", FRAME).name
            assert sites.lines[0] == f"waiting for the agent at {c}, which is asked for {name}"
            limit_s = 2 if lives else 1
            assert sites.lines[-1] == f"fetching from {c}: no answer within {limit_s} s to the question for {name}"

    run(scenario())


def test_a_site_gives_its_states_to_two_others_at_a_time_and_frames_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_server, "_TAKES_S", 1e9)
    sites = Sites(tmp_path)
    digest = sites.stores["a"].write_state(1, 3, [CONTENT])
    sites.stores["a"].write_frame(2, 9, "a", [CONTENT])
    held = HeldState(version=3, bytes=len(CONTENT), digest=digest)

    async def scenario() -> None:
        async with sites.serving("a") as a:
            for site in "bc":
                assert await sites.fetcher(site).state(1, held, [a]) is Outcome.HERE
            last = sites.fetcher("d")
            assert await last.state(1, held, [a, nobody()]) is Outcome.BUSY
            assert await last.frame(WANTED, [a]) is Outcome.HERE
            async with sites.serving("b") as b:
                assert await last.state(1, held, [a, b]) is Outcome.HERE
            sites.stores["d"].state_path(1, 3).unlink()
            monkeypatch.setattr(file_server, "_TAKES_S", 0.0)  # the two have gone
            assert await last.state(1, held, [a]) is Outcome.HERE

    run(scenario())


def test_a_state_comes_with_its_digest(tmp_path: Path) -> None:
    sites = Sites(tmp_path)
    digests = [sites.stores["a"].write_state(1, version, [CONTENT, b"momentum"]) for version in (3, 8)]

    async def scenario() -> None:
        async with sites.serving("a") as a:
            fetcher = sites.fetcher("b")
            states = await fetcher.states(1, a, 4, 1)
            assert [(state.version, state.digest) for state in states] == [(3, digests[0]), (8, digests[1])]
            assert await fetcher.states(0, a, 4, 1) == ()
            assert await fetcher.states(1, a, 5, 1) == ()  # entry 5 may have made them void
            assert await fetcher.states(1, a, 4, 2) == ()  # they may be of rounds that the run does not have
            lie = states[1].model_copy(update={"digest": digests[0]})
            assert await fetcher.state(1, lie, [a]) is Outcome.FAILED
            assert await fetcher.state(1, states[1], [a]) is Outcome.HERE
            assert sites.stores["b"].read_state(1, 8) == CONTENT + b"momentum"

    run(scenario())


@pytest.mark.parametrize(
    "line",
    [
        b"{}\n",
        b"\xff\n",
        b'{"kind":"state","fragment":-1,"version":0,"offset":0}\n',
        b'{"kind":"frame","fragment":0,"version":0,"site":"../../keys","frame":"%s","bytes":1,"offset":0,"proxy":true}\n'
        % (b"0" * 64),
        b"x" * 70000,
    ],
)
def test_a_hostile_question_gets_nothing(tmp_path: Path, line: bytes) -> None:
    sites = Sites(tmp_path)

    async def scenario() -> None:
        async with sites.serving("a") as a:
            host, port = a.split(":")
            stream, _ = await dial(
                Address(host, int(port)), sites.keys["b"], Greeting(Purpose.FETCH, bytes(16), 0, "fetch")
            )
            with contextlib.suppress(OSError):
                await stream.write(line)
                assert b"here" not in await stream.read_some(1000)
            stream.close()
            assert await sites.fetcher("b").states(0, a, -1, 0) == ()

    run(scenario())


def test_connections_that_nobody_takes_in_time_are_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "KEPT_S", 0.2)
    sites = Sites(tmp_path)
    sites.stores["a"].frame_path(2, 9, "a", FRAME).parent.mkdir(parents=True, exist_ok=True)
    sites.stores["a"].frame_path(2, 9, "a", FRAME).write_bytes(CONTENT)

    async def main() -> None:
        async with sites.serving("a") as a:
            fetcher = sites.fetcher("d")
            assert await fetcher.frame(WANTED, [a]) is Outcome.HERE
            while sites.live:
                await asyncio.sleep(0.05)
            assert sites.connections > 0

    run(main())

"""Relays over TLS: one copy over the line, readers with keys of their own, and what liars at either end can do."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import shutil
import socket
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import geocomm.weights.relay
import geocomm.weights.stream_sources
from geocomm.core.addresses import Address
from geocomm.core.errors import DataError, InvalidArgumentError
from geocomm.core.records import line_of
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Identity, Keys, KeysError
from geocomm.weights.publisher import WeightPublisher
from geocomm.weights.reader import WeightReader
from geocomm.weights.relay import StreamRelay
from geocomm.weights.relay_place import RelayPlace
from geocomm.weights.stream_sources import StreamSources
from geocomm.weights.stream_version import Hint, frame_path, layout_path, version_path
from geocomm.wire.dial import dial
from geocomm.wire.doorway import Doorway
from geocomm.wire.file_ranges import RANGE_BYTES, RangeAnswer, line
from geocomm.wire.greeting import Greeting, PacketKind, Purpose, SessionRefused, offset_bytes, write_packet
from geocomm.wire.tls_stream import TlsStream
from support.hub_support import PROBE, run, running_hub
from support.weight_relays import CountingPlace, Region, serving
from support.weight_streams import equal, model_tensors, newest_of

pytestmark = pytest.mark.timeout(120)


def test_each_frame_crosses_the_line_once_for_all_readers_of_a_region(region: Region) -> None:
    with serving(region.relay()) as url, contextlib.ExitStack() as readers:
        followers = [region.reader(url) for _ in range(3)]
        for reader, _ in followers:
            readers.enter_context(reader)
        for version in range(1, 7):
            region.publish()
            for reader, into in followers:
                # a relay says for a second what it has heard
                while reader.update() != version:
                    pass
                assert equal(into, region.tensors)
        frames = [path for path in region.source.reads if path.startswith("frames/")]
        assert len(frames) == len(set(frames)) > 0
        late, into = region.reader(url)
        with late:
            region.source.reads.clear()
            assert late.update() == 6
        assert equal(into, region.tensors)
        again, into = region.reader(url)
        region.source.is_away = True  # all of it is at the relay
        with again:
            assert again.update() == 6
        assert equal(into, region.tensors)


def test_relay_keeps_nothing_of_files_that_nobody_has(region: Region) -> None:
    region.publish()
    relay = region.relay()
    with serving(relay) as url:
        keys = Keys.load(region.keys("stranger"), readers=True)
        place = RelayPlace(url, Address.parse(url.partition("://")[2]), keys)

        def ask(numbers: range) -> int:
            for number in numbers:
                for path in (version_path(number), layout_path(f"{number:064x}"), frame_path(number, f"{number:064x}")):
                    with pytest.raises(FileNotFoundError):
                        place.read(path)
            gc.collect()
            return len(gc.get_objects())

        ask(range(100, 110))
        before = ask(range(110, 120))
        assert ask(range(120, 320)) < before + 200
        place.close()


def test_relay_of_a_relay_and_one_that_starts_again_while_its_source_is_away(region: Region) -> None:
    region.publish(2)
    with serving(region.relay("first")) as first:
        keys = Keys.load(region.keys("engine"), readers=True)
        place = RelayPlace(first, Address.parse(first.partition("://")[2]), keys)
        sources = StreamSources([place], region.folder / "second", keys=keys, wait_s=0.5)
        with serving(StreamRelay(sources, keys, region.lines.append)) as second:
            reader, into = region.reader(second)
            with reader:
                assert reader.update() == 2
        place.close()
    assert equal(into, region.tensors)
    region.source.is_away = True
    with serving(region.relay("first")) as first:
        reader, into = region.reader(first)
        with reader:
            assert reader.update() == 2
    assert equal(into, region.tensors)


def test_relays_tell_of_a_newer_version_as_soon_as_there_is_one(
    region: Region, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (geocomm.weights.relay, geocomm.weights.stream_sources):
        monkeypatch.setattr(module, "HELD_S", 60.0)
    region.publish()
    with serving(region.relay("first")) as first, contextlib.ExitStack() as held:

        def sources(url: str, name: str) -> StreamSources:
            keys = Keys.load(region.keys("engine"), readers=True)
            place = RelayPlace(url, Address.parse(url.partition("://")[2]), keys)
            made = StreamSources([place], region.folder / name, keys=keys, wait_s=0.5)
            held.callback(made.close)
            return made

        keys = Keys.load(region.keys("relay"), readers=True)
        second = StreamRelay(sources(first, "second"), keys, region.lines.append)
        number = 2 * geocomm.weights.relay.AT_ONCE
        with serving(second) as url, ThreadPoolExecutor(number) as pool:
            reader, into = region.reader(url)
            with reader:
                waiting = [pool.submit(sources(url, f"{at}").await_newer, 1) for at in range(number)]
                sources(url, "known").await_newer(0)
                assert reader.update() == 1  # those that wait hold nobody up
                assert not any(future.done() for future in waiting)
                region.publish()
                for future in waiting:
                    future.result(30)
                assert reader.update() == 2
    assert equal(into, region.tensors)


@pytest.mark.parametrize("source", ["away", "empty", "the same"])
def test_question_for_a_newer_version_is_answered_where_there_is_none(region: Region, source: str) -> None:
    if source == "the same":
        region.publish()
    with serving(region.relay()) as url:
        keys = Keys.load(region.keys("engine"), readers=True)
        place = RelayPlace(url, Address.parse(url.partition("://")[2]), keys)
        region.source.is_away = source == "away"
        for _ in range(2):
            if source == "the same":
                place.await_newer(1)
            else:
                with pytest.raises(FileNotFoundError):
                    place.await_newer(0)
        place.close()


def test_reader_goes_on_with_another_source_where_the_relay_dies_and_comes_back(region: Region) -> None:
    region.publish()
    with serving(region.relay()) as url:
        reader, into = region.reader(url, str(region.folder / "stream"))
        assert reader.update() == 1
    region.publish()
    assert reader.update() == 2
    assert equal(into, region.tensors)
    reader.close()


def test_relay_that_is_the_only_source_and_dead_is_named(region: Region) -> None:
    region.publish()
    with serving(region.relay()) as url:
        reader, _ = region.reader(url)
        assert reader.update() == 1
    region.publish()
    with pytest.raises(DataError, match=r"no source of weights answers: tls://127\.0\.0\.1"):
        reader.update()
    assert reader.version == 1
    reader.close()


def test_reader_waits_for_a_source_that_is_away_for_a_while(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    region.publish()
    keys = Keys.load(region.keys("relay"), readers=True)
    sources = StreamSources([region.source], region.folder / "waiting", keys=keys, wait_s=30)
    version = sources.version(1)
    before = region.source.read
    back = threading.Timer(1.0, setattr, (region.source, "is_away", False))

    def read(path: str, start: int = 0, count: int | None = None) -> bytes:
        if not back.is_alive() and not back.finished.is_set():
            region.source.is_away = True
            back.start()
        return before(path, start, count)

    monkeypatch.setattr(region.source, "read", read)
    for frame in version.frames.values():
        content = sources.frame(1, frame).read_bytes()
        assert hashlib.sha256(content).hexdigest() == frame.sha256
    assert back.finished.is_set()


def test_closing_a_place_ends_a_dial_that_nobody_answers(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    async def connect(loop: asyncio.AbstractEventLoop, sock: socket.socket, address: object) -> None:
        begun.set()
        await asyncio.sleep(1000)

    monkeypatch.setattr(asyncio.SelectorEventLoop, "sock_connect", connect)
    place = RelayPlace("tls://far", Address("10.91.0.1", 9), Keys.load(region.keys("engine"), readers=True))
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(place.read, "newest.json")
        assert begun.wait(10)
        place.close()
        with pytest.raises(ConnectionAbortedError):
            asked.result(10)
    with pytest.raises(ConnectionAbortedError):
        place.read("newest.json")


def test_relay_needs_keys_and_lets_in_no_other_job(region: Region) -> None:
    region.publish()
    other = JobCa.create(region.folder / "others", "run7", ["a"], 30).folder / "a"
    with serving(region.relay()) as url:
        with pytest.raises(InvalidArgumentError, match="needs keys"):
            WeightReader(url, {})
        with (
            WeightReader(url, model_tensors(), keys=other, wait_s=0.1) as reader,
            pytest.raises(DataError, match=r"not of its job's CA|not signed by this job's CA"),
        ):
            reader.update()
        with pytest.raises(InvalidArgumentError, match="tls://nowhere"):
            WeightReader("tls://nowhere", {}, keys=region.keys("engine"))


# ---- what readers may not


def test_readers_are_let_in_by_no_hub(region: Region) -> None:
    site, reader = Keys.load(region.keys("a")), Keys.load(region.keys("engine"), readers=True)

    async def scenario() -> None:
        async with running_hub(site, 1) as place:
            for purpose in Purpose:
                with pytest.raises((SessionRefused, OSError), match="a reader's: they may fetch streams of weights"):
                    await dial(place.address, reader, PROBE.__class__(purpose, bytes(16), 0, "probe"))
            stream, _ = await dial(place.address, site, PROBE)
            stream.close()

    run(scenario())


def test_readers_can_be_no_hub_and_no_agent(region: Region) -> None:
    """A site that dials a reader's port finds no site there."""
    site, reader = Keys.load(region.keys("a")), Keys.load(region.keys("engine"), readers=True)

    async def scenario() -> None:
        async with running_hub(reader, 1) as place:
            with pytest.raises(KeysError, match="a reader's"):
                await dial(place.address, site, PROBE)

    run(scenario())


def test_relay_answers_nothing_but_questions_for_weights(region: Region) -> None:
    keys = Keys.load(region.keys("engine"), readers=True)
    with serving(region.relay()) as url:
        address = Address.parse(url.partition("://")[2])

        async def scenario() -> None:
            for purpose in set(Purpose) - {Purpose.WEIGHTS}:
                with pytest.raises(SessionRefused, match="this is a relay of weights"):
                    await dial(address, keys, Greeting(purpose, bytes(16), 0, "x"), readers=True)

        run(scenario())


@pytest.mark.parametrize(
    "path",
    [
        *("../keys/a/key.pem", "/etc/passwd", "versions/../../keys/a/key.pem", "frames/000000001/../../newest.json"),
        *("", ".", "versions", "newest.json\x00", "frames/000000001/" + "0" * 64, "layouts/" + "0" * 64),
        "versions/999999999.json",
    ],
)
def test_relay_gives_out_the_files_of_its_stream_alone(region: Region, path: str) -> None:
    region.publish()
    with serving(region.relay()) as url:
        place = RelayPlace(url, Address.parse(url.partition("://")[2]), Keys.load(region.keys("engine"), readers=True))
        assert Hint.model_validate_json(place.read("newest.json")) == newest_of(region.folder / "stream", 1)
        with pytest.raises(FileNotFoundError):
            place.read(path)
        place.close()


@pytest.mark.parametrize(
    "said",
    [
        *(b"\n" * 9 + b"x\n", b"{}\n", b'{"path":"newest.json","start":-1,"count":1}\n', b"x" * 70000 + b"\n"),
        *(b'{"path":"newest.json","start":0,"count":99999999999}\n', b"\xff\n", b"[" * 60000 + b"\n"),
    ],
)
def test_relay_ends_a_connection_that_asks_nonsense_and_serves_on(region: Region, said: bytes) -> None:
    region.publish()
    keys = Keys.load(region.keys("engine"), readers=True)
    with serving(region.relay()) as url:
        address = Address.parse(url.partition("://")[2])

        async def scenario() -> None:
            stream, _ = await dial(address, keys, Greeting(Purpose.WEIGHTS, bytes(16), 0, "weights"), readers=True)
            with contextlib.closing(stream), contextlib.suppress(OSError):
                await stream.write(said)
                while True:
                    await stream.read_some(65536)

        run(scenario(), 30)
        reader, _ = region.reader(url)
        with reader:
            assert reader.update() == 1


# ---- what a relay may lie about


class LyingRelay:
    """A relay with good keys that answers as it likes."""

    def __init__(self, keys: Keys, answer: object) -> None:
        self._keys, self._said = keys, answer

    async def serve(self, listener: socket.socket) -> None:
        await Doorway(listener, self._keys, self._answer, lambda _: None, readers=True).serve()

    async def _answer(self, stream: TlsStream, _: Greeting, __: Identity) -> None:
        await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))
        while True:
            asked = json.loads(await stream.read_line(65536))
            for piece in self._said(asked):  # type: ignore[operator]
                await stream.write(piece)


def _of_folder(folder: Path, change: object) -> object:
    """An honest relay's answers, of which `change(path, content)` makes others."""

    def answer(asked: dict[str, object]) -> Iterator[bytes]:
        path = folder / str(asked["path"])
        if not path.is_file():
            yield line(RangeAnswer(here=False, bytes=0))
            return
        content = change(str(asked["path"]), path.read_bytes())  # type: ignore[operator]
        start, count = int(str(asked["start"])), int(str(asked["count"]))
        yield line(RangeAnswer(here=True, bytes=len(content)))
        yield content[start : start + count]

    return answer


class BreakingRelay(LyingRelay):
    """An honest relay whose connections break within each frame, again and again."""

    def __init__(self, keys: Keys, folder: Path) -> None:
        super().__init__(keys, None)
        self._folder = folder
        self.given: defaultdict[str, list[range]] = defaultdict(list)

    async def _answer(self, stream: TlsStream, _: Greeting, __: Identity) -> None:
        await write_packet(stream, PacketKind.WELCOME, offset_bytes(0))
        while True:
            asked = json.loads(await stream.read_line(65536))
            content = (self._folder / asked["path"]).read_bytes()
            start, count = asked["start"], asked["count"]
            end = min(len(content), start + count)
            breaks = asked["path"].startswith("frames/") and end - start > 20_000
            end = start + (end - start) // 2 if breaks else end
            self.given[asked["path"]].append(range(start, end))
            await stream.write(line(RangeAnswer(here=True, bytes=len(content))) + content[start:end])
            if breaks:
                return


def test_what_came_before_a_connection_broke_is_not_fetched_twice(region: Region) -> None:
    region.publish()
    relay = BreakingRelay(Keys.load(region.keys("relay"), readers=True), region.folder / "stream")
    with serving(relay) as url:
        into = {name: torch.zeros_like(tensor) for name, tensor in region.tensors.items()}
        with WeightReader(url, into, keys=region.keys("engine"), wait_s=60) as reader:
            assert reader.update() == 1
    assert equal(into, region.tensors)
    frames = {path: given for path, given in relay.given.items() if path.startswith("frames/")}
    assert max(map(len, frames.values())) > 3
    for path, given in frames.items():
        whole = sorted(position for one in given for position in one)
        assert whole == [*range((region.folder / "stream" / path).stat().st_size)]


def _forged(path: str, content: bytes) -> bytes:
    if path.startswith("versions/"):
        version = json.loads(content)
        return json.dumps({**version, "step": 12345}).encode()
    return content


def _later(path: str, content: bytes) -> bytes:
    return line_of(Hint.of(77, b"")).encode() if path == "newest.json" else content


def _other_frames(path: str, content: bytes) -> bytes:
    return bytes(len(content)) if path.startswith("frames/") else content


def _huge(path: str, content: bytes) -> bytes:
    return content + bytes(65 << 20) if path.startswith("versions/") else content


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_forged, "signed by nobody who may: the signature of site a is for something else"),
        (_later, "has no versions/000000077.json"),
        (_other_frames, "has other bytes than its version says"),
        (_huge, "has more than [0-9]+ bytes"),
    ],
)
def test_relay_that_lies_is_one_sentence(region: Region, change: object, said: str) -> None:
    region.publish()
    answer = _of_folder(region.folder / "stream", change)
    with serving(LyingRelay(Keys.load(region.keys("relay"), readers=True), answer)) as url:
        reader, into = region.reader(url)
        with reader, pytest.raises(DataError, match=said):
            reader.update()
        assert reader.version == 0
        assert not into["a"].any()
        if change is not _later:  # a number alone costs the time to ask for it, as silence does
            reader, into = region.reader(url, str(region.folder / "stream"))
            with reader:
                assert reader.update() == 1
            assert equal(into, region.tensors)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: iter([b'{"here":true,"bytes":1e99}\n']),
        lambda _: iter([b"{}\n"]),
        lambda _: iter([b"x" * 70000]),
        lambda _: iter([b'{"here":true,"bytes":-4}\n']),
        lambda _: iter([b'{"here":true,"bytes":10}\n', b"12345678901234567890"]),  # more than it was asked for
    ],
)
def test_relay_that_answers_nonsense_is_one_sentence(region: Region, answer: object) -> None:
    region.publish()
    with serving(LyingRelay(Keys.load(region.keys("relay"), readers=True), answer)) as url:
        reader, _ = region.reader(url)
        with reader, contextlib.suppress(DataError):
            assert reader.update() == 0


def test_replayed_older_versions_take_no_reader_back(region: Region) -> None:
    region.publish(2)
    shutil.copytree(region.folder / "stream", region.folder / "old")
    region.publish(2)
    reader, into = region.reader(str(region.folder / "stream"))
    assert reader.update() == 4
    reader.close()
    keys = Keys.load(region.keys("engine"), readers=True)
    back = WeightReader([str(region.folder / "old")], into, keys=keys.folder)
    back._target.version = reader._target.version
    assert back.update() == 4
    assert equal(into, region.tensors)
    back.close()


def test_large_file_comes_in_ranges(region: Region) -> None:
    region.tensors["a"] = torch.randint(0, 255, (3000, 3000), dtype=torch.uint8).view(torch.bfloat16)
    region.publisher.close()
    region.publisher = WeightPublisher(region.folder / "large", region.tensors, keys=region.keys("a"))
    region.source = CountingPlace(region.folder / "large")
    region.publisher.publish(wait=True)
    (size, *_) = sorted(
        (path.stat().st_size for path in (region.folder / "large/frames").rglob("?" * 64)), reverse=True
    )
    assert size > 2 * RANGE_BYTES
    with serving(region.relay()) as url:
        reader, into = region.reader(url)
        with reader:
            assert reader.update() == 1
    assert equal(into, region.tensors)

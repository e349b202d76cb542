"""How old a site's telemetry is at the store, over TLS and over QUIC: `python benchmarks/bench_freshness.py`.

Real reports of a DDP run are sent again, once a second of each rank, over one emulated line at the same time in each
way: by the collector over TLS, by the same with TCP's own pauses before it sends again, and by a prototype over QUIC,
in datagrams and in a stream a report. Bulk over TCP fills the line meanwhile; then the line is cut again and again.
Needs `pip install aioquic` and what `geocomm wan` needs. It prints the tables of benchmarks/results/freshness.md. Ten
minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import datetime
import functools
import os
import secrets
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aioquic.asyncio import QuicConnectionProtocol, serve
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.connection import QuicConnection
from aioquic.quic.events import DatagramFrameReceived, QuicEvent, StreamDataReceived
from bench_telemetry import record, recorded, text_of
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from geocomm.core.addresses import Address, listen_on
from geocomm.core.run_dir import RunDir
from geocomm.core.units import parse_duration, parse_rate
from geocomm.group.rendezvous.hub import Hub
from geocomm.lab.bench.bench_report import Conditions
from geocomm.lab.emulator.emulated_keys import site_environment, site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from geocomm.lab.emulator.local_job import bare_environment
from geocomm.observe.telemetry.collector import Collector
from geocomm.observe.telemetry.report import ReportLine
from geocomm.observe.telemetry.run_store import RunStore
from geocomm.security.key_folder import Keys
from geocomm.wire.tls_stream import TlsStream

PORT, BULK_PORT = 30650, 30651
WAYS = ("tls", "tls with TCP's own pauses", "quic datagrams", "quic streams")
RANKS_OF_A_WAY = 100
"""Way i has the ranks from i times this on."""
DATAGRAM_BYTES = 1100
PENDING = 64
SILENCE_S = 3.0
SETTLE_S = 10.0
SERVER_NAME = "geocomm-hub"
_PART = struct.Struct("<IBB")  # number of the report, part, parts
_TOKEN_BYTES = 32


# The prototype over QUIC.


def certificate() -> tuple[bytes, bytes]:
    """A new certificate and its key, PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, SERVER_NAME)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=2))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(SERVER_NAME)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return made.public_bytes(serialization.Encoding.PEM), key.private_bytes(serialization.Encoding.PEM, *form)


class ReportServer(QuicConnectionProtocol):
    """Takes a token and a first report in stream 0, then reports: parts in datagrams, or one a stream."""

    def __init__(self, *arguments: Any, token: bytes, collector: Collector, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._token, self._collector = token, collector
        self._streams: defaultdict[int, bytearray] = defaultdict(bytearray)
        self._parts: dict[int, dict[int, bytes]] = {}
        self._like = b""

    def quic_event_received(self, event: QuicEvent) -> None:
        """Nothing counts before the token has."""
        if isinstance(event, StreamDataReceived):
            self._streams[event.stream_id] += event.data
            if not event.end_stream:
                return
            content = bytes(self._streams.pop(event.stream_id))
            if event.stream_id == 0:
                if not secrets.compare_digest(content[:_TOKEN_BYTES], self._token):
                    self._quic.close()
                    return
                self._like = content[_TOKEN_BYTES:]
                self._quic.send_stream_data(0, b"!", end_stream=True)
                self.transmit()
            elif self._like:
                self._take(content)
        elif isinstance(event, DatagramFrameReceived) and self._like:
            number, part, parts = _PART.unpack_from(event.data)
            had = self._parts.setdefault(number, {})
            had[part] = event.data[_PART.size :]
            if len(had) == parts:
                self._take(b"".join(had[i] for i in range(parts)))
                del self._parts[number]
            while len(self._parts) > PENDING:
                del self._parts[next(iter(self._parts))]

    def _take(self, content: bytes) -> None:
        unpacker = zlib.decompressobj(zdict=self._like)
        self._collector._keep([ReportLine.read(unpacker.decompress(content))])


class ReportClient(QuicConnectionProtocol):
    """One connection of the sender."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.welcome = asyncio.Event()

    def quic_event_received(self, event: QuicEvent) -> None:
        """The server's answer to the token."""
        if isinstance(event, StreamDataReceived) and event.stream_id == 0:
            self.welcome.set()


class QuicSender:
    """Sends reports over one connection after another: a new one when nothing came back for SILENCE_S."""

    def __init__(self, host: str, secret: Path, *, datagrams: bool) -> None:
        self._host, self._datagrams = host, datagrams
        self._token, self._certificate = secret.read_bytes()[:_TOKEN_BYTES], secret.read_bytes()[_TOKEN_BYTES:]
        self._client: ReportClient | None = None
        self._like = b""
        self._number = 0

    def send(self, text: bytes) -> None:
        """Send it now, or never."""
        self._like = self._like or text
        client = self._client
        if client is None:
            return
        packer = zlib.compressobj(6, zdict=self._like)
        content = packer.compress(text) + packer.flush()
        quic = client._quic
        if self._datagrams:
            self._number += 1
            size = DATAGRAM_BYTES - _PART.size
            parts = [content[at : at + size] for at in range(0, len(content), size)]
            for i, part in enumerate(parts):
                quic.send_datagram_frame(_PART.pack(self._number, i, len(parts)) + part)
            pending = quic._datagrams_pending
            while len(pending) > PENDING:
                pending.popleft()
        else:
            quic.send_stream_data(quic.get_next_available_stream_id(is_unidirectional=True), content, end_stream=True)
        client.transmit()

    async def run(self) -> None:
        """Until cancelled."""
        while not self._like:
            await asyncio.sleep(0.05)
        while True:
            with contextlib.suppress(TimeoutError, ConnectionError):
                await self._connection()

    async def _connection(self) -> None:
        config = QuicConfiguration(
            alpn_protocols=["geocomm"],
            server_name=SERVER_NAME,
            cadata=self._certificate,
            max_datagram_frame_size=1200,
            initial_rtt=0.3,
            verify_mode=ssl.CERT_REQUIRED,
        )
        transport, client = await asyncio.get_running_loop().create_datagram_endpoint(
            lambda: ReportClient(QuicConnection(configuration=config)), local_addr=("0.0.0.0", 0)
        )
        try:
            client.connect((self._host, PORT))
            async with asyncio.timeout(SILENCE_S):
                await client.wait_connected()
                client._quic.send_stream_data(0, self._token + self._like, end_stream=True)
                client.transmit()
                await client.welcome.wait()
            self._client = client
            while True:
                async with asyncio.timeout(SILENCE_S):
                    await client.ping()
                await asyncio.sleep(0.5)
        finally:
            self._client = None
            client.close()
            transport.close()


# The two sites.


async def receive(folder: Path) -> None:
    """The hub's site: a hub, a collector and the QUIC server."""
    listener = listen_on(f"0.0.0.0:{PORT}")
    keys = Keys.load(os.environ["GEOCOMM_KEYS"])
    store = RunStore(folder, write=True)
    collector = Collector(folder, "site0", store, None, lambda: None, print)

    async def no_store(_: str) -> int:
        return 1

    hub = Hub(listener, keys, no_store, print, folder)
    token = secrets.token_bytes(_TOKEN_BYTES)
    public, private = certificate()
    config = QuicConfiguration(is_client=False, alpn_protocols=["geocomm"], max_datagram_frame_size=1200)
    (folder / "server.pem").write_bytes(public + private)
    config.load_cert_chain(folder / "server.pem")
    make = functools.partial(ReportServer, token=token, collector=collector)
    await serve("0.0.0.0", PORT, configuration=config, create_protocol=make, retry=True)
    (folder / "secret.tmp").write_bytes(token + public)
    (folder / "secret.tmp").rename(folder / "secret")
    await asyncio.gather(hub.serve(), collector.serve())


async def send(folder: Path, way: int) -> None:
    """The other site's collector or QUIC sender, and its ranks' reports, for ever."""
    while not (folder / "secret").exists():
        await asyncio.sleep(0.1)
    host = os.environ["MASTER_ADDR"]
    by_rank: defaultdict[int, list[dict[str, Any]]] = defaultdict(list)
    for report in recorded(folder / "reports"):
        by_rank[report["rank"]].append(report)
    own = folder / f"way{way}"
    own.mkdir()
    quic = None
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    if WAYS[way].startswith("tls"):
        if "own pauses" in WAYS[way]:
            TlsStream.retry_each = lambda *_: None
        collector = Collector(
            own, "site1", None, Keys.load(os.environ["GEOCOMM_KEYS"]), lambda: Address(host, PORT), print
        )
        running = asyncio.create_task(collector.serve())
        while not RunDir(own).rank_socket.exists():
            await asyncio.sleep(0.05)
    else:
        quic = QuicSender(host, folder / "secret", datagrams="datagrams" in WAYS[way])
        running = asyncio.create_task(quic.run())

    async def rank(number: int, said: list[dict[str, Any]]) -> None:
        process, sequence = secrets.token_hex(8), 0
        # The same moments in every way.
        at = float(folder.stat().st_ino % 1000) / 1000 + number / len(by_rank)
        due = int(time.time()) + at % 1
        while not running.done():
            due += 1
            await asyncio.sleep(max(0.0, due - time.time()))
            head = {
                "site": "site1",
                "rank": RANKS_OF_A_WAY * way + number,
                "process": process,
                "sequence": sequence,
                "time": time.time(),
            }
            sequence += 1
            text = text_of(said[sequence % len(said)] | head)
            if quic is not None:
                quic.send(text)
            else:
                sender.sendto(zlib.compress(text, 1), str(RunDir(own).rank_socket))

    await asyncio.gather(running, *(rank(number, said) for number, said in enumerate(by_rank.values())))


def bulk(*, receiver: bool, flows: int) -> None:
    """Fill the line from site 1 to site 0, for ever."""
    if receiver:
        listener = socket.create_server(("0.0.0.0", BULK_PORT))

        def drop(connection: socket.socket) -> None:
            while connection.recv(1 << 20):
                pass

        while True:
            threading.Thread(target=drop, args=(listener.accept()[0],), daemon=True).start()

    def fill() -> None:
        connection = socket.socket()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                connection.connect((os.environ["MASTER_ADDR"], BULK_PORT))
                break
            time.sleep(0.2)
        while True:
            connection.sendall(bytes(1 << 16))

    for _ in range(flows):
        threading.Thread(target=fill).start()


def site(folder: Path, flows: int) -> None:
    """What runs at each site, until it is ended."""
    hub = os.environ["NODE_RANK"] == "0"
    parts = ["receive"] if hub else [f"send:{way}" for way in range(len(WAYS))]
    command = [sys.executable, __file__, "--folder", str(folder), "--flows", str(flows), "--part"]
    for process in [subprocess.Popen([*command, part]) for part in [*parts, "bulk"]]:
        if process.wait() != 0:
            raise SystemExit("a part of the site failed")


# What came of it.


class Arrivals:
    """Reports of one way that came: (when, when it was made) of each rank, in the order of arrival."""

    def __init__(self, store: RunStore, way: int, ranks: int) -> None:
        self.of_rank: dict[int, list[tuple[float, float]]] = {rank: [] for rank in range(ranks)}
        for said in store.reports(site="site1"):
            if said.report.rank // RANKS_OF_A_WAY == way:
                self.of_rank[said.report.rank % RANKS_OF_A_WAY].append((said.at, said.report.time))

    def delays(self, since: float, until: float) -> list[float]:
        """Of reports made in that time."""
        return [at - made for rows in self.of_rank.values() for at, made in rows if since <= made < until]

    def ages(self, since: float, until: float) -> list[float]:
        """How old the newest report of each rank is, each 50 ms."""
        found: list[float] = []
        for rows in self.of_rank.values():
            arrived = [at for at, _ in rows]
            newest = [max(made for _, made in rows[: i + 1]) for i in range(len(rows))]
            now = since
            while now < until:
                i = bisect.bisect_right(arrived, now)
                found.append(now - newest[i - 1] if i else now - since)
                now += 0.05
        return found

    def current_after(self, moment: float) -> float:
        """Seconds from then until a report that was made later has come."""
        return min(
            (at - moment for rows in self.of_rank.values() for at, made in rows if made > moment), default=float("inf")
        )


def quantile(values: Sequence[float], q: float) -> float:
    """Of sorted or unsorted values."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else float("nan")


def measure(args: argparse.Namespace, reports: Path) -> None:
    """Run it, and print two tables."""
    link = EmulatedLink(rate_bps=parse_rate(args.rate), delay_s=parse_duration(args.rtt) / 2, loss=args.loss / 100)
    names = ["site0", "site1"]
    ranks = len({report["rank"] for report in recorded(reports)})
    cuts: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as scratch, site_keys(names, None, True) as keys:
        folder = Path(scratch)
        (folder / "reports").write_bytes(reports.read_bytes())
        command = [sys.executable, __file__, "--site", "--folder", scratch, "--flows", str(args.flows)]
        environment = site_environment(bare_environment(), keys)
        with WanRun(EmulatedWan.uniform(2, link), command, environment=environment, keys=keys) as run:
            time.sleep(30)
            since = time.time()
            before = run.control.stats()
            time.sleep(args.steady)
            until = time.time()
            after = run.control.stats()
            time.sleep(SETTLE_S)
            for seconds in map(float, args.cuts.split(",")):
                run.control.set_link(*names, up=False)
                time.sleep(seconds)
                run.control.set_link(*names, up=True)
                cuts.append((time.time(), seconds))
                time.sleep(SETTLE_S + seconds)  # TCP's longest pause
            run.interrupt(signal.SIGTERM)
            run.wait(60)
            lateness = run.report()
        store = RunStore(folder)
        arrivals = [Arrivals(store, way, ranks) for way in range(len(WAYS))]
    print(f"before {before}\nafter {after}\nend {lateness}", file=sys.stderr)
    print(f"{ranks} ranks, {args.rate}, {args.rtt}, {args.loss} % loss, {args.flows} bulk flows, {until - since:.0f} s")
    print("\n| way | reports | missing | delay p50 | p99 | longest | age p50 | p99 |\n|---|" + "---:|" * 7)
    for way, came in zip(WAYS, arrivals, strict=True):
        delays, ages = came.delays(since, until), came.ages(since, until)
        missing = 1 - len(delays) / (ranks * (until - since))
        numbers = [quantile(delays, q) for q in (0.5, 0.99, 1)] + [quantile(ages, q) for q in (0.5, 0.99)]
        print(f"| {way} | {len(delays)} | {missing:.1%} | " + " | ".join(f"{n:.2f} s" for n in numbers) + " |")
    print("\n| black-out | " + " | ".join(WAYS) + " |\n|---|" + "---:|" * len(WAYS))
    for moment, seconds in cuts:
        print(f"| {seconds:.1f} s | " + " | ".join(f"{came.current_after(moment):.1f} s" for came in arrivals) + " |")


def main() -> None:
    """Measure, or be a part of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", default="10mbit")
    parser.add_argument("--rtt", default="200ms")
    parser.add_argument("--loss", type=float, default=1.0, help="percent")
    parser.add_argument("--flows", type=int, default=2, help="of bulk; BBR")
    parser.add_argument("--ranks", type=int, default=8, help="of a site")
    parser.add_argument("--reports", type=Path, help="recorded before; made where it is not there")
    parser.add_argument("--steady", type=float, default=120, help="seconds")
    parser.add_argument("--cuts", default="14,22,30,38,90", help="seconds of the black-outs")
    parser.add_argument("--site", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--part", default="", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.site:
        site(args.folder, args.flows)
    elif args.part == "receive":
        asyncio.run(receive(args.folder))
    elif args.part == "bulk":
        bulk(receiver=os.environ["NODE_RANK"] == "0", flows=args.flows)
    elif args.part:
        asyncio.run(send(args.folder, int(args.part.split(":")[1])))
    else:
        for line in Conditions.here(" ".join(sys.argv)).lines():
            print(line)
        with tempfile.TemporaryDirectory() as scratch:
            reports = args.reports or Path(scratch) / "reports"
            if not reports.exists():
                record(args.ranks, 30, reports)
            measure(args, reports)


if __name__ == "__main__":
    main()

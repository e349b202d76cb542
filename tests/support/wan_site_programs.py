"""Programs that the emulator's tests run at the sites. NODE_RANK 0 is the server. Results: lines of name=value."""

from __future__ import annotations

import hashlib
import os
import random
import socket
import sys
import time

RANK = int(os.environ.get("NODE_RANK", "0"))
SITES = int(os.environ.get("NNODES", "1"))
PORT = int(os.environ.get("MASTER_PORT", "0"))
CANNOT_BBR = 77


def site_address(rank: int) -> str:
    """The address of another site: MASTER_ADDR with its number in place of site 0's."""
    head, _site, last = os.environ["MASTER_ADDR"].rsplit(".", 2)
    return f"{head}.{rank}.{last}"


def accept() -> socket.socket:
    """The first connection to this site."""
    with socket.create_server((site_address(RANK), PORT)) as server:
        return server.accept()[0]


def connect(rank: int = 0, congestion: str | None = None) -> socket.socket:
    """A connection to a site, as soon as it listens."""
    while True:
        connection = socket.socket()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if congestion:
            try:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
            except OSError:
                sys.exit(CANNOT_BBR)
        try:
            connection.connect((site_address(rank), PORT))
        except ConnectionRefusedError:
            connection.close()
            time.sleep(0.05)
        else:
            return connection


def send(megabytes: str, congestion: str | None = None) -> None:
    """Site 1 sends random bytes to site 0: received=, sha256= of each end, started_s= and ended_s= of one clock."""
    total = int(float(megabytes) * 1e6)
    digest = hashlib.sha256()
    if RANK == 0:
        with accept() as connection:
            received = 0
            while data := connection.recv(1 << 20):
                received += len(data)
                digest.update(data)
        print(f"ended_s={time.monotonic()}")
        print(f"received={received}")
    elif RANK == 1:
        block = random.Random(5).randbytes(1_000_003)
        with connect(congestion=congestion) as connection:
            print(f"started_s={time.monotonic()}")
            left = total
            while left > 0:
                piece = block[:left]
                connection.sendall(piece)
                digest.update(piece)
                left -= len(piece)
    if RANK < 2:
        print(f"sha256={digest.hexdigest()}")


def pingpong(count: str) -> None:
    """Site 1 sends a byte and gets it back: min_rtt_s=, and a line round=i as each arrives."""
    rounds = int(count)
    if RANK == 0:
        with accept() as connection:
            while data := connection.recv(1):
                connection.sendall(data)
    elif RANK == 1:
        times = []
        with connect() as connection:
            for i in range(rounds):
                start = time.monotonic()
                connection.sendall(b"x")
                if connection.recv(1) != b"x":
                    sys.exit("the other site hung up")
                times.append(time.monotonic() - start)
                print(f"round={i}", flush=True)
        print(f"min_rtt_s={min(times)}")


def datagrams(count: str, pause_us: str) -> None:
    """Site 1 sends datagrams of 1000 bytes to site 0, which does not answer, and stays until it is ended."""
    if RANK == 1:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(int(count)):
                sender.sendto(bytes(1000), (site_address(0), PORT))
                time.sleep(float(pause_us) / 1e6)
            time.sleep(300)  # packets that the link has not read when the job ends count nowhere


def flood(seconds: str) -> None:
    """Site 1 sends to site 0 over TCP for a while."""
    if RANK == 0:
        with accept() as connection:
            while connection.recv(1 << 20):
                pass
    elif RANK == 1:
        end = time.monotonic() + float(seconds)
        with connect() as connection:
            while time.monotonic() < end:
                connection.sendall(bytes(65536))


def meet() -> None:
    """Every site sends its name to every other: from=<name> for each that arrives."""
    with socket.create_server((site_address(RANK), PORT)) as server:
        for rank in range(SITES):
            if rank != RANK:
                with connect(rank) as connection:
                    connection.sendall(os.environ["GEOCOMM_SITE"].encode())
        for _ in range(SITES - 1):
            connection = server.accept()[0]
            with connection, connection.makefile() as stream:
                print(f"from={stream.read()}", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

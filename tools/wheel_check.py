"""Uses a wheel as a stranger would: `make wheel-check`.

    python tools/wheel_check.py dist --torch 2.11.0 --torch 2.15.0

For each torch an empty environment, in which pip installs that torch and the wheel with its extras train, serve and
data. Then, with no compiler and no header in sight: two sites of one rank over TLS that reduce, a gradient hook, local
steps, an elastic run, `doctor`, `train`, `export` and `serve`. Prints the seconds from an environment with torch to two
ranks that reduce.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from pathlib import Path

TESTED = Path(__file__).with_name("tested_torch.txt")
SHELL_PROGRAMS = ("env", "sh", "bash", "uname", "ldconfig", "true")
"""What Python and torch call besides what the environment has."""
LIMIT_S = 300

TWO_SITES = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import geocomm

dist.init_process_group("geocomm")
ones = torch.full((1 << 20,), float(dist.get_rank() + 1))
dist.all_reduce(ones)
assert torch.equal(ones, torch.full_like(ones, 3.0))

torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(256, 256))
geocomm.ddp_hook(model, "balanced")
model(torch.randn(8, 256)).square().mean().backward()

alone = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(alone.parameters())
outer = geocomm.local_steps(alone, optimizer, geocomm.LocalSettings(every=5))
for _ in range(10):
    alone(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
outer.finish()
total = alone.weight.detach().clone()
dist.all_reduce(total)
assert torch.equal(total, 2 * alone.weight)  # the sites hold the same
print("two sites: right", flush=True)
dist.destroy_process_group()
"""

ELASTIC = """
import torch
import torch.distributed as dist

import geocomm

dist.init_process_group("geocomm")
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.AdamW(model.parameters())
outer = geocomm.local_steps(model, optimizer, geocomm.LocalSettings(every=10))
while outer.run_step < 40:
    model(torch.randn(8, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
outer.finish()
print("elastic: done", flush=True)
dist.destroy_process_group()
"""


class Environment:
    """A venv with one torch and the wheel, and a PATH without compilers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "venv/bin"
        tools = folder / "tools"
        tools.mkdir(parents=True)
        for name in SHELL_PROGRAMS:
            if found := shutil.which(name):
                (tools / name).symlink_to(found)
        kept = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        self.variables = kept | {"PATH": f"{self.bin}:{tools}", "HOME": str(folder)}

    def run(self, *command: str | Path, **variables: str) -> str:
        """Standard output and error of a command of the environment. SystemExit where it fails."""
        return self.wait(self.start(*command, **variables))

    def start(self, *command: str | Path, **variables: str) -> subprocess.Popen[str]:
        program = self.bin / command[0]
        return subprocess.Popen(
            [str(program), *map(str, command[1:])],
            cwd=self.folder,
            env=self.variables | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait(self, process: subprocess.Popen[str]) -> str:
        try:
            told, _ = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            told, _ = process.communicate()
            told += f"\nit did not end within {LIMIT_S} s"
        if process.returncode != 0:
            sys.exit(f"wheel-check: {process.args} ended with {process.returncode}:\n{told[-6000:]}")
        return told

    def install(self, *requirements: str, indexes: list[str]) -> None:
        """With this Python's own pip, so that installing needs no more than the environment has."""
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "-qq", *indexes, *requirements], check=True)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def at_both_sites(environment: Environment, program: str, text: str, *options: str) -> list[str]:
    """What the two sites of a run say, each with a rank of its own."""
    (environment.folder / program).write_text(text)
    hub = f"127.0.0.1:{free_port()}"
    processes = [
        environment.start(
            *("geocomm", "run", "--hub", hub),
            *(option.replace("SITE", site) for option in options),
            *("--", "--nproc-per-node", "1"),
            *(() if options else ("--nnodes", "2", "--node-rank", str(rank))),
            program,
            GEOCOMM_KEYS=f"keys/{site}",
        )
        for rank, site in enumerate("ab")
    ]
    return [environment.wait(process) for process in processes]


@contextlib.contextmanager
def served(environment: Environment, model: str) -> Generator[str]:
    """The address of `geocomm serve MODEL`."""
    port = free_port()
    server = environment.start("geocomm", "serve", model, "--port", str(port))
    address = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + LIMIT_S
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/v1/models", timeout=10):
                break
            if server.poll() is not None or time.monotonic() > end:
                server.kill()
                sys.exit(f"wheel-check: geocomm serve is not ready:\n{server.communicate()[0][-6000:]}")
            time.sleep(0.5)
        yield address
    finally:
        server.terminate()
        server.wait(30)


def check(wheel: Path, torch: str, folder: Path, indexes: list[str]) -> None:
    """All of it with one torch."""
    environment = Environment(folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    environment.install(f"torch=={torch}", indexes=indexes)
    began = time.monotonic()
    environment.install(str(wheel), indexes=indexes)
    installed_s = time.monotonic() - began
    version = environment.run("geocomm", "--version").strip()
    environment.run("geocomm", "keys", "create", "a", "b", "--out", "keys")
    for told in at_both_sites(environment, "two_sites.py", TWO_SITES):
        assert "two sites: right" in told, told
    reduced_s = time.monotonic() - began
    print(
        f"torch {torch}: {version}; installed in {installed_s:.0f} s, two ranks reduced after {reduced_s:.0f} s",
        flush=True,
    )
    options = ("--elastic", "--run-dir", "run-SITE", "--wait-for", "a,b")
    for told in at_both_sites(environment, "elastic.py", ELASTIC, *options):
        assert "elastic: done" in told, told
    assert "native module" in environment.run("geocomm", "doctor")
    print(f"torch {torch}: an elastic run of two sites, doctor", flush=True)

    environment.install(f"{wheel}[train,serve,data]", indexes=indexes)
    settings = ("training.steps=3", "checkpoint.at_end=true", "output_dir=trained")
    environment.run("geocomm", "train", *(part for setting in settings for part in ("--set", setting)))
    environment.run("geocomm", "export", "trained", "model")
    with served(environment, "model") as address:
        body = b'{"model": "model", "prompt": "The ", "max_tokens": 4, "temperature": 0}'
        request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            assert b'"choices"' in answer.read()
    print(f"torch {torch}: train, export, serve", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Use a wheel of geocomm in empty environments.")
    parser.add_argument("folder", type=Path, help="of the wheel for this Python")
    parser.add_argument("--torch", action="append", help="a version (default: all of tools/tested_torch.txt)")
    parser.add_argument("--index-url", help="of torch and the rest, in place of pip's own")
    arguments = parser.parse_args()
    indexes = ["--index-url", arguments.index_url] if arguments.index_url else []
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    wheels = sorted(
        arguments.folder.resolve().glob(f"geocomm-*-{python}-*.whl"), key=lambda wheel: wheel.stat().st_mtime
    )
    if not wheels:
        sys.exit(f"wheel-check: there is no wheel for {python} in {arguments.folder}: make wheel")
    for version in arguments.torch or TESTED.read_text().split():
        with tempfile.TemporaryDirectory(prefix="geocomm-wheel-check-") as folder:
            check(wheels[-1], version, Path(folder), indexes)
    print("make wheel-check: passed")


if __name__ == "__main__":
    main()

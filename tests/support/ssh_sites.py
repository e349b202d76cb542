"""Sites that are reached over ssh: a network namespace each, with a real sshd and a home of its own, and a laptop."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from support.net_spaces import NetSpaces, net_spaces
from support.wan_support import IMPORTS, wait_until

HUB = "10.0.0.1:29400"
_SSHD = """Port 22
HostKey "{folder}/host_key"
PidFile none
AuthorizedKeysFile .ssh/authorized_keys
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
"""


class SshSites:
    """The laptop "l" and sites "a", "b" ..., the first with the hub's address. Each has the folder `home(name)` as its
    root's home, and `python(name)` as a Python that has geocomm."""

    def __init__(self, nets: NetSpaces, folder: Path, names: str) -> None:
        self.nets, self.folder, self.names = nets, folder, names
        self._interfaces: dict[str, str] = {}
        nets.add("sw")
        nets.ip("sw", "link add name sw0 type bridge")
        nets.ip("sw", "link set sw0 up")
        for number, name in enumerate(f"l{names}"):
            nets.add(name, home=self.home(name))
            own, port = nets.link(name, "sw")
            nets.ip(name, f"address add 10.0.0.{number or 100}/24 dev {own}")
            self._interfaces[name] = own
            nets.ip("sw", f"link set {port} master sw0")
            (self.home(name) / ".ssh").mkdir(parents=True, mode=0o700)
        self._keygen(self.home("l") / ".ssh/id_ed25519")
        for number, name in enumerate(names, 1):
            self._start_sshd(name)
            key = (folder / f"sshd-{name}/host_key.pub").read_text()
            with (self.home("l") / ".ssh/known_hosts").open("a") as known:
                known.write(f"10.0.0.{number} {key}")
            with (self.home("l") / ".ssh/config").open("a") as config:
                config.write(f"Host {name}\n  HostName 10.0.0.{number}\n")

    def home(self, name: str) -> Path:
        return self.folder / f"home of {name}"

    def python(self, name: str) -> Path:
        """Below its home, in a path with a space."""
        return self.home(name) / "my env/bin/python"

    def run_folder(self, name: str) -> Path:
        return self.home(name) / "geocomm-up/job" / name

    def log(self, name: str) -> str:
        path = self.run_folder(name) / f"node-{self.names.index(name)}.log"
        return path.read_text() if path.exists() else ""

    def write(self, *, more: str = "", sites: str = "", **of_site: str) -> Path:
        """sites.toml on the laptop. more: its first lines. of_site: lines of a site."""
        text = f'hub = "{HUB}"\nenvironment = {{GEOCOMM_PORT = 29600, OMP_NUM_THREADS = 1}}\n{more}\n'
        for name in sites or self.names:
            own = of_site.get(name, "")
            python = "" if "python" in own else 'python = "~/my env/bin/python"\n'
            text += f"[sites.{name}]\n{'' if 'ssh' in own else f'ssh = {name!r}'}\n{python}{own}\n"
        path = self.home("l") / "work" / "sites.toml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def interface(self, name: str) -> str:
        """Of a machine."""
        return self._interfaces[name]

    def at_laptop(self, *arguments: str, to: Path | None = None) -> subprocess.Popen[str]:
        """`geocomm` in the laptop's folder work, in a session of its own. to: a file of what it says."""
        aside = "" if to is None else ' >"$OUTPUT" 2>&1'
        there = ["sh", "-c", f'cd "$0" && exec "$@"{aside}', str(self.home("l") / "work")]
        command = [sys.executable, "-m", "geocomm", *arguments]
        if to is not None:
            to.touch()
        return self.nets.start("l", *there, *command, HOME=str(self.home("l")), OUTPUT=str(to))

    def _start_sshd(self, name: str) -> None:
        folder = self.folder / f"sshd-{name}"
        folder.mkdir()
        self._keygen(folder / "host_key")
        (folder / "config").write_text(_SSHD.format(folder=folder))
        shutil.copy(self.home("l") / ".ssh/id_ed25519.pub", self.home(name) / ".ssh/authorized_keys")
        python = self.python(name)
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexport PYTHONPATH={IMPORTS}\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        sshd = [str(shutil.which("sshd") or "/usr/sbin/sshd"), "-D", "-f", str(folder / "config")]
        self.nets.start(name, *sshd)
        wait_until(lambda: self.nets.is_listening(name, 22), "sshd listens")

    @staticmethod
    def _keygen(path: Path) -> None:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)


@contextlib.contextmanager
def ssh_sites(folder: Path, names: str = "ab") -> Generator[SshSites]:
    """Such sites; the test is skipped where they cannot be."""
    for program in ("ssh", "ssh-keygen", "rsync"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    if not (shutil.which("sshd") or Path("/usr/sbin/sshd").exists()):
        pytest.skip("sshd is not installed")
    Path("/run/sshd").mkdir(exist_ok=True)
    with net_spaces() as nets:
        yield SshSites(nets, folder, names)

"""The parts of `geocomm doctor` that look at this machine: congestion control, buffers, files, room, ports, GPUs and
this site's folder of keys. All parts of it tell what they found in a `Finding`."""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import shutil
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from geocomm.core.installation import BuildFacts
from geocomm.security.key_exchange import CLASSIC, HYBRID, key_exchange, openssl_version

if TYPE_CHECKING:
    from cryptography import x509

STREAMS_WITH_BBR, STREAMS_WITHOUT = 2, 16
"""To each peer at most, as `stream_plan.h` opens them."""
_IPV4 = "sys/net/ipv4"
_MIB = 1 << 20
_OTHER_FILES = 256  # of Python, torch, data
_TCP_RANGE = (1, 65535)


class State(StrEnum):
    """How bad it is. A bad finding keeps a job from running; a warning costs speed or will be bad one day."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    BAD = "bad"


@dataclass(frozen=True)
class Finding:
    """A line of `geocomm doctor`: what was looked at, what was there, and, where that is not right, what to do."""

    name: str
    value: str
    state: State
    fix: str = ""


def usable_congestion_control() -> str:
    """What geocomm's connections will have here: "bbr" where this process may choose it, else the system's."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        with contextlib.suppress(OSError):
            probe.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"bbr")
        name = probe.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.rstrip(b"\0").decode()


def congestion_findings(usable: str, proc: Path) -> Iterator[Finding]:
    """`usable`: of usable_congestion_control()."""
    name = "congestion control"
    if usable == "bbr":
        yield Finding(name, usable, State.OK)
        return
    why = "; with CUBIC, a little loss leaves a long link nearly empty"
    available = _words(proc / _IPV4 / "tcp_available_congestion_control")
    if "bbr" not in available:
        fix = "as root: modprobe tcp_bbr; echo tcp_bbr > /etc/modules-load.d/bbr.conf; then run this again"
    else:
        allowed = " ".join([*_words(proc / _IPV4 / "tcp_allowed_congestion_control"), "bbr"])
        fix = f'as root: sysctl -w net.ipv4.tcp_allowed_congestion_control="{allowed}"'
    yield Finding(name, f"{usable}, not bbr", State.WARNING, fix + why)
    if _words(proc / _IPV4 / "tcp_slow_start_after_idle") == ["1"]:
        yield Finding(
            "slow start after idle",
            "on",
            State.WARNING,
            f"as root: sysctl -w net.ipv4.tcp_slow_start_after_idle=0; with it, {usable} starts anew after each pause "
            "between steps",
        )


def streams_of(asked: int | None, congestion_control: str) -> int:
    """Streams to each peer."""
    return asked or (STREAMS_WITH_BBR if congestion_control == "bbr" else STREAMS_WITHOUT)


def buffer_findings(rate_bps: float, rtt_s: float, streams: int, proc: Path) -> Iterator[Finding]:
    """Whether each of `streams` may have the buffers that together fill such a link: 2 · rate · RTT / streams."""
    wanted_bytes = math.ceil(2 * rate_bps / 8 * rtt_s / streams)
    wanted_bytes = math.ceil(wanted_bytes / _MIB) * _MIB
    for limit in ("tcp_rmem", "tcp_wmem"):
        words = _words(proc / _IPV4 / limit)
        if len(words) != 3 or not all(word.isdigit() for word in words):
            yield Finding(limit, "cannot be read", State.NOTE)
            continue
        least, usual, most = map(int, words)
        value = f"have {most / _MIB:.3g} MiB, need {wanted_bytes / _MIB:.0f} MiB"
        if most >= wanted_bytes:
            yield Finding(limit, value, State.OK)
        else:
            yield Finding(
                limit,
                value,
                State.WARNING,
                f'as root: sysctl -w net.ipv4.{limit}="{least} {usual} {wanted_bytes}" (2 · rate · RTT / {streams} '
                "streams; to keep it, a file in /etc/sysctl.d)",
            )


def file_findings(peers: int, streams: int) -> Iterator[Finding]:
    """Whether this process may open the sockets that it will need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OTHER_FILES + peers * (streams + 1)
    enough = soft == resource.RLIM_INFINITY or soft >= wanted
    value = f"have {'no limit' if soft == resource.RLIM_INFINITY else soft}, need {wanted} for {peers} peers"
    if enough:
        yield Finding("open files", value, State.OK)
    elif hard == resource.RLIM_INFINITY or hard >= wanted:
        yield Finding("open files", value, State.BAD, f"before the job: ulimit -n {wanted}")
    else:
        yield Finding(
            "open files",
            f"{value} (hard limit {hard})",
            State.BAD,
            f"'* hard nofile {wanted}' in /etc/security/limits.conf, LimitNOFILE={wanted} in a systemd unit, or "
            f"docker run --ulimit nofile={wanted}; then ulimit -n {wanted}",
        )


def space_findings(folder: Path, wanted_bytes: int) -> Iterator[Finding]:
    """Room on the file system of `folder`."""
    name = f"room in {folder}"
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        yield Finding(name, error.strerror or "cannot be read", State.WARNING, f"make {folder}")
        return
    value = f"have {usage.free / 2**30:.1f} GiB free, need {wanted_bytes / 2**30:.0f} GiB"
    if usage.free >= wanted_bytes:
        yield Finding(name, value, State.OK)
        return
    wanted = f"{wanted_bytes / 2**30:.0f} GiB"
    if str(folder).startswith("/dev/shm"):
        fix = f"mount -o remount,size={math.ceil((usage.used + wanted_bytes) / 2**30)}G /dev/shm, or docker run "
        fix += f"--shm-size; NCCL and data loaders share memory through it, {wanted} free is a good start"
    else:
        fix = f"free it up to {wanted}: checkpoints that cannot be written end a run"
    yield Finding(name, value, State.WARNING, fix)


def listen_findings(port: int | None, local_ranks: int, *, outbound_only: bool = False) -> Iterator[Finding]:
    """Whether the pinned ports, one for each rank here, can be listened on."""
    if outbound_only:
        value = "none has to be open to other sites, which this one dials (GEOCOMM_OUTBOUND_ONLY)"
        yield Finding("open ports", value, State.NOTE)
    if port is None:
        if outbound_only:
            return
        yield Finding("ports", "chosen by the kernel", State.NOTE, "behind a firewall, pin them: GEOCOMM_PORT")
        return
    last = port + local_ranks - 1
    name = f"port {port}" if last == port else f"ports {port} to {last}"
    if last > _TCP_RANGE[1]:
        yield Finding(name, f"beyond {_TCP_RANGE[1]}", State.BAD, "a lower GEOCOMM_PORT")
        return
    taken = {number: why for number in range(port, last + 1) if (why := _why_not_listen(number))}
    if not taken:
        yield Finding(name, "free", State.OK)
    for number, why in taken.items():
        fix = "another GEOCOMM_PORT"
        if why == errno.EADDRINUSE:
            fix = f"end what listens there (ss -ltnp 'sport = :{number}'), or {fix}"
        yield Finding(f"port {number}", os.strerror(why), State.BAD, fix)


def _why_not_listen(port: int) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError as error:
            return error.errno or errno.EIO
    return 0


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


LEAST_CAPABILITY = (8, 0)
"""The least of CMAKE_CUDA_ARCHITECTURES in CMakeLists.txt."""
_REBUILD = "GEOCOMM_CUDA=on pip install --no-build-isolation --force-reinstall --no-deps ."


@dataclass(frozen=True)
class Gpu:
    """A GPU as torch names it."""

    name: str
    capability: tuple[int, int]
    """Compute capability: (9, 0) of an H100."""


def gpus_of_torch() -> list[Gpu]:
    """NVIDIA's GPUs that this process can use."""
    import torch

    if not torch.cuda.is_available():
        return []
    every = range(torch.cuda.device_count())
    return [Gpu(torch.cuda.get_device_name(one), torch.cuda.get_device_capability(one)) for one in every]


def gpu_findings(gpus: Sequence[Gpu], torch_cuda: str, driver: str, build: BuildFacts | None) -> Iterator[Finding]:
    """torch_cuda, driver: their versions, "" where there is none; build: None where nothing was built."""
    yield _seen(gpus, torch_cuda, driver)
    if build is not None:
        yield _kernels(gpus, torch_cuda, build)


def _seen(gpus: Sequence[Gpu], torch_cuda: str, driver: str) -> Finding:
    if gpus:
        return Finding("GPUs", ", ".join(f"{count} x {name}" for name, count in _names(gpus).items()), State.NOTE)
    if not driver:
        return Finding("GPUs", "none", State.NOTE)
    if not torch_cuda:
        fix = "install a CUDA build of torch, then build geocomm again; with this torch, training runs on the CPU"
        return Finding("GPUs", "NVIDIA's driver is here, but torch is a CPU build", State.WARNING, fix)
    fix = f"nvidia-smi, CUDA_VISIBLE_DEVICES, and whether the driver {driver} is new enough for CUDA {torch_cuda}"
    return Finding("GPUs", "NVIDIA's driver is here, but torch sees no GPU", State.WARNING, f"look at {fix}")


def _kernels(gpus: Sequence[Gpu], torch_cuda: str, build: BuildFacts) -> Finding:
    name = "CUDA kernels"
    if build.cuda_kernels:
        older = _names([gpu for gpu in gpus if gpu.capability < LEAST_CAPABILITY])
        if older:
            least = ".".join(map(str, LEAST_CAPABILITY))
            fix = f"use GPUs of compute capability {least} or later; for others the CPU compresses, to the same bytes"
            return Finding(name, f"in this build, but not for {', '.join(older)}", State.WARNING, fix)
        return Finding(name, "in this build", State.OK)
    value = f"not in this build{f': {build.why_no_cuda}' if build.why_no_cuda else ''}"
    if not gpus:
        return Finding(name, value, State.NOTE)
    fix = (
        f"put the nvcc of CUDA {torch_cuda} (torch's) on PATH, and in geocomm's source tree: {_REBUILD}; without them "
        "the CPU compresses what GPUs send, and wait() blocks the host"
    )
    return Finding(name, value, State.WARNING, fix)


def has_kernels_for(gpus: Sequence[Gpu], build: BuildFacts | None) -> bool:
    """Whether every one of them can run the kernels of this build."""
    runs = all(gpu.capability >= LEAST_CAPABILITY for gpu in gpus)
    return bool(gpus) and runs and build is not None and build.cuda_kernels


def coding_finding(places: Mapping[str, int | None], *, in_batches: bool) -> Finding:
    """Where collectives of CUDA tensors are coded: by codec, from how many bytes on the GPU is sooner; None: never."""
    named: dict[str, list[str]] = {}
    for codec, least in places.items():
        on = "on the host" if least is None else f"on the GPU{f' from {least / _MIB:.1f} MiB on' if least else ''}"
        named.setdefault(on, []).append(codec)
    value = "; ".join(f"{on}: {', '.join(codecs)}" for on, codecs in named.items())
    if in_batches:
        return Finding("coded sooner", value, State.NOTE)
    return Finding("coded sooner", f"{value} (heeded with GEOCOMM_GPU_BATCHES=1 alone)", State.NOTE)


def _names(gpus: Sequence[Gpu]) -> Counter[str]:
    return Counter(gpu.name for gpu in gpus)


_RENEW_BEFORE = timedelta(days=14)
"""As the alert CertificateExpiry."""


def keys_findings(folder: str | None, site: str | None, *, insecure: bool) -> Iterator[Finding]:
    """Whether the keys in `folder` (None: there are none) let `site` into its job, now and for some time."""
    if insecure:
        yield Finding(
            "security", "insecure", State.WARNING, "what crosses the sites can be read and changed; see geocomm keys"
        )
    if folder is None:
        if not insecure:
            fix = "geocomm keys create makes them; then set GEOCOMM_KEYS. Without them only loopback is let through"
            yield Finding("keys", "none", State.WARNING, fix)
        return
    try:
        from cryptography import x509

        from geocomm.security.key_folder import CERTIFICATE_FILE, Keys, KeysError
    except ImportError as error:
        yield Finding("keys", str(error), State.BAD, "pip install cryptography")
        return
    path = Path(folder)
    try:
        keys = Keys.load(path)
        certificate = x509.load_pem_x509_certificate((path / CERTIFICATE_FILE).read_bytes())
        yield from _authority(path, certificate)
    except KeysError as error:
        yield Finding("keys", folder, State.BAD, str(error))
        return
    except (OSError, ValueError) as error:
        yield Finding("keys", folder, State.BAD, f"{error}; make new ones with geocomm keys create")
        return
    renew = f"geocomm keys renew {keys.identity.site} where the CA's key is, and copy the folder here"
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    value = f"{keys.identity.uri}, {left.days} days left"
    yield Finding("keys", value, *((State.OK, "") if left > _RENEW_BEFORE else (State.WARNING, renew)))
    if site is not None and site != keys.identity.site:
        fix = f"GEOCOMM_SITE={keys.identity.site}, or the folder of keys of site {site}"
        yield Finding("site of the keys", f"{keys.identity.site}, but GEOCOMM_SITE is {site}", State.BAD, fix)


def key_exchange_finding() -> Finding:
    """Whether what crosses the sites stays secret from who records it and has a quantum computer later."""
    if key_exchange() == HYBRID:
        return Finding("key exchange", f"{HYBRID}, {CLASSIC} with peers whose OpenSSL is older than 3.5", State.OK)
    version = ".".join(map(str, openssl_version()))
    return Finding("key exchange", f"{CLASSIC}; {HYBRID} needs OpenSSL 3.5, this is {version}", State.NOTE)


def _authority(folder: Path, certificate: x509.Certificate) -> Iterator[Finding]:
    """Whether the folder's CA signed the certificate, and has not revoked it."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    from geocomm.security.key_folder import CA_FILE, REVOKED_FILE

    signed = False
    authorities = x509.load_pem_x509_certificates((folder / CA_FILE).read_bytes())
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        signed = True
        if authority.not_valid_after_utc < datetime.now(UTC):
            yield Finding("job's CA", "expired", State.BAD, "new keys for all sites: geocomm keys create")
    if not signed:
        fix = "copy the whole folder of this site again: its files are of more than one geocomm keys create"
        yield Finding("job's CA", f"{CA_FILE} did not sign the certificate", State.BAD, fix)
    if not (folder / REVOKED_FILE).exists():
        return
    revoked = x509.load_pem_x509_crl((folder / REVOKED_FILE).read_bytes())
    newest = f"copy the newest {REVOKED_FILE} from where the CA's key is"
    if not any(revoked.is_signature_valid(authority.public_key()) for authority in authorities):  # type: ignore[arg-type]
        yield Finding(REVOKED_FILE, "not of this job's CA", State.BAD, newest)
    if revoked.get_revoked_certificate_by_serial_number(certificate.serial_number) is not None:
        yield Finding("keys", "revoked", State.BAD, "geocomm keys renew SITE, and copy the folder here")
    if revoked.next_update_utc is not None and revoked.next_update_utc < datetime.now(UTC):
        yield Finding(REVOKED_FILE, "expired", State.BAD, newest)

"""Types of the native module. tests/unit/test_stub.py checks them against the module."""

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Backend as C10dBackend
from torch._C._distributed_c10d import Work as C10dWork
from torch.distributed import Backend as _PythonBackend  # noqa: F401  # pyright: ignore[reportUnusedImport] - torch's string type

__torch_version__: str

# Bytes per second and one-way seconds, both [from * sites + to]; limits of the sites, empty where unknown.
_Links = tuple[list[float], list[float], list[float], list[float], list[int], list[float]]

# Links; (from so many bytes on, codec); (codec, seconds for a byte to encode, decode and copy on the host).
_Policy = tuple[_Links, list[tuple[int, CodecSpec]], list[tuple[CodecSpec, float, float, float]]]

class Endpoint:
    """This process's listener and its channels to peer processes; shared by all process groups.

    It closes when the last user is gone: users are the process groups, and whoever called `acquire`.
    """

    def __init__(
        self,
        *,
        bind_address: str = "",
        port: int = 0,
        streams: int = 0,
        insecure: bool = False,
        keys: str = "",
        site: str = "",
        link_deadline: timedelta = ...,
        believed_refusal: timedelta = ...,
        outbound_only: bool = False,
        max_pacing_bps: int = 0,
        threads: int = 1,
        rdma_plugin: str = "",
        rdma_trusted: bool = False,
        rdma_allow_tcp: bool = False,
    ) -> None: ...
    @property
    def id(self) -> bytes: ...
    @property
    def port(self) -> int: ...
    def acquire(self) -> bool: ...
    def release(self) -> bool: ...
    def channel_stats(self) -> list[dict[str, Any]]: ...
    def buffer_usage(self) -> dict[str, int]: ...
    def forget_others(self, kept: list[bytes]) -> None:
        """Ends the channels that have failed, and those with processes whose ids are not among `kept`."""

    def expect_rates(self, bytes_per_s: dict[str, float]) -> None: ...

class Mail:
    """A mailbox between processes of independent jobs, over the channels of an endpoint.

    Content is named by its sender, a round (below 2**63) and a part (below 2**62). All methods are thread-safe.
    A peer is lost when somebody says so (`forget`), when its process ends in good order, or when it has not the
    certificate of its site: silence, refusals and broken connections only make it wait.
    """

    def __init__(self, *, endpoint: Endpoint, token: bytes, max_bytes: int) -> None:
        """The mail is a user of `endpoint`. token: 16 bytes that all members know. max_bytes: of one content."""

    @property
    def id(self) -> bytes:
        """The 16 bytes that name this process: a process that starts again has others."""

    @property
    def port(self) -> int: ...
    def peer(self, id: bytes, host: str, port: int, site: str, description: str) -> None:
        """Connects to a process, which must do the same. A known one gets the new address; a failed channel is made
        anew. site: whose certificate it must have ("": any of the job)."""

    def send(self, peer: bytes, round: int, part: int, content: torch.Tensor) -> None:
        """Queues `content` (uint8, CPU, contiguous, may be empty), and never blocks.

        The memory is shared until the content is sent, and must not change. Content is dropped without a word if the
        peer is unknown, forgotten or lost, or if the round has ended.
        """

    def receive(self, peer: bytes, round: int, part: int, then: Callable[[torch.Tensor | None, str], None]) -> None:
        """Calls `then` once, on some thread: with (content, ""), or with (None, why it will not come).

        It will not come if the round ends, the peer is unknown, forgotten or lost, the mail is closed, or the content
        is longer than `max_bytes`. A part of a round is received once from each peer.
        """

    def end_round(self, round: int) -> None:
        """Ends a round here: receives end, what is queued is dropped, what still comes is thrown away.

        Whoever does not end its rounds keeps something of each.
        """

    def forget(self, peer: bytes) -> None:
        """Ends the channel with a process for good: its receives end, what is queued for it is dropped."""

    def stats(self) -> list[dict[str, Any]]:
        """One row for each peer.

        id, description, site; state: "connecting" (also again), "connected" or "failed: why"; bytes_sent and
        bytes_received, heartbeats included; resumes: connections that took the place of lost ones; silent_seconds:
        since the last byte came, None if none did.
        """

    def close(self, seconds: float) -> None:
        """Sends what is queued, for up to `seconds`, then lets go of the endpoint, whose last user closes it."""

class ProcessGroupGeocomm(C10dBackend):
    """The c10d backend of one process group."""

    class Options(C10dBackend.Options):
        def __init__(self, timeout: timedelta = ...) -> None: ...

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        timeout: timedelta,
        inner: dict[str, tuple[C10dBackend, C10dBackend]],
        site_of_rank: list[int],
        site_names: list[str],
        endpoint: Endpoint | None = None,
        group: int = 0,
        token: bytes = b"",
        peers: list[tuple[bytes, str, int, str, bool, int]] = ...,
        policy: _Policy | None = None,
        min_compress_bytes: int = 65536,
        preserve_inputs: bool = False,
        split: Callable[[ProcessGroupGeocomm, list[int], C10dBackend.Options], C10dBackend | None] | None = None,
        on_shutdown: Callable[[], None] | None = None,
    ) -> None: ...
    @property
    def options(self) -> ProcessGroupGeocomm.Options: ...
    @property
    def spans_sites(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    def perform_nocolor_split(self, device: torch.device) -> None: ...
    def stats(self) -> dict[str, Any]: ...
    def all_reduce_compressed(
        self,
        tensor: torch.Tensor,
        codec: str,
        residual: torch.Tensor | None,
        average: bool,
        decay: float = 1.0,
        next_residual: torch.Tensor | None = None,
        scale: torch.Tensor | None = None,
    ) -> FeedbackWork:
        """All-reduce `tensor` (float32, float16, bfloat16; any shape) in place: the sum, or the mean, with `codec`.

        Every rank passes the same codec; it is used in place of the group's, from the group's min_compress_bytes on
        (below that: "none"). residual: float32, on the tensor's device, contiguous, 1-D, one element for each of
        `encoded_range`, in units of the sum; what the codec lost in the last operation of this tensor. The rank sends
        v = element + decay * residual (Seide et al. 2014), and what v loses becomes the residual when the operation
        succeeds with a finite result; else the residual keeps its bits. It must not be touched before the Work is
        done. Exact codecs add it and leave zero, but for what a 16-bit dtype cannot hold. None: the codec works
        without, and those that need a residual raise UnsupportedError. CUDA: all of it is enqueued, and the codec works
        on pinned copies.
        next_residual: like residual, other memory; takes the new residual (garbage unless committed, see feedback()),
        and `residual` is only read: no copy of it is made. scale: like residual, powers of two, equal on all ranks for
        an element; the codec gets v / scale, so that what it loses is in proportion to it. InvalidArgumentError:
        another shape, dtype or device of these. One site: a plain all-reduce.
        """

    def encoded_range(self, numel: int, dtype: torch.dtype) -> tuple[int, int]:
        """The elements [start, stop), of a flat tensor of `numel`, that this rank encodes in `all_reduce_compressed`.

        (0, 0) in a group inside one site; empty where a site has more ranks than there are parts.
        """

    def set_policy(self, policy: _Policy) -> None: ...
    def take_rates(self) -> list[tuple[int, int, float]]: ...

class ReconfigurableGroup(C10dBackend):
    """The c10d backend of a group whose ranks change: forwards to that of the ranks that are there. From torch 2.14."""

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        timeout: timedelta,
        handle: Callable[[], str],
        reconfigure: Callable[[ReconfigurableGroup, int, list[str] | set[str], timedelta | None], None],
        on_shutdown: Callable[[], None] | None,
    ) -> None:
        """reconfigure: is given this group, a uuid, the handles and the timeout; it calls leave() and adopt()."""

    @property
    def options(self) -> ProcessGroupGeocomm.Options: ...
    @property
    def current(self) -> ProcessGroupGeocomm | None:
        """The group of the ranks that are there; None: nobody is."""

    def adopt(self, members: ProcessGroupGeocomm) -> None:
        """Forwards to `members` from now on, and takes over its rank and size."""

    def leave(self) -> None:
        """Ends the group of before, once what is in flight has ended or some seconds have passed."""

class FeedbackWork(C10dWork):
    """The Work of `all_reduce_compressed`."""

    def feedback(self) -> dict[str, Any]:
        """What became of the residual; only when the operation is done (else InvalidArgumentError).

        committed: bool, whether the residual was updated: it was passed, the operation succeeded, all elements of the
        result are finite (equal on all ranks where it succeeded); input_square: float, squared L2 norm of what this
        rank encoded (v above, in units of the sum); residual_square: float, that of the new residual, committed or
        not; result_square: float, that of the result, finite if and only if all its elements are (0 in a group inside
        one site); scaled_square: float, that of the rank's part of the result over scale (0 without); with scale,
        input_square and residual_square are of values over it too; wire_bytes: int, compressed bytes that this rank
        sent, relayed ones left out (0 where the frames are made on a GPU).
        CUDA, where wait() blocks a stream: this blocks the host until the operation is done; committed and
        result_square are of this rank's part of the result (0 without residual).
        """

    def succeeded(self) -> bool:
        """Blocks the host until the operation has ended, on a GPU too."""

class CodecSpec:
    """A codec with its settings and entropy stage (codec_spec.h). It does not change; equal ones compare so.

    str() is its canonical string: settings that are as by default are left out.
    """

    @staticmethod
    def parse(text: str) -> CodecSpec:
        """Of a preset or codec string. Raises InvalidArgumentError, which names the nearest right spelling."""

    def with_setting(self, key: str, value: str) -> CodecSpec:
        """The same with another value of one setting. Raises InvalidArgumentError as `parse` does."""

    def expected_bytes_per_element(self, dtype: str = "float32") -> float: ...
    @property
    def family(self) -> str:
        """The codec's name without settings and stage; a preset has that of what it stands for."""

    @property
    def settings(self) -> dict[str, str]:
        """All settings that the family takes, those as by default included."""

    @property
    def given(self) -> tuple[str, ...]:
        """The settings that the string named. It has no part in comparisons."""

    @property
    def stage(self) -> str: ...
    @property
    def exact(self) -> bool:
        """Whether nothing is lost."""

    @property
    def needs_feedback(self) -> bool:
        """Whether only error feedback keeps what the codec drops."""

    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class CostModel:
    """What an operation over the WAN costs (csrc/collective/policy): `all_reduce`, `reduce_scatter` or `all_gather`."""

    def __init__(self, sites: int, links: _Links) -> None: ...
    def choice(self, wire_bytes: float, pattern: str = "all_reduce", coding_s: float = 0.0) -> dict[str, Any]: ...
    def schemes(self, wire_bytes: float, pattern: str = "all_reduce") -> list[dict[str, Any]]: ...

def choose_relays(sites: int, links: _Links) -> list[tuple[int, int, int]]: ...
def compress(
    tensor: torch.Tensor,
    codec: str,
    residual: torch.Tensor | None = None,
    seed: int = 0,
    decay: float = 1.0,
    out: torch.Tensor | None = None,
    threads: int = 0,
) -> torch.Tensor: ...
def decompress(
    payload: torch.Tensor,
    out: torch.Tensor | None = None,
    add: bool = False,
    max_elems: int | None = None,
    threads: int = 0,
) -> torch.Tensor: ...
def make_delta(tensor: torch.Tensor, base: torch.Tensor, threads: int = 0) -> torch.Tensor: ...
def apply_delta(delta: torch.Tensor, tensor: torch.Tensor, threads: int = 0) -> None: ...
def compress_bound(tensor: torch.Tensor, codec: str) -> int: ...
def learn_scales(
    values: torch.Tensor,
    first: int,
    weight: float,
    floor_bits: int,
    mean_square: torch.Tensor,
    scale: torch.Tensor,
) -> None: ...
def outer_delta(
    anchor: torch.Tensor, local: Sequence[torch.Tensor], delta: torch.Tensor, kept: torch.Tensor | None = None
) -> float: ...
def outer_mean(deltas: Sequence[torch.Tensor], shares: Sequence[float], mean: torch.Tensor) -> float: ...
def outer_step(
    lr: float, mu: float, delta: torch.Tensor, anchor: torch.Tensor, momentum: torch.Tensor | None = None
) -> tuple[float, float]: ...
def outer_carry(own: Sequence[torch.Tensor], anchor: torch.Tensor, begin: torch.Tensor) -> None: ...
def outer_blend(own: Sequence[torch.Tensor], anchor: torch.Tensor, keep: float) -> None: ...
def wait_in_background() -> None: ...
def set_codec_threads(threads: int) -> None: ...
def codec_names() -> list[str]: ...
def codec_presets() -> list[tuple[str, str]]: ...
def cpu_level() -> str: ...
def detected_cpu_level() -> str: ...
def set_cpu_level(level: str) -> None: ...
def use_device_batches(uses: bool) -> None: ...
def code_on_device_from(codec: str, least_bytes: int | None) -> None: ...
def set_error_classes(classes: Mapping[str, type[BaseException]]) -> None: ...
def op_log(after: int = 0) -> list[dict[str, Any]]: ...
def last_error() -> dict[str, Any] | None: ...
def set_log_level(level: int) -> None: ...
def log(line: str) -> None: ...
def set_log_json(fields: str) -> None: ...

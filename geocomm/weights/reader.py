"""Follows a stream of weights: gets from the version that is here to the newest one, by the fewest bytes."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path
from typing import NamedTuple, Self

import torch

from geocomm.codecs.tensor_codec import apply_delta, decompress
from geocomm.core.bad_input import BadInput
from geocomm.core.errors import DataError, GeocommError, InvalidArgumentError
from geocomm.core.message_log import logger
from geocomm.core.patience import said_while
from geocomm.data.places import error_line
from geocomm.security.key_folder import Keys
from geocomm.weights.reader_targets import ReaderTarget, TensorsInPlace
from geocomm.weights.relay_place import open_source
from geocomm.weights.stream_sources import SilentError, StreamSources
from geocomm.weights.stream_version import FrameFile, WeightVersion, part_digest
from geocomm.weights.trained_tensors import Tensors
from geocomm.weights.weight_folder import WeightFolder
from geocomm.weights.weight_layout import coded

WAIT_S = 120.0
"""How long sources that do not answer are asked again, by default."""
_FRAMES_AT_ONCE = 4
_VERSIONS_AT_ONCE = 16
_TRIES = 3
_LOOK_S = 1.0


class _OtherBaseError(DataError):
    """What is here is not the version that it is taken for."""


class VersionStep(NamedTuple):
    """One version on the way: the frame of each part, or all of them whole."""

    version: WeightVersion
    frames: tuple[FrameFile, ...]


class WeightReader:
    """Follows a stream of weights, into tensors in place.

    A version counts only once the bytes of all tensors have its hashes. What is missing, damaged, forged or of another
    model is one sentence in a DataError, and the tensors stay at the version that they have.

    Args:
        sources: Where the stream is: a folder, a bucket's URL, or `tls://host:port` of a `geocomm subscribe --listen`.
            Of several, the first that has a file gives it: name the one of the own region first.
        into: A module, or tensors by name, on any device; names, shapes and dtypes must be those of the stream. Or a
            path: the folder of safetensors that `geocomm subscribe` makes.
        keys: A folder of keys; None: GEOCOMM_KEYS. With keys, only versions that a site of the job has signed count.
            `tls://` needs them. Those of a reader will do.
        publisher: The site whose versions count; None: any of the job.
        rate: The most bytes a second that are fetched; None: as fast as it goes.
        wait_s: Seconds for which sources that do not answer are asked again.
        cache: Where frames are kept until they are used; None: beside the folder, or in a temporary one.
        threads: The most CPU threads that unpack; None: GEOCOMM_THREADS, else this process's share of the cores.
        swap: For tensors that are used meanwhile: called in `update` with a version's number and with what copies it
            into the tensors, which it has to call before it returns.

    Raises:
        InvalidArgumentError: A source, the keys or `into` cannot be used.

    Example:
        Weights for rollouts:

            reader = geocomm.WeightReader(["tls://relay:29700", "s3://bucket/run7"], policy)
            if reader.update() != version:
                version = reader.version
    """

    def __init__(
        self,
        sources: str | Sequence[str],
        into: Tensors | str | Path,
        *,
        keys: str | Path | None = None,
        publisher: str | None = None,
        rate: float | None = None,
        wait_s: float = WAIT_S,
        cache: str | Path | None = None,
        threads: int | None = None,
        swap: Callable[[int, Callable[[], None]], None] | None = None,
    ) -> None:
        urls = [sources] if isinstance(sources, str) else list(sources)
        if not urls:
            raise InvalidArgumentError("weights: no source is named")
        self._held = ExitStack()
        try:
            loaded = Keys.given(keys, readers=True)
            places = [open_source(url, loaded) for url in urls]
            if isinstance(into, str | Path):
                self._target: ReaderTarget = WeightFolder(Path(into))
                cache = cache or frames_beside(Path(into))
            else:
                self._target = TensorsInPlace(into, swap)
            if cache is None:
                cache = self._held.enter_context(tempfile.TemporaryDirectory(prefix="geocomm-weights-"))
        except BadInput as error:
            raise InvalidArgumentError(f"weights: {error}") from None
        self._sources = StreamSources(
            places, Path(cache), keys=loaded, publisher=publisher or "", rate=rate, wait_s=wait_s
        )
        self._follower = StreamFollower(self._sources, self._target, threads)
        self._held.callback(self._follower.close)

    @property
    def version(self) -> int:
        """Number of the version that the tensors have; 0: none yet."""
        return 0 if self._target.version is None else self._target.version.number

    @property
    def step(self) -> int | None:
        """What `publish` was told of that version."""
        return None if self._target.version is None else self._target.version.step

    def update(self, *, first_within_s: float | None = None) -> int:
        """Get to the newest version. While that is fetched and unpacked, the tensors stay as they are.

        Args:
            first_within_s: Seconds to wait for a stream that has no version yet, or whose sources do not answer yet.
                After 10 s the log says so. None: not at all.

        Returns:
            Number of the version that the tensors have now; 0: the stream has none yet.

        Raises:
            DataError: It cannot be had, or there is none in time; the tensors are as they were.
        """
        self._follower.update(first_within_s)
        self._sources.forget_before(self.version + 1)
        return self.version

    def close(self) -> None:
        """Close connections, and remove what is temporary."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def frames_beside(folder: Path) -> Path:
    """Where the frames of a model's folder are kept."""
    return folder.absolute().with_name(f".{folder.name}.stream")


class StreamFollower:
    """Brings a target to the newest version of what sources have."""

    def __init__(self, sources: StreamSources, target: ReaderTarget, threads: int | None = None) -> None:
        self._sources, self._target, self._threads = sources, target, threads
        self.took_s = 0.0
        """What the last newer version took, without the wait for it."""

    def close(self) -> None:
        """Let go of sources and target."""
        self._sources.close()
        self._target.close()

    def update(self, limit_s: float | None = None) -> bool:
        """Get to the newest version; whether it is a newer one. DataError: it cannot be had, or there is none in time.

        limit_s: how long to wait where there is none at all yet, or no source answers; None: not at all.
        """
        begun = time.monotonic()
        with said_while(logger().warning, self._awaited):
            while True:
                begun_update = time.monotonic()
                try:
                    is_newer = self._update()
                    self.took_s = time.monotonic() - begun_update
                    if is_newer or self._target.version is not None or limit_s is None:
                        return is_newer
                    self._sources.trouble = "it has none yet"
                except SilentError as error:
                    if limit_s is None:
                        raise
                    self._sources.trouble = str(error)
                if time.monotonic() - begun > limit_s or self._sources.is_closed:
                    raise DataError(
                        f"no version of {self._sources.names} within {limit_s:g} s: {self._sources.trouble}"
                    )
                time.sleep(_LOOK_S)

    def _awaited(self) -> str:
        fetched, trouble = self._sources.fetched_bytes, self._sources.trouble
        return f"a version of {self._sources.names}: {trouble or f'{fetched / 1e6:.1f} MB fetched so far'}"

    def _update(self) -> bool:
        is_other = False
        for attempt in range(_TRIES):
            told, own = None, self._target.version
            try:
                told = self._sources.newest()
                if told is None:
                    return False
                newest = self._sources.version(told.number)
                if own is not None and own.stream != newest.stream:
                    raise DataError(
                        f"{self._sources.names} is another stream than the one of version {own.number} here; remove "
                        "the folder, or make a new reader, to follow it"
                    )
                if own is not None and newest.number <= own.number:
                    if newest.number == own.number and newest.result != own.result:
                        raise DataError(
                            f"{self._sources.names} has another version {own.number} than the one here: the stream was "
                            "taken back, and went another way; the next version will do"
                        )
                    return False
                self._bring(self._way(None if is_other else own, newest))
                return True
            except _OtherBaseError as error:
                logger().warning("weights: %s; all weights are fetched anew", error)
                is_other = True
            except DataError:
                # What went away meanwhile, since the stream is ahead, may be found in a newer version.
                if attempt == _TRIES - 1 or told is None or self._sources.newest() == told:
                    raise
            except OSError as error:
                raise DataError(f"weights: a newer version cannot be kept: {error_line(error)}") from None
        return False

    def _way(self, own: WeightVersion | None, newest: WeightVersion) -> list[VersionStep]:
        """The steps with the fewest bytes."""
        first = max(1 if own is None else own.number + 1, newest.anchors[-1])
        if newest.number - first > 1:  # one after the other they would take a round trip each
            with ThreadPoolExecutor(_VERSIONS_AT_ONCE, "geocomm-fetch") as pool:
                list(pool.map(self._look_at, range(first, newest.number)))
        best: tuple[int, list[VersionStep]] | None = None
        steps, used, version = list[VersionStep](), 0, newest
        while True:
            if version.whole is not None:
                size = used + sum(frame.bytes for frame in version.whole)
                if best is None or size < best[0]:
                    best = size, [VersionStep(version, version.whole), *steps]
            if version.delta is None:
                break
            used += sum(frame.bytes for frame in version.delta)
            steps = [VersionStep(version, version.delta), *steps]
            if best is not None and used >= best[0]:
                break
            if own is not None and version.number - 1 <= own.number:
                if version.number - 1 == own.number and version.base == own.result:
                    return steps
                break
            try:
                before = self._sources.version(version.number - 1)
            except DataError:
                if best is None:
                    raise
                break
            if before.result != version.base or before.stream != newest.stream:
                break
            version = before
        if best is None:
            raise DataError(f"version {newest.number} of {self._sources.names} leads back to no anchor")
        return best[1]

    def _look_at(self, number: int) -> None:
        with suppress(DataError):  # said where it is needed
            self._sources.version(number)

    def _bring(self, steps: list[VersionStep]) -> None:
        """Make the target what the last step is. The frames of all parts are fetched while others are unpacked."""
        version = steps[-1].version
        layout = self._sources.layout(version.layout)
        for step in steps:
            step.version.require_fit(layout)
            if step.version.layout != version.layout:
                raise DataError(f"version {step.version.number} is packed in another way than {version.number}")
        self._target.require_fit(layout)
        try:
            with ThreadPoolExecutor(_FRAMES_AT_ONCE, "geocomm-fetch") as pool:
                fetched = self._fetched(steps, pool)
                try:
                    self._target.begin(layout)
                    for at, part in enumerate(layout.parts):
                        begins_whole = steps[0].frames[at].whole
                        flat = part.empty() if begins_whole else self._target.gather(layout, part)
                        self._unpack(at, steps, fetched, flat)
                        if part_digest(flat) != version.parts[at]:
                            raise DataError(f"part {at} of version {version.number} has other bytes than it says")
                        self._target.put(layout, part, flat)
                finally:
                    pool.shutdown(wait=True, cancel_futures=True)
            self._target.commit(version)
        except BaseException:
            self._target.drop()
            raise

    def _fetched(self, steps: list[VersionStep], pool: ThreadPoolExecutor) -> Iterator[Path]:
        """The files of the frames, part by part. From now on some are fetched ahead."""
        wanted = ((step.version.number, step.frames[at]) for at in range(len(steps[0].frames)) for step in steps)
        begun = (pool.submit(self._sources.frame, number, frame) for number, frame in wanted)
        ahead = deque(islice(begun, 2 * _FRAMES_AT_ONCE))

        def each() -> Iterator[Path]:
            while ahead:
                yield ahead.popleft().result()
                ahead.extend(islice(begun, 1))

        return each()

    def _unpack(self, at: int, steps: list[VersionStep], fetched: Iterator[Path], flat: torch.Tensor) -> None:
        """Make a part what the last step has. flat: the part as it is here."""
        for step in steps:
            frame, path = step.frames[at], next(fetched)
            packed = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)
            try:
                if frame.whole:
                    decompress(packed, coded(flat), threads=self._threads)
                else:
                    apply_delta(packed, coded(flat), threads=self._threads)
            except InvalidArgumentError as error:
                if step is steps[0] and not frame.whole:
                    raise _OtherBaseError(f"what is here is not version {step.version.number - 1}") from None
                raise DataError(f"a frame of version {step.version.number} does not fit: {error}") from None
            except GeocommError as error:
                raise DataError(f"a frame of version {step.version.number} is none: {error}") from None

"""The folders of one checkpoint: where machines have disks of their own, each has the files of its own ranks. No torch.

Ranks that hold the same shard write it once for each disk. So folders may have files in common, and each may lack some.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from geocomm.core.bad_input import BadInput
from geocomm.train.runs.checkpoint_folder import ENGINE_FOLDER, MANIFEST

_FORMAT = 1
_FIELDS = ("step", "world_size", "zero_stage", "precision", "shard_ranks", "sites", "model")


class CheckpointCopies:
    """The complete folders that the machines of a run wrote at one step."""

    def __init__(self, folders: Sequence[Path]) -> None:
        """Raises BadInput for a folder that is no complete checkpoint, and for folders of different ones."""
        self._manifests = {folder: _manifest(folder) for folder in folders}
        self._first = folders[0]
        self.manifest = self._manifests[self._first]
        for folder, manifest in self._manifests.items():
            names = self.manifest.keys() | manifest.keys()
            # Local steps join sites of different sizes: each has cut what all of them share into as many shards. Each
            # disk's checkpoint has an id of its own.
            differ = {name for name in names if self.manifest.get(name) != manifest.get(name)} - {"shard_ranks", "id"}
            if differ:
                raise BadInput(
                    f"{self._first} and {folder} are not of one checkpoint: they differ in {', '.join(sorted(differ))}"
                    "; give the folders that the machines of one run wrote at the same step"
                )

    def common_file(self, name: str) -> Path:
        """A file of DeepSpeed that every machine wrote. Raises BadInput if it is nowhere."""
        found = self._find(name, list(self._manifests))
        if found is None:
            raise BadInput(
                f"{self._first / ENGINE_FOLDER / name} is missing, which every machine of the run wrote: copy the "
                "checkpoint again, or use another one"
            )
        return found

    def shard_files(self, *patterns: str) -> list[tuple[Path, ...]]:
        """The files of each partition, in order; patterns: their names, with {} for the partition.

        Replicas hold the same shard, so one of them is enough. Raises BadInput that names what nobody has.
        """
        refusals: list[tuple[int, BadInput]] = []
        for count in sorted({manifest["shard_ranks"] for manifest in self._manifests.values()}):
            folders = [folder for folder, manifest in self._manifests.items() if manifest["shard_ranks"] == count]
            found = [[self._find(pattern.format(rank), folders) for pattern in patterns] for rank in range(count)]
            missing = [
                (rank, pattern.format(rank))
                for rank, files in enumerate(found)
                for pattern, file in zip(patterns, files, strict=True)
                if file is None
            ]
            if not missing:
                return [tuple(file for file in files if file is not None) for files in found]
            refusals.append((len(missing), self._missing(folders[0], *missing[0], count, len(missing))))
        raise min(refusals, key=lambda one: one[0])[1]

    def _find(self, name: str, folders: Sequence[Path]) -> Path | None:
        paths = (folder / ENGINE_FOLDER / name for folder in folders)
        return next((path for path in paths if path.is_file()), None)

    def _missing(self, folder: Path, rank: int, name: str, count: int, missing: int) -> BadInput:
        more = f" (and {missing - 1} more)" if missing > 1 else ""
        return BadInput(
            f"{folder / ENGINE_FOLDER / name} is missing{more}; {self._writer(rank, count)} wrote it: copy it from "
            "that machine's copy of the checkpoint, or give that copy with --shards"
        )

    def _writer(self, rank: int, count: int) -> str:
        """Who wrote shard `rank` of `count`."""
        sites: dict[str, int] = self.manifest["sites"]
        if count < self.manifest["world_size"]:
            same = [site for site, ranks in sites.items() if ranks == count]
            return f"rank {rank} of those at site {' or '.join(same or sites)}, counted from 0,"
        of_rank = self.manifest.get("site_of_rank")  # version 0.2.0 did not write it
        return f"rank {rank}" if of_rank is None else f"rank {rank} of site {of_rank[rank]}"


def _manifest(folder: Path) -> dict[str, Any]:
    if folder.name.startswith("."):
        raise BadInput(f"{folder} is being written, or was left by a crash; give a folder step-… beside it")
    path = folder / MANIFEST
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(
            f"{folder} is no checkpoint of geocomm train: it has no {MANIFEST}; give a folder checkpoints/step-… of "
            "a run"
        ) from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read ({error}); copy the checkpoint again, or use another one") from None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        kind = found.get("format") if isinstance(found, dict) else None
        raise BadInput(
            f"{path} has format {kind!r}, and this version of geocomm reads format {_FORMAT}; read the checkpoint with "
            "the version that wrote it"
        )
    if absent := [name for name in _FIELDS if name not in found]:
        raise BadInput(f"{path} lacks {', '.join(absent)}; copy the checkpoint again, or use another one")
    return found

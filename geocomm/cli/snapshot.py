"""`geocomm snapshot`: what an elastic run has kept aside."""

from __future__ import annotations

import atexit
import json
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import AsJson, fail, journal_in, say
from geocomm.core.console import table_of

if TYPE_CHECKING:
    from geocomm.elastic.files.snapshots import Manifest, Snapshots
    from geocomm.elastic.journal.run_state import RunState

_HELP = """List, check and use the snapshots of an elastic run.

Every site has its own, in snapshots/ of its run folder: the model and its outer momentum at one entry of the journal.
"""
_RunDir = Annotated[
    str, typer.Option(metavar="FOLDER", help="This site's folder of the run, or the --snapshot-url of copies.")
]
_Index = Annotated[int | None, typer.Argument(metavar="[SNAPSHOT]", help="Its number in ls. Default: the newest kept.")]

app = typer.Typer(name="snapshot", help=_HELP, no_args_is_help=True)


@app.command()
def ls(run_dir: _RunDir, as_json: AsJson = False) -> None:
    """List the snapshots of this site, and which sites have each by the journal.

    Example:

        geocomm snapshot ls --run-dir run
    """
    from geocomm.elastic.files.snapshot_copies import is_url

    rows = _rows_of_copies(run_dir) if is_url(run_dir) else _rows(run_dir)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    cells = [[row[name] for name in _COLUMNS] for row in rows]
    shown = table_of(_COLUMNS, cells, text=("written", "state"), folds=("sites",))
    say(shown if rows else f"{run_dir} has no snapshot yet")


_COLUMNS = ("snapshot", "rounds", "GiB", "written", "state", "sites")


def _rows(run_dir: str) -> list[dict[str, str | int | float | None]]:
    snapshots, state, _ = _open(run_dir)
    complete = {manifest.index: manifest for manifest in snapshots.manifests()}
    return [_row(snapshots, state, index, complete.get(index)) for index in snapshots.indices()]


def _rows_of_copies(url: str) -> list[dict[str, str | int | float | None]]:
    from geocomm.elastic.files.snapshot_copies import SnapshotCopies
    from geocomm.elastic.files.snapshots import SnapshotError

    try:
        copies = SnapshotCopies(url)
        return [
            {
                "snapshot": one.index,
                "rounds": sum(one.versions),
                "GiB": round(copies.size(one.index) / 2**30, 3),
                "written": None,
                "state": "a copy",
                "sites": None,
            }
            for one in copies.manifests()
        ]
    except (OSError, SnapshotError) as error:
        fail("snapshot", f"{url}: {error}" if isinstance(error, OSError) else str(error))


def _row(
    snapshots: Snapshots, state: RunState, index: int, manifest: Manifest | None
) -> dict[str, str | int | float | None]:
    written = snapshots.files.snapshot(index).stat().st_mtime
    return {
        "snapshot": index,
        "rounds": None if manifest is None else sum(manifest.versions),
        "GiB": round(snapshots.size(index) / 2**30, 3),
        "written": time.strftime("%Y-%m-%d %H:%M", time.localtime(written)),
        "state": "kept" if index in state.kept else "not complete" if manifest is None else "complete here",
        "sites": ", ".join(state.kept[index].sites) if index in state.kept else None,
    }


@app.command()
def verify(run_dir: _RunDir, snapshot: _Index = None) -> None:
    """Read all of a snapshot, and compare it with its manifest and with the journal.

    Example:

        geocomm snapshot verify --run-dir run
    """
    from geocomm.elastic.files.snapshots import SnapshotError

    snapshots, state, _ = _open(run_dir, snapshot)
    index = _chosen(snapshots, state, snapshot, "snapshot verify")
    try:
        manifest = snapshots.verified(index)
    except SnapshotError as error:
        fail("snapshot verify", str(error), 1)
    kept = state.kept.get(index)
    if kept is not None and kept.digest != manifest.digest:
        fail(
            "snapshot verify",
            f"snapshot {index} has other bits than those of {', '.join(kept.sites)}, as the journal says: take theirs",
            1,
        )
    elsewhere = f"; {', '.join(kept.sites)} had the same bits" if kept is not None else ""
    typer.echo(f"snapshot {index}: all {len(manifest.versions)} states have the bits that were kept{elsewhere}")


@app.command()
def export(
    run_dir: _RunDir,
    out: Annotated[Path, typer.Option(metavar="FILE", help="A .safetensors file, which is made.")],
    snapshot: _Index = None,
) -> None:
    """Write the trained parameters of a snapshot to a .safetensors file, float32, by their names in the model.

    Frozen parameters and buffers are not in it: load it with strict=False. It is checked against its manifest first.

    Example:

        geocomm snapshot export --run-dir run --out weights.safetensors
    """
    from geocomm.elastic.files.snapshots import SnapshotError

    try:
        import safetensors.numpy as safetensors
    except ImportError:
        fail("snapshot export", "the package safetensors is missing: pip install safetensors")
    snapshots, state, _ = _open(run_dir, snapshot)
    index = _chosen(snapshots, state, snapshot, "snapshot export")
    if out.exists():
        fail("snapshot export", f"{out} is there already")
    try:
        weights = dict(snapshots.weights(index))
        safetensors.save_file(weights, out, {"run": snapshots.manifest(index).run, "snapshot": str(index)})  # pyright: ignore[reportUnknownMemberType]
    except SnapshotError as error:
        fail("snapshot export", str(error), 1)
    except OSError as error:
        fail("snapshot export", f"{out}: {error.strerror or error}", 1)
    typer.echo(f"{out}: {len(weights)} parameters of snapshot {index}, float32")


@app.command()
def restore(
    run_dir: _RunDir,
    into: Annotated[Path, typer.Option(metavar="FOLDER", help="The new run folder, empty or not there yet.")],
    snapshot: _Index = None,
    site: Annotated[str, typer.Option(help="The site that leads from now on. Default: the one of the snapshot.")] = "",
    hub: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where it leads. Default: where the run was led at first.")
    ] = "",
) -> None:
    """Make a run folder in which the run stands where it stood at a snapshot.

    What all sites did since then is not in it. End all sites first. Then start the leader's site with the new folder,
    and every other site with an empty one: they join it.

    Example:

        geocomm snapshot restore --run-dir run --into run-2
    """
    from geocomm.core.addresses import Address, AddressError
    from geocomm.elastic.files.fragment_store import StoreError
    from geocomm.elastic.files.known_agents import About
    from geocomm.elastic.files.snapshots import SnapshotError

    snapshots, state, folder = _open(run_dir, snapshot)
    index = _chosen(snapshots, state, snapshot, "snapshot restore")
    try:
        said = About.read(folder)
        site, hub = site or said.site, str(Address.parse(hub or said.leader))
        snapshots.restore(index, into, site, hub)
    except (AddressError, SnapshotError, StoreError) as error:
        fail("snapshot restore", str(error), 1)
    except (OSError, ValueError, KeyError) as error:
        fail("snapshot restore", f"{into}: {error}", 1)
    where = f"Start site {site}, which leads at {hub}, with --run-dir {into}, and the others with empty run folders"
    if said.journal:
        where = (
            f"Start this site with --run-dir {into} --lead, and with another name in --journal than {said.journal} "
            "has. Start the others there too, with empty run folders, once it says that it leads"
        )
    typer.echo(f"{into}: the run as it stood at snapshot {index}. {where}")


def _open(where: str, snapshot: int | None = None) -> tuple[Snapshots, RunState, Path]:
    """What a run folder has; or, of what lies at a URL, one snapshot."""
    from geocomm.elastic.files.fragment_store import FragmentStore
    from geocomm.elastic.files.snapshot_copies import is_url
    from geocomm.elastic.files.snapshots import Snapshots

    run_dir = _fetched(where, snapshot) if is_url(where) else Path(where)
    with journal_in(run_dir) as journal:
        state = journal.state()
    return Snapshots(FragmentStore(run_dir)), state, run_dir


def _fetched(url: str, snapshot: int | None) -> Path:
    """A run folder, for as long as this process lives, of a snapshot that lies elsewhere."""
    from geocomm.elastic.files.snapshot_copies import SnapshotCopies

    made = tempfile.TemporaryDirectory()
    atexit.register(made.cleanup)
    try:
        SnapshotCopies(url).fetch(snapshot, Path(made.name))
    except OSError as error:
        fail("snapshot", f"{url}: {error}")
    return Path(made.name)


def _chosen(snapshots: Snapshots, state: RunState, index: int | None, command: str) -> int:
    complete = [manifest.index for manifest in snapshots.manifests()]
    if index is None:
        index = max([one for one in complete if one in state.kept] or complete, default=None)
    if index is None or index not in complete:
        there = ", ".join(map(str, complete)) or "none; the leader has them made every --snapshot-every minutes"
        fail(command, f"no complete snapshot {'' if index is None else index}: this site has {there}")
    return index

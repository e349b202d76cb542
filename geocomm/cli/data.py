"""`geocomm data`: data sets of tokens, as numbered versions in a catalog."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.cli.command_end import AsJson, fail, say
from geocomm.core.console import table_of
from geocomm.core.units import count_text

if TYPE_CHECKING:
    from geocomm.data.catalog import Catalog, Version

_HELP = """Keep data sets of tokens: what they consist of, and who may read which part.

Nothing is copied. A catalog names ranges of the files that datatrove, Megatron or geocomm have written.
"""
_MOST_SAID = 10

_Set = Annotated[
    str, typer.Argument(metavar="CATALOG[@VERSION]", help="The catalog's folder or URL. Default: the newest.")
]

app = typer.Typer(name="data", help=_HELP, no_args_is_help=True)


@app.command()
def add(
    rules: Annotated[Path, typer.Argument(metavar="RULES.toml", help="Catalog, stores, labels.")],
    paths: Annotated[
        list[str],
        typer.Argument(metavar="PATH...", help="Files, folders or URLs in a store: .ds, .bin, .tokens, .txt, .jsonl."),
    ],
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="byte, or a tokenizer's folder. For text, and the first time.")
    ] = None,
    label: Annotated[list[str] | None, typer.Option(metavar="LABEL", help="Of these files; may be repeated.")] = None,
    store: Annotated[str | None, typer.Option(metavar="STORE", help="Where the tokens of text go.")] = None,
    text_field: Annotated[str, typer.Option(metavar="NAME", help="Field of .jsonl that holds the text.")] = "text",
) -> None:
    """Add files to a data set, as its next version.

    Reads them once, for their hashes and to check their ids. Text is tokenized here, a file on each core.

    Example:

        geocomm data add web.toml /data/tokens/day1 --tokenizer tok/
    """
    from geocomm.data.additions import add_files
    from geocomm.data.catalog import read_rules

    read = read_rules(rules)
    version = add_files(read, paths, tokenizer=tokenizer, labels=label or (), store=store, text_field=text_field)
    part = version.parts[-1]
    typer.echo(
        f"{read.catalog}@{version.number}: added {count_text(part.tokens, 'token')} in "
        f"{count_text(part.shards, 'shard')}"
    )


@app.command()
def remove(
    rules: Annotated[Path, typer.Argument(metavar="RULES.toml", help="Catalog, stores, labels.")],
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH...", help="Files, folders or URLs in a store; * stands for any text.")
    ],
) -> None:
    """Leave files out of a data set, from its next version on.

    The files stay where they are, and so do copies in caches, whose names are the printed hashes.

    Example:

        geocomm data remove web.toml /data/tokens/day1/03.ds
    """
    from geocomm.data.additions import remove_files
    from geocomm.data.catalog import read_rules

    read = read_rules(rules)
    version, removed = remove_files(read, paths)
    for shard in removed:
        typer.echo(f"{shard.sha256} {shard.path} of store {shard.store}")
    tokens = sum(one.tokens for one in removed)
    typer.echo(
        f"{read.catalog}@{version.number}: removed {count_text(tokens, 'token')} in {count_text(len(removed), 'shard')}"
    )


@app.command()
def ls(catalog: _Set, as_json: AsJson = False) -> None:
    """List the versions of a data set.

    Example:

        geocomm data ls /data/catalog/web
    """
    from geocomm.data.catalog import Catalog
    from geocomm.data.shard_sequences import SetName

    name = SetName.parse(catalog)
    opened = Catalog(name.url)
    opened.read(name.number)  # refuses what is none
    rows = [_row(opened, opened.read(one)) for one in ([name.number] if name.number else opened.numbers())]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    say(table_of([*rows[0]], [[*row.values()] for row in rows], folds=("labels",)))


def _row(catalog: Catalog, version: Version) -> dict[str, int | float | str]:
    shards = catalog.shards(version)
    tokens = sum(one.tokens for one in shards)
    by_label: Counter[str] = Counter()
    for one in shards:
        by_label.update(dict.fromkeys(one.labels, one.tokens))
    return {
        "version": version.number,
        "shards": len(shards),
        "tokens": tokens,
        "GiB": round(tokens * version.width / 2**30, 3),
        "labels": ", ".join(f"{label}: {count}" for label, count in sorted(by_label.items())),
    }


@app.command()
def check(
    catalog: _Set,
    site: Annotated[
        str | None, typer.Option(metavar="SITE", help="Only what this site may read. Default: GEOCOMM_SITE.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every shard, and compare its hash.")] = False,
) -> None:
    """Look whether all files of a data set are there, and whole.

    Exit status 2 where one is not.

    Example:

        geocomm data check /data/catalog/web --site virginia --deep
    """
    from geocomm.core.site import site_name
    from geocomm.data.additions import problems, readable
    from geocomm.data.catalog import Catalog
    from geocomm.data.shard_sequences import SetName

    name = SetName.parse(catalog)
    opened = Catalog(name.url)
    version = opened.read(name.number)
    shards = opened.shards(version)
    site = site or site_name()
    told = "" if site is None else f"; site {site} may read {count_text(readable(version, shards, site), 'token')}"
    found = list(islice(problems(version, shards, deep=deep, site=site), _MOST_SAID + 1))
    for problem in found[:_MOST_SAID]:
        typer.echo(problem, err=True)
    what = f"{name.url}@{version.number}"
    if found:
        more = f"the first {_MOST_SAID}" if len(found) > _MOST_SAID else str(len(found))
        fail("data", f"{what} is not whole; {more} of its problems stand above: restore these files")
    seen = "hashes are right" if deep else "files are there"
    typer.echo(
        f"{what}: {count_text(len(shards), 'shard')}, "
        f"{count_text(sum(one.tokens for one in shards), 'token')}, all {seen}{told}"
    )

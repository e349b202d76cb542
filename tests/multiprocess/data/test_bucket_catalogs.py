"""`geocomm data` on buckets of two servers with a key each: what is added, checked, refused and never asked for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from geocomm.core.bad_input import BadInput
from geocomm.data import additions, places
from geocomm.data.catalog import Catalog, Shard, Version, read_rules
from geocomm.data.places import open_place
from support.object_servers import S3Server, s3_server, web_server, write_tables
from support.warm_ranks import warm_agents

RULES = """
catalog = "s3://tokens/web/catalog"
[sites]
frankfurt = "eu"
virginia = "us"
[stores.acme-eu]
url = "s3://tokens/web/eu"
region = "eu"
near = ["frankfurt"]
[stores.acme-us]
url = "s3://tokens/web/us"
region = "us"
near = ["virginia"]
[stores.web]
url = "http://127.0.0.1:9/x"
[labels.personal]
readers = ["eu"]
"""


class Buckets:
    """Stores acme-eu and acme-us at servers of their own; the catalog is at the first."""

    def __init__(self, folder: Path, servers: dict[str, S3Server]) -> None:
        self.folder, self.servers = folder, servers
        self.rules = folder / "web.toml"
        self.rules.write_text(RULES)
        self.catalog = "s3://tokens/web/catalog"
        eu, us = (servers[name].table for name in ("eu", "us"))
        others = {f"s3://tokens/web/{name}": eu for name in ("race", "removed", "checked", "nothing", "read")}
        tables = {"acme-eu": eu, "acme-us": us, self.catalog: eu} | others
        self.keys = write_tables(folder / "stores.toml", tables)

    def run(self, *arguments: str | Path, status: int = 0, **environment: str) -> str:
        """`geocomm data`; refusals are one line."""
        command = [*warm_agents().command("geocomm"), "data", *map(str, arguments)]
        result = subprocess.run(
            command,
            env=os.environ | {"GEOCOMM_STORES": str(self.keys)} | environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == status, result.stdout + result.stderr
        if status:
            assert len(result.stderr.splitlines()) == 1, result.stderr
        return result.stdout + result.stderr

    def put(self, store: str, path: str, ids: list[int]) -> None:
        """Tokens, as others write them."""
        place = open_place(f"s3://tokens/web/{store}", f"acme-{store}")
        assert place.create(path, np.array(ids, "<u2").tobytes())


@pytest.fixture(scope="module")
def buckets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Buckets]:
    folder = tmp_path_factory.mktemp("buckets")
    with ExitStack() as stack:
        found = Buckets(folder, {name: stack.enter_context(s3_server(folder, name)) for name in ("eu", "us")})
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("GEOCOMM_STORES", str(found.keys))
        for cached in (places.open_place, places._tables):
            cached.cache_clear()
        yield found
        for cached in (places.open_place, places._tables):
            cached.cache_clear()


def test_data_set_of_two_buckets_with_two_keys(buckets: Buckets) -> None:
    buckets.put("eu", "day1/a.tokens", [1, 2, 3])
    buckets.put("eu", "day1/b.tokens", [4])
    buckets.put("us", "c.tokens", [5, 6])
    text = buckets.folder / "text.txt"
    text.write_text("abc")
    buckets.run("add", buckets.rules, "s3://tokens/web/us/c.tokens", "--tokenizer", "byte")
    buckets.run("add", buckets.rules, "s3://tokens/web/eu/day1/*.tokens", "--label", "personal")
    buckets.run("add", buckets.rules, text, "--tokenizer", "byte", "--store", "acme-us")
    rows = json.loads(buckets.run("ls", buckets.catalog, "--json"))
    assert [row["tokens"] for row in rows] == [2, 6, 10]
    assert "all hashes are right" in buckets.run("check", buckets.catalog, "--deep")
    before = len(buckets.servers["eu"].requests("/eu/"))
    said = buckets.run("check", buckets.catalog, "--deep", "--site", "virginia")
    assert "virginia may read 6 tokens" in said
    assert "virginia may read 6 tokens" in buckets.run("check", buckets.catalog, GEOCOMM_SITE="virginia")
    assert len(buckets.servers["eu"].requests("/eu/")) == before  # nothing labelled was asked for


def test_store_without_tls_may_be_named_by_the_environment(buckets: Buckets) -> None:
    """As MinIO inside a network is: nothing else has to allow it."""
    server = buckets.servers["us"]
    named = {
        "AWS_ENDPOINT_URL": server.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": server.key,
        "AWS_SECRET_ACCESS_KEY": server.secret,
    }
    program = "import sys; from geocomm.data.places import open_place; place = open_place(sys.argv[1], 'x'); "
    program += "print(place.create('of-env/1', b'one'), place.create('of-env/1', b'two'), place.read('of-env/1'))"
    environment = {name: text for name, text in os.environ.items() if name != "GEOCOMM_STORES"} | named
    done = subprocess.run([sys.executable, "-c", program, server.url], env=environment, capture_output=True, text=True)
    assert done.stdout == "True False b'one'\n", done.stderr


def test_second_writer_is_refused_by_the_bucket(buckets: Buckets) -> None:
    url = "s3://tokens/web/race"
    buckets.put("us", "race.tokens", [1])
    rules = buckets.folder / "race.toml"
    rules.write_text(RULES.replace(buckets.catalog, url))
    buckets.run("add", rules, "s3://tokens/web/us/race.tokens", "--tokenizer", "byte")
    catalog = Catalog(url)
    following = catalog.read().model_copy(update={"number": 2})
    catalog.add(following, [Shard("0" * 64, "acme-us", "race.tokens", 2, 1)])
    first = catalog.digest(2)
    with pytest.raises(BadInput, match="somebody else"):
        catalog.add(following, [Shard("0" * 64, "acme-us", "race.tokens", 4, 1)])
    assert catalog.digest(2) == first


def test_files_are_removed_by_a_key_that_may_not_delete(buckets: Buckets, monkeypatch: pytest.MonkeyPatch) -> None:
    url, rules = "s3://tokens/web/removed", buckets.folder / "removed.toml"
    rules.write_text(RULES.replace(buckets.catalog, url))
    for name in ("day1/a", "day1/b", "day2/c"):
        buckets.put("us", f"removed/{name}.tokens", [1, 2])
    files = "s3://tokens/web/us/removed"
    buckets.run("add", rules, files, "--tokenizer", "byte")
    server = buckets.servers["eu"]
    keys = {
        action: write_tables(
            buckets.folder / f"without-{action.partition(':')[2]}.toml",
            {"acme-us": buckets.servers["us"].table, url: server.table_without(action)},
        )
        for action in ("s3:PutObject", "s3:DeleteObject")
    }
    said = buckets.run("remove", rules, f"{files}/day1", status=2, GEOCOMM_STORES=str(keys["s3:PutObject"]))
    assert f"{url} cannot be written" in said
    assert "403 Forbidden" in said
    assert f"(keys: [{url}] of {keys['s3:PutObject']})" in said
    assert "no file of version 1" in buckets.run("remove", rules, f"{files}/day3", status=2)
    assert "nothing would be left" in buckets.run("remove", rules, files, status=2)
    assert Catalog(url).numbers() == [1]

    told = buckets.run("remove", rules, f"{files}/day1", GEOCOMM_STORES=str(keys["s3:DeleteObject"]))
    assert told.endswith(f"{url}@2: removed 4 tokens in 2 shards\n")
    assert [one.path for one in Catalog(url).shards(Catalog(url).read())] == ["removed/day2/c.tokens"]
    assert open_place("s3://tokens/web/us", "acme-us").size("removed/day1/a.tokens") == 4  # it is only left out
    assert "3 shards" in buckets.run("check", f"{url}@1", "--deep")

    plan_next = additions._next

    def after_another(*given: Any) -> Version:
        """Between what this writer reads and what it writes, another one adds a file."""
        monkeypatch.setattr(additions, "_next", plan_next)
        buckets.run("add", rules, f"{files}/day1/a.tokens")
        return plan_next(*given)

    buckets.run("add", rules, f"{files}/day1/b.tokens")
    monkeypatch.setattr(additions, "_next", after_another)
    with pytest.raises(BadInput, match="has version 4 since just now: somebody else adds"):
        additions.remove_files(read_rules(rules), [f"{files}/day1"])
    assert [row["shards"] for row in json.loads(buckets.run("ls", url, "--json"))] == [3, 1, 2, 3]
    buckets.run("remove", rules, f"{files}/day1/*")
    assert [one.path for one in Catalog(url).shards(Catalog(url).read(5))] == ["removed/day2/c.tokens"]


def test_what_buckets_refuse_is_a_line(buckets: Buckets) -> None:
    run, rules = buckets.run, buckets.rules
    buckets.put("us", "bad/odd.tokens", [1])
    place = open_place("s3://tokens/web/us", "acme-us")
    place.create("bad/cut.tokens", b"abc")
    place.create("bad/empty.tokens", b"")
    byte = ("--tokenizer", "byte")
    assert "no multiple of 2" in run("add", rules, "s3://tokens/web/us/bad/cut.tokens", *byte, status=2)
    assert "is empty" in run("add", rules, "s3://tokens/web/us/bad/empty.tokens", *byte, status=2)
    assert "lies in no store" in run("add", rules, "s3://tokens/web/asia/a.tokens", *byte, status=2)
    assert "cannot be read" in run("add", rules, "s3://tokens/web/us/none.tokens", *byte, status=2)
    assert "has no .ds" in run("add", rules, "s3://tokens/web/us/none/*", *byte, status=2)
    text = buckets.folder / "refused.txt"
    text.write_text("abc")
    assert "only read from" in run("add", rules, text, *byte, "--store", "web", status=2)
    web = buckets.folder / "web-catalog.toml"
    web.write_text(RULES.replace(buckets.catalog, "https://example.org/catalog"))
    assert "only read from" in run("add", web, text, *byte, "--store", "acme-us", status=2)
    assert "no version of a data set" in run("ls", "s3://tokens/web/nothing", status=2)
    assert "ftp://a/b cannot be opened" in run("ls", "ftp://a/b", status=2)
    for content, said in (
        ("[catalog", "Expected"),
        ("catalog = 1", "no table"),
        (f'["{buckets.catalog}"]\nnonsense = 1', "nonsense"),
    ):
        wrong = buckets.folder / "wrong.toml"
        wrong.write_text(content)
        assert said in run("ls", buckets.catalog, status=2, GEOCOMM_STORES=str(wrong))
    tables = {buckets.catalog: buckets.servers["eu"].table | {"secret_access_key": "wrong"}}
    wrong = write_tables(buckets.folder / "wrong.toml", tables)
    assert f"(keys: [{buckets.catalog}] of {wrong})" in run("ls", buckets.catalog, status=2, GEOCOMM_STORES=str(wrong))


def test_check_names_what_is_gone_or_other_in_a_bucket(buckets: Buckets) -> None:
    import obstore

    url, rules = "s3://tokens/web/checked", buckets.folder / "checked.toml"
    rules.write_text(RULES.replace(buckets.catalog, url))
    buckets.put("us", "checked/gone.tokens", [1])
    buckets.put("us", "checked/other.tokens", [2])
    buckets.run("add", rules, "s3://tokens/web/us/checked", "--tokenizer", "byte")
    place = open_place("s3://tokens/web/us", "acme-us")
    assert isinstance(place, places.Bucket)
    obstore.delete(place._store, "checked/gone.tokens")
    obstore.put(place._store, "checked/other.tokens", b"\3\0")
    for deep, found in (((), 1), (("--deep",), 2)):
        command = [*warm_agents().command("geocomm"), "data", "check", url, *deep]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == 2
        assert len(result.stderr.splitlines()) == found + 1
        assert "gone.tokens of store acme-us cannot be read" in result.stderr


_READER = """
import sys
import geocomm
data = geocomm.SiteDataset(sys.argv[1], batch_size=4, sequence_length=2)
print(sorted(next(iter(data)).flatten().tolist()))
"""


def test_each_site_reads_its_rows_from_the_buckets(buckets: Buckets) -> None:
    url, rules = "s3://tokens/web/read", buckets.folder / "read.toml"
    rules.write_text(RULES.replace(buckets.catalog, url))
    for name in ("a", "b"):
        buckets.put("us", f"read/{name}.tokens", [1, 2, 3, 4])
    buckets.put("eu", "read/c.tokens", [5, 6, 7, 8, 9, 10, 11, 12])
    buckets.run("add", rules, "s3://tokens/web/us/read", "--tokenizer", "byte")
    buckets.run("add", rules, "s3://tokens/web/eu/read", "--label", "personal")
    before = len(buckets.servers["eu"].requests("/eu/"))
    for site, version, ids in (("virginia", 2, [1, 1, 2, 2, 3, 3, 4, 4]), ("frankfurt", 2, None)):
        result = subprocess.run(
            [sys.executable, "-c", _READER, f"{url}@{version}"],
            env=os.environ | {"GEOCOMM_SITE": site, "GEOCOMM_DATA_CACHE": str(buckets.folder / f"cache-{site}")},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        if ids is not None:
            assert json.loads(result.stdout) == ids
            assert len(buckets.servers["eu"].requests("/eu/")) == before
    assert len(buckets.servers["eu"].requests("/eu/")) > before


def test_catalog_of_a_web_server_is_read_by_its_version(buckets: Buckets, tmp_path: Path) -> None:
    (tmp_path / "a.tokens").write_bytes(b"\1\0")
    rules = tmp_path / "web.toml"
    rules.write_text(f'catalog = "{tmp_path}/catalog"\n[stores.disk]\nurl = "{tmp_path}"\n')
    buckets.run("add", rules, tmp_path / "a.tokens", "--tokenizer", "byte")
    root = tmp_path / "catalog"
    files = {f"/{one.relative_to(root)}": one.read_bytes() for one in root.rglob("*") if one.is_file()}
    with web_server(files) as server:
        assert "1 shard," in buckets.run("check", f"{server.url}@1", "--deep")
        assert "has no version 2" in buckets.run("ls", f"{server.url}@2", status=2)
        assert "cannot be listed" in buckets.run("ls", server.url, status=2)


def test_bucket_without_obstore_names_the_extra(buckets: Buckets, tmp_path: Path) -> None:
    (tmp_path / "obstore").mkdir()
    (tmp_path / "obstore/__init__.py").write_text("raise ImportError('not installed')")
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert "pip install geocomm[data]" in buckets.run("ls", buckets.catalog, status=2, PYTHONPATH=paths)

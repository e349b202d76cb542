"""`geocomm data`: what becomes a version of a data set, what is refused, and what is read of it."""

from __future__ import annotations

import contextlib
import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from geocomm.cli.commands import build_app
from geocomm.core.bad_input import BadInput
from geocomm.data import places, token_files
from geocomm.data.catalog import Catalog, Rules, Shard
from geocomm.data.corpus.text_tokenizer import ByteTokenizer

RULES = """
catalog = "{0}/catalog"
[sites]
frankfurt = "eu"
virginia = "us"
[stores.disk]
url = "file://{0}/tokens"
region = "eu"
near = ["frankfurt"]
[stores.other]
url = "{0}/other"
[labels.personal]
readers = ["eu"]
[labels.american]
readers = ["virginia"]
"""
VOCABULARY = ByteTokenizer.vocab_size


class Place:
    """A folder with rules, and stores that are empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rules = folder / "web.toml"
        self.rules.write_text(RULES.format(folder))
        self.store = folder / "tokens"
        self.store.mkdir()
        self.catalog = Catalog(str(folder / "catalog"))

    def write(self, name: str, ids: list[int], dtype: str = "<u2") -> Path:
        path = self.store / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(np.array(ids, dtype).tobytes())
        return path

    def run(self, *arguments: str | Path, status: int = 0) -> str:
        result = CliRunner().invoke(build_app(("data",)), ["data", *map(str, arguments)])
        assert result.exit_code == status, result.output
        return result.output

    def add(self, *arguments: str | Path, status: int = 0) -> str:
        return self.run("add", self.rules, *arguments, status=status)

    def refuses(self, *arguments: str | Path) -> str:
        """Of `add`: one line, and no new version."""
        before = self.catalog.numbers()
        text = self.add(*arguments, status=2)
        assert len(text.splitlines()) == 1
        assert self.catalog.numbers() == before
        return text


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_versions_name_what_others_have_written(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_files, "SHARD_BYTES", 64)
    place.write("day1/a.ds", list(range(80)))
    (place.store / "day1/a.ds.metadata").write_text("gpt2|2\n80\n80.0 T")
    assert "80 tokens in 3 shards" in place.add(place.store / "day1", "--tokenizer", "byte")
    place.write("b.bin", [1, 2, 3])
    (place.store / "b.idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 8))
    place.add(place.store / "b.bin", "--label", "personal")
    first, second = (place.catalog.read(number) for number in place.catalog.numbers())
    assert place.catalog.shards(second)[:-1] == place.catalog.shards(first)
    assert [one.place for one in place.catalog.shards(second)] == [
        ("disk", "day1/a.ds", 0),
        ("disk", "day1/a.ds", 64),
        ("disk", "day1/a.ds", 128),
        ("disk", "b.bin", 0),
    ]
    assert [one.tokens for one in place.catalog.shards(second)] == [32, 32, 16, 3]
    assert place.catalog.shards(second)[-1].labels == ("personal",)
    rows = json.loads(place.run("ls", place.catalog.url, "--json"))
    assert [(row["version"], row["shards"], row["tokens"]) for row in rows] == [(1, 3, 80), (2, 4, 83)]
    assert "personal: 3" in place.run("ls", f"{place.catalog.url}@2")
    assert "virginia may read 80 tokens" in place.run("check", place.catalog.url, "--site", "virginia", "--deep")


def test_files_are_removed_from_the_next_version_alone(place: Place) -> None:
    for name in ("day1/a.tokens", "day1/b.tokens", "day2/c.tokens"):
        place.write(name, [1, 2, 3])
    place.add(place.store / "day1", "--tokenizer", "byte")
    place.add(place.store / "day2", "--label", "personal")
    whole = place.rules.read_text()
    place.rules.write_text(whole.replace("[labels.personal]", "[labels.private]"))
    assert "unknown label 'personal'" in place.run("remove", place.rules, place.store / "day1", status=2)
    place.rules.write_text(whole)
    assert "is no file of version 2" in place.run("remove", place.rules, place.store / "day3", status=2)
    assert "lies in no store" in place.run("remove", place.rules, "s3://elsewhere/a.ds", status=2)
    assert "nothing would be left" in place.run("remove", place.rules, place.store / "*", status=2)
    (place.store / "day1/a.tokens").unlink()
    told = place.run("remove", place.rules, place.store / "day1/a.tokens").splitlines()
    before, after = (place.catalog.shards(place.catalog.read(number)) for number in (2, 3))
    assert told[0] == f"{before[0].sha256} day1/a.tokens of store disk"
    assert told[1].endswith("@3: removed 3 tokens in 1 shard")
    assert sorted(after) == sorted(before[1:])
    assert place.catalog.read(3).parts[0] == place.catalog.read(2).parts[1]
    place.run("remove", place.rules, place.store / "day1")
    assert [one.path for one in place.catalog.shards(place.catalog.read())] == ["day2/c.tokens"]
    place.run("check", place.catalog.url, "--deep")
    place.add(place.write("day1/a.tokens", [1, 2, 3]))  # what was removed can come back


def test_text_is_tokenized_into_the_store(place: Place, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "one.txt").write_text("abc")
    (texts / "two.jsonl").write_text('{"body": "de"}\n{"body": "f"}\n')
    place.add(texts, "--tokenizer", "byte", "--store", "disk", "--text-field", "body")
    shards = place.catalog.shards(place.catalog.read())
    ids = [np.fromfile(place.store / one.path, "<u2").tolist() for one in shards]
    assert ids == [[97, 98, 99, 256], [100, 101, 256, 102, 256]]
    assert "in store disk already" in place.refuses(texts, "--tokenizer", "byte", "--store", "disk")
    (texts / "two.jsonl").write_text("{}\n")
    assert "no text" in place.refuses(texts / "two.jsonl", "--tokenizer", "byte", "--store", "other")
    assert not list((tmp_path / "other").iterdir())  # nothing half done


def test_what_cannot_be_added_is_refused_in_a_line(place: Place, tmp_path: Path) -> None:
    good = place.write("good.tokens", [1, 2])
    assert "--tokenizer" in place.refuses(good)
    assert "unknown label 'persnal'; did you mean 'personal'" in place.refuses(
        good, "--tokenizer", "byte", "--label", "persnal"
    )
    both = place.refuses(good, "--tokenizer", "byte", "--label", "personal", "--label", "american")
    assert "no site" in both
    assert "is empty" in place.refuses(place.write("empty.tokens", []), "--tokenizer", "byte")
    odd = place.write("odd.tokens", [])
    odd.write_bytes(b"abc")
    assert "no multiple of 2" in place.refuses(odd, "--tokenizer", "byte")
    beyond = place.refuses(place.write("beyond.tokens", [5, VOCABULARY]), "--tokenizer", "byte")
    assert f"id {VOCABULARY}" in beyond
    wide = place.write("wide.bin", [1], "<u4")
    (place.store / "wide.idx").write_bytes(b"MMIDIDX\x00\x00" + struct.pack("<QB", 1, 4))
    said = place.refuses(wide, "--tokenizer", "byte")
    assert "<u4" in said
    assert "<u2" in said
    (place.store / "wide.idx").write_bytes(b"not an index, but long enough")
    assert "no index of Megatron" in place.refuses(wide, "--tokenizer", "byte")
    elsewhere = tmp_path / "elsewhere.tokens"
    shutil.copy(good, elsewhere)
    assert "lies in no store" in place.refuses(elsewhere, "--tokenizer", "byte")
    assert "does not exist" in place.refuses(tmp_path / "nothing", "--tokenizer", "byte")
    (tmp_path / "text.txt").write_text("a")
    assert "unknown store" in place.refuses(tmp_path / "text.txt", "--tokenizer", "byte", "--store", "dsik")
    place.add(good, "--tokenizer", "byte")
    assert "in version 1 already" in place.refuses(good)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('region = "eu"', 'region = "eur"', "unknown region 'eur'; did you mean 'eu'"),
        ('near = ["frankfurt"]', 'near = ["frankfort"]', "unknown site 'frankfort'"),
        ('readers = ["virginia"]', 'readers = ["virgina"]', "unknown region or site 'virgina'"),
        ('virginia = "us"', 'eu = "us"', "sites.eu: 'eu' is a region, too"),
        ("file://", "s3://", "cannot be"),
        ("[sites]", "[sties]", "sties"),
        ("[sites]", "[sites", "web.toml"),
    ],
)
def test_rules_that_say_nothing_known_are_refused(place: Place, old: str, new: str, said: str) -> None:
    place.rules.write_text(place.rules.read_text().replace(old, new))
    assert said in place.refuses(place.write("a.tokens", [1]), "--tokenizer", "byte")


def test_table_of_keys_that_no_store_uses_is_refused_where_one_lacks_its_own_and_else_told_of_in_a_line(
    place: Place, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    keys = place.folder / "stores.toml"
    monkeypatch.setenv("GEOCOMM_STORES", str(keys))
    for cached in (places._tables, places._tell_unused):
        request.addfinalizer(cached.cache_clear)
    place.rules.write_text(place.rules.read_text() + '[stores.bucket]\nurl = "s3://bucket/tokens"\n')
    tables = ("[bucket]", "[other]\n[bucket]\n[disk]", '["s3://elsewhere/web"]', "[bucke]")
    for number, (text, unused) in enumerate(zip(tables, ("", "[other], [disk]", "", ""), strict=True)):
        for cached in (places._tables, places._tell_unused):
            cached.cache_clear()
        caplog.clear()
        keys.write_text(text)
        wrong = text == "[bucke]"
        added = place.write(f"{number}.tokens", [1, 2])
        told = [place.run("add", place.rules, added, "--tokenizer", "byte", status=2 * wrong)]
        told += [place.run(command, place.catalog.url, status=2 * wrong) for command in ("ls", "check")]
        assert all(("[bucke] is no store of" in one) == wrong for one in told)
        assert all(("did you mean 'bucket'?; [bucket] is missing" in one) == wrong for one in told)
        lines = [record.getMessage() for record in caplog.records]
        said = f"data: GEOCOMM_STORES, {keys}: no store of {place.catalog.url}, so not used for it: {unused}"
        assert lines == [said] * bool(unused)


def test_ids_of_16_bits_are_refused_for_a_larger_vocabulary(place: Place) -> None:
    place.add(place.write("a.tokens", [1]), "--tokenizer", "byte")
    version = place.catalog.read()
    version = version.model_copy(update={"vocabulary": 70_000, "dtype": "<u4", "number": 2})
    place.catalog.add(version, [Shard("0" * 64, "disk", "a.tokens", 2, 1)])
    ds = place.write("b.ds", [1])
    (place.store / "b.ds.metadata").write_text("tok|2\n1\n")
    assert "wrapped" in place.refuses(ds)


def test_second_writer_of_a_version_is_refused(place: Place) -> None:
    place.add(place.write("a.tokens", [1]), "--tokenizer", "byte")
    version = place.catalog.read()
    following = version.model_copy(update={"number": 2})
    place.catalog.add(following, [Shard("0" * 64, "disk", "a.tokens", 2, 1)])
    first = place.catalog.digest(2)
    with pytest.raises(BadInput, match="somebody else"):
        place.catalog.add(following, [Shard("0" * 64, "disk", "a.tokens", 4, 1)])
    assert place.catalog.digest(2) == first
    assert not list(Path(place.catalog.url).glob(".*"))


def test_check_finds_what_is_gone_short_or_other(place: Place) -> None:
    for name in ("gone", "short", "other"):
        place.write(f"{name}.tokens", [1, 2, 3])
    place.add(place.store, "--tokenizer", "byte")
    name = place.catalog.url
    place.run("check", name, "--deep")
    (place.store / "gone.tokens").unlink()
    place.write("short.tokens", [1, 2])
    place.write("other.tokens", [1, 2, 4])
    assert "2 of its problems" in place.run("check", name, status=2)
    assert "3 of its problems" in place.run("check", name, "--deep", status=2)
    assert "unknown site" in place.run("check", name, "--site", "tokyo", status=2)
    assert "no version 3" in place.run("check", f"{name}@3", status=2)
    assert "no version of a data set" in place.run("ls", place.store, status=2)


def test_damaged_or_lying_part_is_refused(place: Place) -> None:
    place.add(place.write("a.tokens", [1, 2, 3]), "--tokenizer", "byte")
    [part] = (Path(place.catalog.url) / "parts").iterdir()
    right = part.read_bytes()
    for wrong in (right + right, right.replace(b'"disk"', b'"dusk"'), b"[]\n", b""):
        part.write_bytes(wrong)
        with pytest.raises(BadInput):
            place.catalog.shards(place.catalog.read())
    part.unlink()
    with pytest.raises(BadInput, match="cannot be read"):
        place.catalog.shards(place.catalog.read())


@pytest.mark.parametrize("path", ["../secret", "/etc/passwd"])
def test_shard_outside_its_store_is_refused(place: Place, path: str) -> None:
    place.add(place.write("a.tokens", [1]), "--tokenizer", "byte")
    version = place.catalog.read().model_copy(update={"number": 2})
    place.catalog.add(version, [Shard("0" * 64, "disk", path, 0, 1)])
    with pytest.raises(BadInput, match="no path inside"):
        place.catalog.shards(place.catalog.read())


@pytest.fixture(scope="module")
def one_version(tmp_path_factory: pytest.TempPathFactory) -> Place:
    place = Place(tmp_path_factory.mktemp("fuzz"))
    place.add(place.write("a.tokens", [1]), "--tokenizer", "byte")
    return place


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(
    field=st.sampled_from(["geocomm_data", "number", "tokenizer", "vocabulary", "dtype", "rules", "parts", "more"]),
    value=JSON,
    cut=st.integers(0, 400),
)
def test_any_other_version_or_part_is_read_or_refused(one_version: Place, field: str, value: object, cut: int) -> None:
    place = one_version
    path = Path(place.catalog.url) / "000001.json"
    right = json.loads(path.read_text())
    for content in (json.dumps({**right, field: value}), json.dumps(right)[:cut]):
        path.write_text(content)
        with contextlib.suppress(BadInput):
            place.catalog.shards(place.catalog.read())
    path.write_text(json.dumps(right))
    [part] = (Path(place.catalog.url) / "parts").iterdir()
    kept = part.read_bytes()
    part.write_text(json.dumps(value))
    with pytest.raises(BadInput):
        place.catalog.shards(place.catalog.read())
    part.write_bytes(kept)


@given(st.lists(st.sampled_from(["eu", "us", "frankfurt", "virginia"]), max_size=3).map(tuple))
def test_label_is_read_by_its_sites_and_regions_alone(readers: tuple[str, ...]) -> None:
    rules = Rules.model_validate(
        {
            "sites": {"frankfurt": "eu", "virginia": "us"},
            "stores": {"a": {"url": "a"}},
            "labels": {"x": {"readers": readers}},
        }
    )
    assert rules.may_read("frankfurt", ["x"]) == bool({"eu", "frankfurt"} & {*readers})
    assert rules.may_read("virginia", ["x"]) == bool({"us", "virginia"} & {*readers})
    assert rules.may_read("tokyo", [])
    for unknown in ("tokyo", "eu", "us"):  # a region's name makes no site of that region
        assert not rules.may_read(unknown, ["x"])
    assert not rules.may_read("frankfurt", ["gone"])

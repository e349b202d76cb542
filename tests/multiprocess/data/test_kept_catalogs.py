"""Catalogs that cannot be read: what was read before is in the cache; the rest is awaited, by its name."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.data.catalog import KeptCatalog
from geocomm.data.dealt_version import ReadVersion
from geocomm.data.shard_sequences import SetName, ShardSequences
from support.log_lines import once_said
from support.object_servers import WebServer, web_server
from support.small_catalog import add_version, shard

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GEOCOMM_DATA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    """Of versions 1 and 2."""
    folder = tmp_path / "web"
    for number in (1, 2):
        add_version(folder, number, [shard(one) for one in range(8 * number)])
    files = {f"/{one.relative_to(folder)}": one.read_bytes() for one in folder.rglob("*") if one.is_file()}
    with web_server(files) as server:
        yield server


def test_version_of_a_known_hash_is_read_once_from_the_catalog_and_then_from_the_cache(web: WebServer) -> None:
    first = ReadVersion.read(KeptCatalog(web.url), 2)
    asked = len(web.asked)
    web.dead = True
    again = ReadVersion.read(KeptCatalog(web.url), 2, first.sha256)
    assert again == first
    assert len(again.shards) == 16
    assert len(web.asked) == asked


def test_where_the_hash_is_not_known_the_catalog_is_asked_first(web: WebServer, cache: Path) -> None:
    first = ReadVersion.read(KeptCatalog(web.url), 1)
    web.files["/000001.json"] = web.files["/000001.json"].replace(b'"vocabulary":256', b'"vocabulary":255')
    other = ReadVersion.read(KeptCatalog(web.url), 1)
    assert other.version.vocabulary == 255
    with pytest.raises(BadInput, match="another one than the run has read"):
        ReadVersion.read(KeptCatalog(web.url), 1, first.sha256)
    web.dead = True
    assert ReadVersion.read(KeptCatalog(web.url), 1) == other
    [kept] = (cache / "catalogs").iterdir()
    (kept / "000001.json").write_bytes(b"damaged")
    with pytest.raises(BadInput, match=r"000001\.json of .*: "):
        ReadVersion.read(KeptCatalog(web.url), 1)


def test_newest_version_that_was_read_goes_on_where_the_catalog_cannot_be_listed(
    web: WebServer, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BadInput, match="cannot be listed"):  # as no web server can
        KeptCatalog(web.url).numbers()
    for number in (1, 2):
        ShardSequences(SetName(web.url, number), "a", 5, 0.0, 0)
    web.dead = True
    with caplog.at_level(logging.WARNING):
        assert ShardSequences(SetName(web.url, None), "a", 5, 0.0, 0).version.number == 2
    assert f"{web.url} cannot be listed" in caplog.text
    assert "the newest version that was read before is 2" in caplog.text


@pytest.mark.parametrize("fault", ["dead", "hangs"])
def test_catalog_that_cannot_be_read_is_awaited_by_its_name(
    web: WebServer, cache: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    sha256 = ReadVersion.read(KeptCatalog(web.url), 1).sha256
    shutil.rmtree(cache)
    monkeypatch.setattr("geocomm.core.patience.FIRST_WORD_S", 1.0)
    setattr(web, fault, True)
    said = f"waiting for the catalog {web.url}, to read 000001.json"
    with caplog.at_level(logging.WARNING), once_said(caplog, said, lambda: setattr(web, fault, False)):
        assert ReadVersion.read(KeptCatalog(web.url), 1, sha256).sha256 == sha256


def test_wait_for_a_catalog_ends_in_one_error_and_what_is_missing_is_not_awaited(web: WebServer) -> None:
    sha256 = ReadVersion.read(KeptCatalog(f"{web.url}/"), 1).sha256
    with pytest.raises(BadInput, match="has no version 3"):
        ReadVersion.read(KeptCatalog(web.url), 3, sha256)
    web.dead = True
    with pytest.raises(BadInput, match=rf"000001\.json of {web.url} cannot be read: .*, since 1 s"):
        ReadVersion.read(KeptCatalog(web.url, wait_s=1.0), 1, sha256)

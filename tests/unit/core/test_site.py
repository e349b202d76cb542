"""The one rule for names of sites, and that every place where a name is written keeps it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from geocomm.core.bad_input import BadInput
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.link_table import Links
from geocomm.core.options import Options
from geocomm.core.place import find_place
from geocomm.core.site import SiteNameError, check_site_name, suggested_name
from geocomm.lab.emulator.emulated_links import EmulatedWan, WanConfigError
from geocomm.security.job_ca import JobCa
from geocomm.security.key_folder import Identity, KeysError

SENTENCE = (
    "site 'São Paulo': a site's name has 1 to 64 letters A to Z, digits, '_', '-' or '.', and begins with a letter or "
    "digit; use 'sao-paulo'"
)


@pytest.mark.parametrize("name", ["a", "frankfurt", "US-East.1", "0", "x" * 64])
def test_good_name_is_returned(name: str) -> None:
    assert check_site_name(name) == name


@pytest.mark.parametrize("name", ["", " ", "-a", ".", "..", "a b", "a/b", "a,b", "a:b", "a\n", "ä", "x" * 65, None, 3])
def test_name_against_the_rule_is_refused(name: object) -> None:
    with pytest.raises(SiteNameError, match="a site's name has"):
        check_site_name(name)


@pytest.mark.parametrize("name", ["issued", "ca.pem"])
def test_name_of_a_file_of_the_keys_is_refused(name: str) -> None:
    with pytest.raises(SiteNameError, match="geocomm keys"):
        check_site_name(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [("São Paulo", "sao-paulo"), ("-a", "a"), ("New  York/2", "new-york-2"), ("x" * 70, "x" * 64), ("東京", "")],
)
def test_suggested_name_is_good_or_empty(name: str, near: str) -> None:
    assert suggested_name(name) == near
    assert near == "" or check_site_name(near) == near


PLACES: dict[str, tuple[type[Exception], Callable[[str, Path], object]]] = {
    "option": (InvalidArgumentError, lambda site, _: Options(site=site).validate()),
    "launcher": (BadInput, lambda site, _: find_place({"GEOCOMM_SITE": site})),
    "rdma": (InvalidArgumentError, lambda site, _: Options(transport=f"rdma:{site},x", security="insecure").validate()),
    "links": (InvalidArgumentError, lambda site, _: Links.uniform((site, "x"))),
    "emulator": (WanConfigError, lambda site, _: EmulatedWan.uniform((site, "x"))),
    "new keys": (KeysError, lambda site, folder: JobCa.create(folder / "keys", "job", [site], 1)),
    "certificate": (KeysError, lambda site, _: Identity.of_uris([f"geocomm://job/{site}"])),
}


@pytest.mark.parametrize("place", PLACES)
def test_bad_name_is_refused_in_the_same_words_everywhere(place: str, tmp_path: Path) -> None:
    kind, use = PLACES[place]
    use("sao-paulo", tmp_path / "good")
    with pytest.raises(kind) as caught:
        use("São Paulo", tmp_path)
    assert SENTENCE in str(caught.value)

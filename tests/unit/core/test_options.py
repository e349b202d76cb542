"""geocomm.Options: arguments, GEOCOMM_* variables, validation."""

from __future__ import annotations

import copy
import os
import pickle
import re
from datetime import timedelta

import pytest
from field_lists import option_list, variable_list

from geocomm.core.environment import OTHER_VARIABLES, log_level
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.options import (
    Options,
    codec_threads,
    listen_port,
    metrics_listen_port,
    transport_keys,
    value_text,
    warn_of_unknown_variables,
)

# Field → (text of its variable, value that it means, another value).
EVERY_FIELD = {
    "site": ("berlin", "berlin", "rome"),
    "one_site": ("1", True, False),
    "codec": ("int8", "int8", "bf16"),
    "codecs": ("int8, int4", ("int8", "int4"), ("bf16",)),
    "max_nmse": ("0.05", 0.05, 0.0),
    "max_relative_error": ("0.2", 0.2, 0.1),
    "links": ("links.json", "links.json", "other.json"),
    "transport": ("tcp", "tcp", "tcp"),
    "rdma_trusted": ("1", True, False),
    "security": ("insecure", "insecure", "required"),
    "keys": ("/etc/geocomm/a", "/etc/geocomm/a", "/etc/geocomm/b"),
    "streams": ("8", 8, 3),
    "address": ("10.0.0.2", "10.0.0.2", "::1"),
    "port": ("4000", 4000, 5000),
    "outbound_only": ("1", True, False),
    "threads": ("2", 2, 7),
    "link_deadline": ("90s", timedelta(seconds=90), timedelta(seconds=5)),
    "min_compress_bytes": ("1mib", 1 << 20, 0),
    "preserve_inputs": ("1", True, False),
    "max_pacing_bps": ("500mbit", 500_000_000, 10_000),
    "metrics_port": ("9400", 9400, 9500),
    "metrics_address": ("0.0.0.0", "0.0.0.0", "::1"),
    "metrics_otlp": ("1", True, False),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("GEOCOMM_")]:
        monkeypatch.delenv(name)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def variable_of(name: str) -> str:
    return f"GEOCOMM_{name.upper()}"


def test_options_without_environment_are_the_documented_defaults() -> None:
    options = Options()
    options.validate()
    assert options.model_dump() == {
        "site": None,
        "one_site": False,
        "codec": "none",
        "codecs": ("lossless", "bf16", "int8", "int4", "balanced", "small"),
        "max_nmse": 1e-3,
        "max_relative_error": None,
        "links": None,
        "transport": "tcp",
        "rdma_trusted": False,
        "security": "required",
        "keys": None,
        "streams": None,
        "address": None,
        "port": None,
        "outbound_only": False,
        "threads": None,
        "link_deadline": timedelta(seconds=60),
        "min_compress_bytes": 64 * 1024,
        "preserve_inputs": False,
        "max_pacing_bps": None,
        "metrics_port": None,
        "metrics_address": "127.0.0.1",
        "metrics_otlp": False,
    }


def test_table_of_this_test_covers_every_field() -> None:
    assert set(EVERY_FIELD) == set(Options.model_fields)


@pytest.mark.parametrize("name", EVERY_FIELD)
def test_option_is_read_from_its_variable(environment: pytest.MonkeyPatch, name: str) -> None:
    text, value, _ = EVERY_FIELD[name]
    environment.setenv(variable_of(name), text)
    options = Options()
    options.validate()
    assert getattr(options, name) == value


@pytest.mark.parametrize("name", EVERY_FIELD)
def test_option_given_as_argument_beats_its_variable(environment: pytest.MonkeyPatch, name: str) -> None:
    text, _, other = EVERY_FIELD[name]
    environment.setenv(variable_of(name), text)
    options = Options(**{name: other})
    options.validate()
    assert getattr(options, name) == other


def test_option_none_given_as_argument_beats_its_variable(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("GEOCOMM_SITE", "berlin")
    assert Options(site=None).site is None


def test_option_of_an_empty_variable_is_the_default(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("GEOCOMM_STREAMS", "")
    assert Options().streams is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("transport", "rdma:a"),
        ("transport", "tcp:a,b"),
        ("rdma_trusted", "yes"),
        ("security", "insecur"),
        ("site", "  "),
        ("site", "São Paulo"),
        ("site", "x" * 65),
        ("codecs", "int8"),
        ("codecs", (8,)),
        ("max_nmse", -1.0),
        ("max_nmse", None),
        ("max_relative_error", float("nan")),
        ("links", 3),
        ("streams", 0),
        ("streams", 65),
        ("streams", True),
        ("streams", 2.5),
        ("port", 70_000),
        ("threads", 0),
        ("link_deadline", timedelta(milliseconds=5)),
        ("link_deadline", "60"),
        ("min_compress_bytes", -1),
        ("max_pacing_bps", 10),
        ("one_site", "yes"),
        ("preserve_inputs", "yes"),
        ("outbound_only", 1),
        ("codec", None),
        ("metrics_port", 0),
        ("metrics_address", ""),
    ],
)
def test_validate_of_an_impossible_value_names_field_variable_and_value(name: str, value: object) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        Options(**{name: value}).validate()
    shown = value_text(value) if isinstance(value, timedelta) else repr(value)
    for mention in (name, variable_of(name), shown):
        assert mention in str(caught.value)


@pytest.mark.parametrize(("name", "value", "right"), [("security", "insecur", "insecure"), ("transport", "tpc", "tcp")])
def test_validate_of_a_misspelt_value_offers_the_nearest(name: str, value: str, right: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"did you mean '{right}'"):
        Options(**{name: value}).validate()


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("GEOCOMM_STREAMS", "many"),
        ("GEOCOMM_PORT", "4000.5"),
        ("GEOCOMM_LINK_DEADLINE", "soon"),
        ("GEOCOMM_MIN_COMPRESS_BYTES", "big"),
        ("GEOCOMM_PRESERVE_INPUTS", "maybe"),
        ("GEOCOMM_MAX_PACING_BPS", "fast"),
        ("GEOCOMM_METRICS_PORT", "web"),
    ],
)
def test_options_with_an_unreadable_variable_name_it(environment: pytest.MonkeyPatch, variable: str, text: str) -> None:
    environment.setenv(variable, text)
    with pytest.raises(InvalidArgumentError) as caught:
        Options()
    assert variable in str(caught.value)
    assert text in str(caught.value)


def test_link_deadline_as_number_is_seconds(environment: pytest.MonkeyPatch) -> None:
    assert Options(link_deadline=2.5).link_deadline == timedelta(seconds=2.5)
    environment.setenv("GEOCOMM_LINK_DEADLINE", "45")
    assert Options().link_deadline == timedelta(seconds=45)
    with pytest.raises(InvalidArgumentError, match="link_deadline"):
        Options(link_deadline=float("nan"))


def test_keys_come_from_the_variable_and_must_be_a_folder(environment: pytest.MonkeyPatch) -> None:
    assert Options().keys is None
    environment.setenv("GEOCOMM_KEYS", "/etc/geocomm/a")
    assert Options().keys == "/etc/geocomm/a"
    assert Options(keys="/b").keys == "/b"
    with pytest.raises(InvalidArgumentError, match="GEOCOMM_KEYS"):
        Options(keys="").validate()


def test_insecure_uses_no_keys_and_ranks_must_agree_whether_there_are_any() -> None:
    secure = Options(keys="/keys/a", security="required")
    insecure = Options(keys="/keys/a", security="insecure")
    assert transport_keys(secure) == "/keys/a"
    assert transport_keys(insecure) is None
    assert secure.agreed()["keys"] == Options(keys="/keys/b", security="required").agreed()["keys"]
    assert secure.agreed()["keys"] != Options(security="required").agreed()["keys"]


def test_given_for_sites_lists_what_differs_from_the_defaults_and_counts_between_sites_only() -> None:
    assert Options(threads=2, address="::1", metrics_port=9400, one_site=True).given_for_sites() == []
    given = Options(site="a", security="insecure", link_deadline=5).given_for_sites()
    assert given == ["GEOCOMM_SITE", "GEOCOMM_SECURITY", "GEOCOMM_LINK_DEADLINE"]


def test_what_is_not_as_by_default_is_told_as_variables_have_it(environment: pytest.MonkeyPatch) -> None:
    given = Options(
        site="a", codecs=("int8", "int4"), link_deadline=5, preserve_inputs=True, min_compress_bytes=1 << 20
    )
    told = given.not_as_by_default()
    for name, text in told.items():
        environment.setenv(f"GEOCOMM_{name.upper()}", text)
    assert len(told) == 5
    assert Options() == given


def test_replace_changes_only_what_is_given(environment: pytest.MonkeyPatch) -> None:
    options = Options(codec="int8", streams=5)
    environment.setenv("GEOCOMM_STREAMS", "9")
    assert options.replace(codec="none") == Options(codec="none", streams=5)


def test_agreed_leaves_out_what_ranks_may_choose_alone() -> None:
    own = {"site", "one_site", "address", "port", "threads", "metrics_port", "metrics_address", "metrics_otlp"}
    assert not own & Options().agreed().keys()
    assert Options(codec="int8").agreed() != Options().agreed()
    assert Options(codec="auto").agreed() != Options(codec="auto", max_nmse=0.1).agreed()
    assert Options(codec="int8", max_nmse=0.1).agreed() == Options(codec="int8").agreed()


def test_codec_threads_share_the_cores_among_local_ranks(environment: pytest.MonkeyPatch) -> None:
    cores = len(os.sched_getaffinity(0))
    assert codec_threads(Options()) == cores
    environment.setenv("LOCAL_WORLD_SIZE", str(4 * cores))
    assert codec_threads(Options()) == 1
    assert codec_threads(Options(threads=3)) == 3


def test_listen_port_pins_port_plus_local_rank(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("LOCAL_RANK", "3")
    assert listen_port(Options()) == 0
    assert listen_port(Options(port=4000)) == 4003
    assert metrics_listen_port(Options(metrics_port=9400)) == 9403


def test_log_level_of_an_unknown_name_is_refused(environment: pytest.MonkeyPatch) -> None:
    assert log_level() == 2
    environment.setenv("GEOCOMM_LOG", "Debug")
    assert log_level() == 0
    environment.setenv("GEOCOMM_LOG", "verbos")
    with pytest.raises(InvalidArgumentError, match="GEOCOMM_LOG"):
        log_level()


def test_copies_and_pickles_are_equal_whatever_the_environment_is_then(environment: pytest.MonkeyPatch) -> None:
    options = Options(codec="int8", streams=5, link_deadline=90)
    environment.setenv("GEOCOMM_STREAMS", "9")
    environment.setenv("GEOCOMM_THREADS", "many")
    assert copy.copy(options) == copy.deepcopy(options) == pickle.loads(pickle.dumps(options)) == options
    assert options != options.replace(streams=4)


def test_codec_that_cannot_be_is_refused_where_it_is_written() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^option codec \(GEOCOMM_CODEC\): .*did you mean 'int8'"):
        Options(codec="int9")
    assert Options(codec="int4:block=64+huffman").codec == "int4:block=64+huffman"


def test_field_that_does_not_exist_is_refused_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="no field 'codek'; did you mean 'codec'"):
        Options(codek="int8")


def test_validate_refuses_what_was_set_to_something_impossible_later() -> None:
    options = Options()
    options.validate()
    options.streams = 99
    with pytest.raises(InvalidArgumentError, match="GEOCOMM_STREAMS"):
        options.validate()


def test_variables_that_nobody_reads_are_warned_of_once(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    warn_of_unknown_variables.forget()
    environment.setenv("GEOCOMM_CODEK", "int8")
    environment.setenv("GEOCOMM_COLOUR", "red")
    environment.setenv("GEOCOMM_LOG", "info")
    environment.setenv("GEOCOMM_CUDA", "0")
    assert (Options(), Options())[0].codec == "none"
    (record,) = caplog.records
    text = record.getMessage()
    assert "GEOCOMM_CODEK is set" in text
    assert "did you mean 'GEOCOMM_CODEC'" in text
    assert "GEOCOMM_COLOUR is set" in text
    assert "GEOCOMM_LOG" not in text
    assert "GEOCOMM_CUDA" not in text


def test_options_whose_variables_are_all_known_warn_of_nothing(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unknown_variables.forget()
    Options()
    assert caplog.records == []


def test_list_for_the_docs_has_an_item_for_every_variable() -> None:
    text = option_list() + variable_list()
    variables = re.findall(r"^- (?:`\w+`, )?`(GEOCOMM_\w+)`", text, re.MULTILINE)
    assert variables == [*map(variable_of, EVERY_FIELD), *(name for name, _, _ in OTHER_VARIABLES)]
    assert "- `streams`, `GEOCOMM_STREAMS`: TCP streams per peer; " in text
    assert "; a whole number from 1 to 64\n" in text
    assert "- `link_deadline`, `GEOCOMM_LINK_DEADLINE` (`60s`): " in text


def test_help_names_every_field_with_its_variable() -> None:
    text = Options.__doc__ or ""
    assert [name for name in EVERY_FIELD if f"        {name} ({variable_of(name)}): " not in text] == []

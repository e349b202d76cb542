"""The options that `geocomm run` and `geocomm members lead` share, and what they mean."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from geocomm.core.bad_input import BadInput, did_you_mean
from geocomm.core.site import SiteNameError, check_site_name

if TYPE_CHECKING:
    from geocomm.data.deal_records import DealtSet
    from geocomm.elastic.journal.sequencer_events import LeaderSettings
    from geocomm.elastic.supervisor import PublishConfig
    from geocomm.security.key_folder import Keys

elastic_option = functools.partial(typer.Option, rich_help_panel="Elastic runs")

HubOption = Annotated[
    str | None, typer.Option(help="Where all meet: host:port, the same everywhere.", metavar="HOST:PORT")
]
ListenOption = Annotated[
    str | None,
    typer.Option(
        help="The hub is here and listens at this address, since --hub is translated.", metavar="ADDRESS:PORT"
    ),
]
BackendOption = Annotated[
    str | None,
    typer.Option(
        help="geocomm: groups over sites are geocomm's, whatever backend the script names. Default: script, its own.",
        metavar="NAME",
    ),
]
BackendNameOption = Annotated[
    str | None,
    typer.Option(
        help="With --backend geocomm, what the script is told of its backend: geocomm, gloo, nccl or "
        "cpu:gloo,cuda:nccl. Default: script, what it asked for.",
        metavar="NAME",
    ),
]
KeysOption = Annotated[str | None, typer.Option(help="This site's folder of keys. Default: $GEOCOMM_KEYS.")]
JournalOption = Annotated[
    str,
    elastic_option(
        help="In place of --hub, at all sites: the journal is in etcd, and a site takes over from a lost leader.",
        metavar="etcd://HOST:PORT,HOST:PORT/NAME",
    ),
]
AddressOption = Annotated[
    str,
    elastic_option(
        help="With --journal: where other sites reach this one, if its address is translated.", metavar="HOST:PORT"
    ),
]
WaitForOption = Annotated[
    str, elastic_option(help="At the leader: no round before these sites are there.", metavar="A,B")
]
MinSitesOption = Annotated[int, elastic_option(min=1, help="At the leader: no round counts fewer sites.")]
DataOption = Annotated[
    str,
    elastic_option(
        help="At the leader: the catalog of a data set, of which each site gets what to read next.", metavar="URL"
    ),
]
LengthOption = Annotated[int, elastic_option(min=0, help="With --data: tokens of a sequence.")]
HeldOutOption = Annotated[
    float, elastic_option(min=0, max=0.5, help="With --data: this part of the sequences is never trained on.")
]
DoubtOption = Annotated[
    float,
    elastic_option(
        min=0,
        help="At the leader: minutes until others get what a missing site has not read; 0: never.",
        metavar="MINUTES",
    ),
]


def backend_variables(backend: str | None, name: str | None, *, elastic: bool) -> dict[str, str]:
    """The variables that tell the ranks of --backend and --backend-name. Raises BadInput for what these cannot be."""
    from geocomm.core.environment import BACKEND_NAMES, BACKENDS, SCRIPTS_OWN, backend_over_sites

    if elastic and (backend, name) != (None, None):
        raise BadInput(
            "leave out --backend and --backend-name: in an elastic run each site is a job of its own, and its groups "
            "stay the script's"
        )
    for option, given, allowed in (("--backend", backend, BACKENDS), ("--backend-name", name, BACKEND_NAMES)):
        if given is not None and given not in allowed:
            raise BadInput(f"{option} {given}: it must be one of {', '.join(allowed)}{did_you_mean(given, allowed)}")
    if name is not None and (backend or backend_over_sites()) == SCRIPTS_OWN:
        raise BadInput(f"--backend-name {name} is for --backend geocomm: other groups have the names of their backends")
    given = {"GEOCOMM_BACKEND": backend, "GEOCOMM_BACKEND_NAME": name}
    return {variable: value for variable, value in given.items() if value is not None}


def load_keys(given: str | None) -> Keys:
    """The keys in `given`, or in GEOCOMM_KEYS. Raises BadInput where there are none."""
    from geocomm.security.key_folder import Keys

    keys = Keys.given(given)
    if keys is None:
        raise BadInput(
            "no keys: make them once with geocomm keys create a b, and set GEOCOMM_KEYS to this site's folder"
        )
    return keys


def check_meeting(hub: str | None, address: str, journal: str, listen: str | None = None, site_hub: str = "") -> None:
    """Raise BadInput unless these are addresses."""
    from geocomm.core.addresses import Address, host_and_port

    for one in filter(None, (hub, address, site_hub)):
        Address.parse(one)
    if listen is not None:
        host_and_port(listen, least=0)
    if journal:
        from geocomm.elastic.leading.etcd import Etcd, EtcdAddress

        Etcd(EtcdAddress.parse(journal))


def publish_config(place: str, dtype: str, readers: str | None) -> PublishConfig | None:
    """Where the run's weights go. Raises BadInput for what they cannot."""
    from geocomm.data.places import open_place, require_writable

    if dtype not in ("bfloat16", "float16", "float32"):
        raise BadInput(f"--publish-dtype {dtype}: it must be bfloat16, float16 or float32")
    if not place:
        if readers is not None:
            raise BadInput("--publish-readers is for --publish")
        return None
    require_writable(open_place(place, place), "--publish")
    names = None if readers is None else [name.strip() for name in readers.split(",")]
    try:
        for name in names or ():
            check_site_name(name)
    except SiteNameError as error:
        raise BadInput(f"--publish-readers: {error}") from None
    from geocomm.elastic.supervisor import PublishConfig

    return PublishConfig(place=place, dtype=dtype, readers=None if names is None else tuple(names))


def leader_settings(
    wait_for: str, min_sites: int, data: str, sequence_length: int, held_out_fraction: float, doubt: float
) -> LeaderSettings:
    """What the options and GEOCOMM_LINKS say that is for the leader. Raises BadInput where those of the data do not
    fit, or the links file cannot be read."""
    from geocomm.core.link_table import own_links
    from geocomm.elastic.journal.sequencer_events import LeaderSettings

    links = own_links()
    return LeaderSettings(
        wait_for=frozenset(filter(None, wait_for.split(","))),
        min_sites=min_sites,
        data=_dealt_set(data, sequence_length, held_out_fraction),
        doubt_s=60 * doubt,
        regions=() if links is None else links.named_regions(),
    )


def _dealt_set(data: str, sequence_length: int, held_out_fraction: float) -> DealtSet | None:
    from geocomm.data.corpus.packing import held_out_every
    from geocomm.data.deal_records import DealtSet
    from geocomm.data.shard_sequences import SetName

    if not data:
        if sequence_length or held_out_fraction:
            raise BadInput("--sequence-length and --held-out-fraction are for --data")
        return None
    if not sequence_length:
        raise BadInput("--data needs --sequence-length")
    name = SetName.parse(data)
    if name.number is not None:
        raise BadInput(f"--data {data}: an elastic run reads the newest version, and each newer one: leave out @")
    url = name.url if "://" in name.url else str(Path(name.url.removeprefix("file:")).expanduser().resolve())
    every = held_out_every(held_out_fraction)
    return DealtSet(set=url, sequence_length=sequence_length, held_out_every=every)

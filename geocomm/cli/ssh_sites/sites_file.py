"""`sites.toml`: the sites of a run and how to reach their machines. All that `geocomm up` needs but the script."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self, cast

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from geocomm.core.addresses import Address, host_and_port, is_loopback
from geocomm.core.bad_input import BadInput, Location, did_you_mean, location_text, problem_text
from geocomm.core.environment import BACKEND_NAMES, BACKENDS, SCRIPTS_OWN
from geocomm.core.settings import Section
from geocomm.core.site import check_name, check_site_name


def _checked_hub(text: str) -> str:
    hub = Address.parse(text)
    if is_loopback(hub.host):
        raise ValueError(f"{hub.host} leads each site to itself; name the address that the other sites dial")
    return str(hub)


def _checked_address(text: str) -> str:
    host_and_port(text, least=0)
    return text


def _checked_destination(text: str) -> str:
    if not text or text.startswith("-") or "@-" in text or {" ", "/"} & {*text} or not text.isprintable():
        raise ValueError(
            f"{text!r} is not what ssh takes as user@host; a port or a jump host belongs into ssh's configuration"
        )
    return text


def _checked_path(text: str) -> str:
    if not text.isprintable() or text.startswith("-") or text in ("~", "~/"):
        raise ValueError(f"{text!r} is not a path at the site, such as ~/folder/name")
    return text


def _checked_backend(text: str) -> str:
    return _one_of(text, BACKENDS)


def _checked_backend_name(text: str) -> str:
    return _one_of(text, BACKEND_NAMES)


def _one_of(text: str, allowed: tuple[str, ...]) -> str:
    if text not in allowed:
        raise ValueError(f"{text!r} is not one of {', '.join(allowed)}{did_you_mean(text, allowed)}")
    return text


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _as_texts(value: Any) -> Any:
    """Numbers may be written as such."""
    if not isinstance(value, dict):
        return value
    given = cast(dict[str, Any], value)
    return {name: str(each) if type(each) in (int, float) else each for name, each in given.items()}


_Variables = Annotated[
    dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str], BeforeValidator(_as_texts)
]
_Address = Annotated[str, AfterValidator(_checked_address)]
_Words = Annotated[tuple[str, ...], BeforeValidator(_as_list)]


class Site(Section):
    """A site: its machines, all alike."""

    ssh: Annotated[
        tuple[Annotated[str, AfterValidator(_checked_destination)], ...], BeforeValidator(_as_list), Field(min_length=1)
    ]
    """Its nodes, each as ssh takes it."""
    python: Annotated[str, Field(min_length=1), AfterValidator(_checked_path)] = "python3"
    """What has geocomm there."""
    folder: Annotated[str, AfterValidator(_checked_path)] = ""
    """The folder of this run at the site, relative to the home there. Empty: geocomm-up/JOB/SITE."""
    ranks: Annotated[int, Field(ge=1)] | None = None
    """The ranks of each node: torchrun's --nproc-per-node."""
    environment: _Variables = Field(default_factory=dict[str, str])
    """Variables of the ranks of this site, besides those of all."""
    run_options: _Words = ()
    """Options of `geocomm run` at this site, besides those of all."""
    listen: _Address | None = None
    """The hub is here and listens at this address, since that of `hub` is translated."""
    site_hub: _Address | None = None
    """Where the nodes of this site meet in an elastic run."""


class SitesFile(Section):
    """All of sites.toml."""

    hub: Annotated[str, AfterValidator(_checked_hub)]
    """Where the sites meet, as for `geocomm run`."""
    job: Annotated[str, AfterValidator(lambda name: check_name(name, "job"))] = "job"
    """The job's name in its keys and folders."""
    keys: Path = Path("geocomm-keys")
    """Folder of the CA and of the sites' keys on this machine. Made where it is not there."""
    ssh_config: Path | None = None
    """Configuration of ssh in place of the user's own."""
    backend: Annotated[str, AfterValidator(_checked_backend)] | None = None
    """Of groups over sites: `geocomm run --backend`."""
    backend_name: Annotated[str, AfterValidator(_checked_backend_name)] | None = None
    """What scripts are told of it: `geocomm run --backend-name`."""
    exclude: _Words = ()
    """Names and patterns beside the script that are not copied."""
    environment: _Variables = Field(default_factory=dict[str, str])
    """Variables of all ranks."""
    run_options: _Words = ()
    """Options of `geocomm run` at all sites."""
    sites: Annotated[dict[Annotated[str, AfterValidator(check_site_name)], Site], Field(min_length=1)]

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        owners: dict[str, str] = {}
        for name, site in self.sites.items():
            for machine in site.ssh:
                if machine in owners:
                    raise ValueError(f"ssh: {machine} stands twice, for {owners[machine]} and for {name}")
                owners[machine] = name
        if self.backend_name is not None and self.backend in (None, SCRIPTS_OWN):
            raise ValueError('backend_name is for backend = "geocomm": other groups have the names of their backends')
        hubs = [name for name, site in self.sites.items() if site.listen]
        if len(hubs) > 1:
            raise ValueError(f"listen: the hub is at one site, not at {' and '.join(hubs)}")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """The file at `path`; its own paths are relative to it. BadInput says what is wrong with it."""
        try:
            found = cls.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise BadInput(
                f'{path}: {error.strerror}; it has a line hub = "host:port", and a table [sites.NAME] with '
                'ssh = "user@host" for each site'
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            twice = "; each site has one table" if "twice" in str(error) else ""
            raise BadInput(f"{path}: {error}{twice}") from None
        except ValidationError as error:
            raise BadInput(f"{path}: {_told(error)}") from None
        folder = path.resolve().parent
        config = found.ssh_config and folder / found.ssh_config.expanduser()
        return found.model_copy(update={"keys": folder / found.keys.expanduser(), "ssh_config": config})

    @property
    def nodes(self) -> list[Node]:
        """The machines, in the order of --node-rank."""
        found: list[Node] = []
        for name, site in self.sites.items():
            folder = site.folder or f"geocomm-up/{self.job}/{name}"
            for rank, machine in enumerate(site.ssh):
                found.append(Node(len(found), name, site, rank, machine, folder.removeprefix("~/")))
        return found


_EXAMPLES = {
    "python": "~/geocomm/.venv/bin/python",
    "folder": "/a/larger/disk/run",
    "keys": "~/keys/of/the/job",
    "listen": "0.0.0.0:29400",
}


def in_sites_file(key: str) -> str:
    """How a key is written in sites.toml, for advice: `in sites.toml: folder = "/a/larger/disk/run"`."""
    return f'in sites.toml: {key} = "{_EXAMPLES[key]}"'


@dataclass(frozen=True, eq=False)
class Node:
    """A machine of a site."""

    number: int
    """In the job."""
    site_name: str
    site: Site
    rank_in_site: int
    ssh: str
    folder: str
    """The folder of the run there."""

    @property
    def log(self) -> str:
        """Where the run's log is, as `scp` takes it."""
        return f"{self.ssh}:{self.folder}/node-{self.number}.log"

    def __str__(self) -> str:
        """The name in messages: the site, and which machine where it has several."""
        return self.site_name if len(self.site.ssh) == 1 else f"{self.site_name} ({self.ssh})"


def _told(error: ValidationError) -> str:
    found: list[Any] = error.errors(include_url=False)
    problem = next((one for one in found if one["type"] == "extra_forbidden"), found[0])  # it may be what is missing
    location: Location = problem["loc"]
    if problem["type"] == "extra_forbidden":
        inside = len(location) > 2 and location[0] == "sites"
        where = f"{location_text(location[:-1])}: " if inside else ""
        return where + problem_text(problem, known=(Site if inside else SitesFile).model_fields)
    if problem["type"] == "missing" and problem["loc"] == ("hub",):
        return 'hub is missing: hub = "host:port" says where the sites meet, at a machine of one of them'
    if problem["type"] == "missing" and problem["loc"] == ("sites",):
        return 'there are no sites: each is a table [sites.NAME] with ssh = "user@host"'
    return problem_text(problem)

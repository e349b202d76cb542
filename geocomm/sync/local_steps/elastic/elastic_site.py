"""This process as a rank of one site of an elastic run, whose other sites it knows only by their names."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist
from typing_extensions import override

from geocomm.core import environment
from geocomm.core.addresses import is_loopback
from geocomm.core.errors import InvalidArgumentError
from geocomm.core.native import native
from geocomm.core.options import Options
from geocomm.core.typed_torch import all_gather_object, new_group
from geocomm.elastic.journal.messages import Model
from geocomm.group.backend.runtime import runtime
from geocomm.group.membership.own_address import advertised
from geocomm.metrics.exporters import check_reporting, reporting
from geocomm.sync.local_steps.elastic.member_rounds import MemberRounds
from geocomm.sync.local_steps.model.fragments import Fragment
from geocomm.sync.local_steps.model.site_group import SiteFacts, SiteGroup
from geocomm.sync.local_steps.outer.delta_frames import most_bytes
from geocomm.sync.local_steps.outer.rounds import Coding

_TOKEN_BYTES = 16


class ElasticSite(SiteFacts):
    """Made by every rank of the site, in the same order: all ranks of the default process group, where there is one."""

    def __init__(self, agent: str) -> None:
        """agent: its socket. Raises InvalidArgumentError where `geocomm run --elastic` did not start this process."""
        run_dir, self._options = environment.run_folder(), Options()
        has_agent = agent != environment.AGENT_OF_FIRST_NODE
        if (run_dir is None and has_agent) or self._options.site is None or self._options.keys is None:
            raise InvalidArgumentError(
                "GEOCOMM_AGENT is set, and GEOCOMM_RUN_DIR, GEOCOMM_SITE or GEOCOMM_KEYS is not: start the ranks with "
                "geocomm run --elastic, which sets them all"
            )
        self._agent, self._run_dir = agent, run_dir or ""
        self.site, self.site_count = self._options.site, None
        self._all_have_folders = True
        self.ranks = SiteGroup()
        if dist.is_initialized() and (size := dist.get_world_size()) > 1:
            group = new_group(range(size), backend="gloo")
            told = [(self.site, has_agent, run_dir is not None)] * size
            all_gather_object(told, told[0], group)
            self.ranks = SiteGroup(group, dist.get_rank(), _owners(told))
            self._all_have_folders = all(has_folder for _, _, has_folder in told)
        check_reporting(self._options)
        reporting.start(self._options, self.ranks.place, environment.collector_socket)  # a rank alone has no group

    @property
    def run_dir(self) -> Path | None:
        """On this node. Those after the first one may have none."""
        return Path(self._run_dir) if self._run_dir else None

    def keeps_moments(self, *, sharded: bool) -> bool:
        """Whether each rank that has a part of the moments has a folder for it."""
        return not sharded or self._all_have_folders

    @override
    def sites_of(self, ranks: Sequence[int]) -> tuple[str, ...]:
        """All ranks of the default process group are at this site."""
        return (self.site,)

    def rounds(self, fragments: Sequence[Fragment], model: Model, coding: Coding) -> MemberRounds:
        """The rounds of this rank, which owns these fragments."""
        hosts = advertised(self._options.address)
        # The certificates of a job say who may connect; the token keeps its runs apart from process groups.
        token = hashlib.sha256(f"geocomm elastic run, layout {model.layout}".encode()).digest()[:_TOKEN_BYTES]
        most = max(sum(most_bytes(fragment, coding)) for fragment in fragments)
        held = contextlib.ExitStack()
        endpoint = held.enter_context(runtime.endpoint(self._options, next(filter(is_loopback, hosts), hosts[0])))
        mail = native().Mail(endpoint=endpoint, token=token, max_bytes=most)
        held.close()  # the mail is a user of its own
        return MemberRounds(
            self.site,
            self.ranks.place,
            min(self.ranks.owners, model.fragments),  # more ranks than fragments: the last ones own none
            ",".join(hosts),
            mail,
            self._agent,
            self._run_dir,
            fragments,
            model,
            coding,
        )


def _owners(told: Sequence[tuple[str, bool, bool]]) -> int:
    """How many ranks own the fragments: those of the first node, which has the agent and the run folder.

    told: of each rank its site, and whether it has agent and folder. Raises InvalidArgumentError for ranks of several
    sites, and where those of the first node are not the first ones.
    """
    if len(sites := sorted({site for site, _, _ in told})) > 1:
        raise InvalidArgumentError(
            f"local steps: the default process group has ranks of the sites {', '.join(sites)}; in an elastic run "
            "each site is a job of its own: start geocomm run --elastic at each, with ranks of that site alone"
        )
    owners = sum(has_agent for _, has_agent, _ in told)
    if not owners or not all(has_agent for _, has_agent, _ in told[:owners]):
        raise InvalidArgumentError(
            "local steps: the ranks beside the site's agent must be the first ones; start its first node with "
            "--run-dir, and the others with --node-rank 1, 2, ..."
        )
    return owners

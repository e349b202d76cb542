"""The store in which the agents of one round meet, torchrun's on each node. Its waits say whom they wait for.

torch's own are silent: at the end of a job an agent waits up to 300 s for the others, and then logs a traceback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, cast

import torch.distributed as dist

from geocomm.core.patience import Waiting

_POLL_S = 0.25
_LAST_WAIT = "torchelastic/agent/terminal_state"
"""In the keys of the wait for the others' ends (torch's `_TERMINAL_STATE_SYNC_ID`)."""


class AgentsStore(dist.PrefixStore):
    """The store of one agent, which is `node` of `nodes`."""

    def __init__(
        self,
        prefix: str,
        store: dist.Store,
        node: int,
        sites: Mapping[int, str | None],
        is_closed: Callable[[], bool],
        log: Callable[[str], None],
    ) -> None:
        """sites: of all nodes. is_closed: whether a node has left the job."""
        super().__init__(prefix, store)
        self._node, self._sites, self._is_closed, self._log = node, dict(sites), is_closed, log

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Until all keys are there. DistStoreError: not in time.

        The last wait of a job ends without an error, since this node's ranks have succeeded: with a line in the log
        where another node does not come.
        """
        is_last = _LAST_WAIT in keys[0]
        own: timedelta = cast(Any, self).timeout  # torch's stub lacks it
        limit_s = (own if timeout is None else timeout).total_seconds()
        end, waiting = time.monotonic() + limit_s, Waiting(self._log)
        try:
            self.set(_arrival(keys, self._node), "1")
            while not self.check(list(keys)):
                if is_last and self._is_closed():
                    return self._log(f"{self._away(keys)} ended without success, and this node's ranks have succeeded")
                if time.monotonic() > end:
                    raise dist.DistStoreError(f"waited {limit_s:g} s for {self._away(keys)}")
                waiting.tell(lambda: self._away(keys) + " to end" * is_last)
                time.sleep(_POLL_S)
        except dist.DistError as error:
            if not is_last:
                raise
            cause = str(error).partition("\n")[0]
            self._log(
                f"this node's ranks have succeeded, but the end of the other nodes is not known: {cause}. Look there: "
                "geocomm run was killed, or ranks still run"
            )

    def _away(self, keys: Sequence[str]) -> str:
        """The nodes that have not come to this wait."""
        away = [node for node in self._sites if not self.check([_arrival(keys, node)])]
        return nodes_text(away, len(self._sites), self._sites)


def nodes_text(away: Sequence[int], nodes: int, sites: Mapping[int, str | None]) -> str:
    """`node 1 of 2 (site virginia)`; the site where `sites` knows it, from a round before or from who is here."""
    named = [f"{node} (site {sites[node]})" if sites.get(node) else str(node) for node in away]
    if len(away) == 1:
        word, _, site = named[0].partition(" ")
        text = f"node {word} of {nodes}{site and ' ' + site}"
    else:
        text = f"nodes {', '.join(named)} of {nodes}"
    if any(sites.get(node) for node in away):
        return text
    here = [f"node {node} (site {site})" for node, site in sorted(sites.items()) if node not in away and site]
    return text + (f"; {', '.join(here)} {'is' if len(here) == 1 else 'are'} here" if here else "")


def _arrival(keys: Sequence[str], node: int) -> str:
    return f"{keys[0]}/arrived/{node}"

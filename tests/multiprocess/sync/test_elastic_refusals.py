"""What a site of an elastic run refuses before it says hello to anybody."""

from __future__ import annotations

import os
from pathlib import Path

from geocomm.core.errors import InvalidArgumentError
from geocomm.sync.local_steps.elastic.elastic_site import ElasticSite
from support.harness import Ranks
from support.hub_support import make_keys


def begin(folder: str) -> str:
    """Why this rank cannot be of an elastic site; empty: it can."""
    os.environ |= {"GEOCOMM_RUN_DIR": f"{folder}/run", "GEOCOMM_KEYS": f"{folder}/keys/{os.environ['GEOCOMM_SITE']}"}
    try:
        ElasticSite(f"{folder}/agent.sock")
    except InvalidArgumentError as error:
        return str(error)
    return ""


def test_process_group_over_several_sites_is_refused_at_all_ranks(tmp_path: Path) -> None:
    make_keys(tmp_path / "keys", "ab")
    with Ranks(["a", "a", "b"]) as ranks:
        ranks.init(backend="gloo")
        told = ranks.run(begin, str(tmp_path))
        assert all("ranks of the sites a, b" in one and "job of its own" in one for one in told)
        ranks.destroy()

"""torchrun restarts a job of two sites after a rank died, and the job ends where it would have ended anyway."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.local_jobs import environment, free_port

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve().parent
LIMIT_S = 200


def _run(backend: str, folder: Path, fail: int) -> list[dict[str, object]]:
    """What the two ranks reported; a launcher for each site, meeting as torchrun's launchers do."""
    folder.mkdir()
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--local-addr", "127.0.0.1"]
    command += ["--rdzv-id", "job", "--max-restarts", "1", "--monitor-interval", "0.2"]
    command += [str(HERE / "elastic_ranks.py"), backend, str(folder), str(fail)]
    logs = [folder / "log0", folder / "log1"]
    nodes = []
    for site, log in zip("ab", logs, strict=True):
        with log.open("wb") as output:
            variables = environment(GEOCOMM_SITE=site)
            nodes.append(subprocess.Popen(command, env=variables, stdout=output, stderr=output, start_new_session=True))
    try:
        codes = [node.wait(LIMIT_S) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace")[-5000:] for log in logs)
    return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.timeout(2 * LIMIT_S + 20)
def test_elastic_restart_over_sites_ends_where_gloo_ends_undisturbed(tmp_path: Path) -> None:
    undisturbed = _run("gloo", tmp_path / "gloo", -1)
    restarted = _run("geocomm", tmp_path / "geocomm", 3)
    assert [rank["first step"] for rank in undisturbed] == [0, 0]
    assert [rank["first step"] for rank in restarted] == [3, 3]
    assert {rank["digest"] for rank in restarted} == {rank["digest"] for rank in undisturbed}

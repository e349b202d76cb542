"""An emulated WAN with keys: everything between the sites is TLS, with keys made for the run and with given ones."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from geocomm.lab.bench.wan_bench import EXACT, GLOO, Effort, bench_link
from geocomm.lab.emulator.emulated_keys import hub_command, site_environment, site_keys
from geocomm.lab.emulator.emulated_links import EmulatedLink, WanConfigError
from geocomm.security.job_ca import JobCa
from support.wan_support import geocomm, require_wan, warm_program

pytestmark = pytest.mark.timeout(180)

ELEMENTS = 300_000


def test_secure_run_meets_and_reduces_over_tls_and_leaves_no_keys() -> None:
    require_wan()
    run = geocomm("wan", "run", "--secure", "--rtt", "20ms", "--rate", "400mbit", "--", *warm_program(__file__))
    stdout, stderr = run.communicate(timeout=160)
    assert run.returncode == 0, stderr
    assert "plaintext" not in stderr.lower()
    found = dict(line.split("] ", 1)[1].split("=", 1) for line in stdout.splitlines() if "=" in line)
    assert stdout.count("sum=3.0") == 2
    assert found["ciphers"] == "TLS_AES_256_GCM_SHA384"
    assert stdout.count("ciphers=TLS_AES_256_GCM_SHA384") == 2
    for site in ("site0", "site1"):
        assert any(line.endswith(f"/{site}") for line in stdout.splitlines() if "keys=" in line), stdout
    assert not Path(found["keys"]).exists()


@pytest.mark.slow
def test_secure_run_at_a_hub_has_no_lines_of_torch_about_names() -> None:
    require_wan()
    run = geocomm("wan", "run", "--secure", "--rtt", "2ms", "--", *hub_command([__file__]))
    stdout, stderr = run.communicate(timeout=160)
    assert run.returncode == 0, stderr
    assert stdout.count("sum=3.0") == 2
    assert "[c10d]" not in stderr  # a site's network has no name server: no address has a name


def test_run_without_keys_is_told_of_plaintext_once() -> None:
    require_wan()
    run = geocomm("wan", "run", "--rtt", "2ms", "--", *warm_program(__file__))
    stdout, stderr = run.communicate(timeout=160)
    assert run.returncode == 0, stderr
    assert stdout.count("sum=3.0") == 2
    assert stderr.count("PLAINTEXT") == 1, stderr  # the warning; the line of the ready group says it in small letters


@pytest.mark.slow
def test_bench_with_given_keys_verifies_over_tls(tmp_path: Path) -> None:
    require_wan()
    JobCa.create(tmp_path / "keys", "bench", ["site0", "site1"], 2)
    quick = Effort(repeats=1, warmup=1, pause_s=0.05)
    link, keys = EmulatedLink(rate_bps=4e8, delay_s=0.01), tmp_path / "keys"
    rows = bench_link(link, [EXACT, GLOO], [1 << 20], effort=quick, keys=keys)
    assert [(row.case, row.encrypted) for row in rows] == [(EXACT, True), (GLOO, False)]
    assert rows[0].nmse == 0
    # 16 bytes of tag and 6 of header for each record of 16 KiB, and the handshakes before the first operation.
    assert rows[0].wire_bytes is not None
    assert rows[0].wire_bytes > 1 << 20


def test_keys_that_do_not_fit_the_sites_are_refused(tmp_path: Path) -> None:
    JobCa.create(tmp_path / "keys", "run", ["site0", "b"], 2)
    with pytest.raises(WanConfigError, match="site1"), site_keys(["site0", "site1"], tmp_path / "keys", secure=False):
        pass
    (tmp_path / "keys" / "b").rename(tmp_path / "keys" / "site1")
    with pytest.raises(WanConfigError, match="those of site 'b'"):
        site_keys(["site0", "site1"], tmp_path / "keys", secure=False).__enter__()
    run = geocomm("wan", "run", "--keys", str(tmp_path / "keys"), "--", "true")
    assert run.communicate()[1].count("keys:") == 1
    assert run.returncode == 2


def test_site_environment_never_mixes_keys_and_plaintext(tmp_path: Path) -> None:
    own = {"GEOCOMM_KEYS": "/mine", "GEOCOMM_SECURITY": "insecure", "HOME": "/root"}
    assert site_environment(own, tmp_path) == {"GEOCOMM_SECURITY": "required", "HOME": "/root"}
    assert site_environment(own, None) == {"GEOCOMM_SECURITY": "insecure", "HOME": "/root"}


def site_program() -> None:
    """At each site."""
    import torch
    import torch.distributed as dist

    from geocomm.group.backend.runtime import runtime

    torch.set_num_threads(1)
    scheme = "geocomm" if "GEOCOMM_KEYS" in os.environ else "tcp"
    place = f"{scheme}://{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
    if "GEOCOMM_HUB" in os.environ:
        place = "env://"
    dist.init_process_group(
        "geocomm", init_method=place, rank=int(os.environ["NODE_RANK"]), world_size=int(os.environ["NNODES"])
    )
    tensor = torch.full((ELEMENTS,), dist.get_rank() + 1.0)
    dist.all_reduce(tensor)
    assert bool((tensor == tensor[0]).all())
    _, endpoint = runtime._endpoint
    ciphers = {channel["cipher"] for channel in endpoint.channel_stats()}
    print(f"sum={tensor[0].item()}", f"ciphers={','.join(ciphers)}", f"keys={os.environ.get('GEOCOMM_KEYS')}", sep="\n")
    sys.stdout.flush()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    site_program()

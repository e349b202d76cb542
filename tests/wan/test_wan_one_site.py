"""Machines at distant places that were given one site: refused before a byte of a tensor crosses, unless declared.

The sites of the emulated WAN are the machines. A sniffer at the first counts the packets that show the tensor.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from geocomm.core.errors import InvalidArgumentError
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.security.job_ca import JobCa
from support.sniffer import VALUE, Sniffer
from support.wan_support import emulate, require_wan, warm_program

pytestmark = pytest.mark.timeout(280)

LIMIT = timedelta(seconds=60)
LINK = EmulatedLink(rate_bps=400e6, delay_s=0.005)
# Variables of the ranks by the machine, and what must come of it: refused, or in plaintext.
SAME_KEYS = {"GEOCOMM_SITE": "east", "GEOCOMM_KEYS": "{keys}/east"}
CASES: dict[str, tuple[list[dict[str, str]], bool]] = {
    "same_keys": ([SAME_KEYS] * 2, True),
    "codec_without_sites": ([{"GEOCOMM_CODEC": "int8"}] * 2, True),
    "declared_by_one": ([SAME_KEYS | {"GEOCOMM_ONE_SITE": "1"}, SAME_KEYS], True),
    "declared": ([{"GEOCOMM_CODEC": "int8", "GEOCOMM_ONE_SITE": "1"}] * 2, False),
    "nothing_set": ([{}] * 2, False),
}


def test_one_site_on_two_machines_sends_plaintext_only_where_that_is_declared_or_nothing_is_set(
    tmp_path: Path,
) -> None:
    require_wan()
    JobCa.create(tmp_path / "keys", "run", ["east", "west"], 2)
    command = warm_program(__file__, "one_site", str(tmp_path / "keys"))
    outcome = emulate(EmulatedWan.uniform(2, LINK), command, timeout_s=240)
    assert outcome.status == 0, outcome.stderr
    for name, (_, refused) in CASES.items():
        assert outcome.values(name) == (["refused"] if refused else [str(2 * VALUE)]) * 2, outcome.stdout
        (seen,) = map(int, outcome.values(f"{name}_seen"))
        assert (seen == 0) == refused, f"{name}: {seen} packets with the tensor"
    warnings = [line for line in outcome.stderr.splitlines() if "geocomm warning" in line]
    assert len(warnings) == 1, outcome.stderr
    for mention in ("PLAINTEXT", "10.91.0.1", "10.91.1.1", "rank 0", "rank 1"):
        assert mention in warnings[0]


def test_site_of_two_machines_in_a_job_of_two_sites_has_groups_of_its_own() -> None:
    require_wan()
    outcome = emulate(EmulatedWan.uniform(3, LINK), warm_program(__file__, "subgroups"), timeout_s=240)
    assert outcome.status == 0, outcome.stderr
    assert outcome.values("all") == ["6.0"] * 3
    assert outcome.values("inside") == ["3.0"] * 2


@pytest.mark.slow
def test_doctor_and_driver_refuse_one_site_on_two_machines(tmp_path: Path) -> None:
    require_wan()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GEOCOMM_")}
    environment |= {"FOLDER": str(tmp_path)}
    command = [sys.executable, __file__, "commands"]
    outcome = emulate(EmulatedWan.uniform(2, LINK), command, timeout_s=240, environment=environment)
    assert outcome.status == 0, outcome.stderr
    assert sorted(outcome.values("doctor")) == ["0", "1"]  # rank 0 tells
    assert outcome.values("driver") == ["2"] * 2
    told = [line for line in outcome.stderr.splitlines() if "geocomm train: all ranks are of site east" in line]
    assert len(told) == 2, outcome.stderr
    assert outcome.stdout.count("GEOCOMM_ONE_SITE=1") >= 1, outcome.stdout


def one_site(keys: str) -> None:
    """At each machine: every case in turn."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["NODE_RANK"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), 2, rank == 0, LIMIT)
    for name, (variables, _) in CASES.items():
        for variable in [variable for variable in os.environ if variable.startswith("GEOCOMM_")]:
            del os.environ[variable]
        os.environ |= {variable: value.format(keys=keys) for variable, value in variables[rank].items()}
        with Sniffer() as sniffer:
            try:
                dist.init_process_group(
                    "geocomm", store=dist.PrefixStore(name, store), rank=rank, world_size=2, timeout=LIMIT
                )
            except InvalidArgumentError as error:
                result = "refused" if "GEOCOMM_ONE_SITE=1" in str(error) else str(error)
            else:
                tensor = torch.full((50_000,), VALUE)
                dist.all_reduce(tensor)
                result = str(tensor[0].item())
                dist.destroy_process_group()
            store.set(f"{name}/{rank}", "done")
            store.wait([f"{name}/{other}" for other in range(2)])
            print(f"{name}={result}", flush=True)
            if rank == 0:
                print(f"{name}_seen={sniffer.seen}", flush=True)


def subgroups() -> None:
    """At three machines, the first two of which are one site."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["NODE_RANK"])
    os.environ |= {"GEOCOMM_SITE": "aab"[rank], "GEOCOMM_SECURITY": "insecure", "RANK": str(rank), "WORLD_SIZE": "3"}
    dist.init_process_group("geocomm", timeout=LIMIT)
    group = dist.new_group([0, 1])
    tensor = torch.tensor([rank + 1.0])
    total = tensor.clone()
    dist.all_reduce(total)
    print(f"all={total.item()}", flush=True)
    if rank < 2:
        dist.all_reduce(tensor, group=group)
        print(f"inside={tensor.item()}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def commands() -> None:
    """At each machine: the doctor and the driver of a job whose ranks all have the same site."""
    environment = os.environ | {"GEOCOMM_SITE": "east", "GEOCOMM_SECURITY": "insecure"}
    folder = f"{os.environ['FOLDER']}/{os.environ['NODE_RANK']}"
    driver = ["train", "-s", f"output_dir={folder}/run", "-s", f"data.cache_dir={folder}/tokens"]
    for name, arguments in (("doctor", ["doctor", "--json"]), ("driver", driver)):
        command = [sys.executable, "-m", "geocomm", *arguments]
        print(f"{name}={subprocess.run(command, env=environment, check=False).returncode}", flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])

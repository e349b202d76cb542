"""`geocomm doctor` at every site of an emulated WAN."""

from __future__ import annotations

import json
import sys

from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from support.wan_support import emulate, require_wan


def test_doctor_of_two_sites_measures_the_way_between_them() -> None:
    require_wan()
    topology = EmulatedWan.uniform(2, EmulatedLink(delay_s=0.04))
    command = [sys.executable, "-m", "geocomm", "doctor", "--json"]
    outcome = emulate(topology, command, timeout_s=120, raw=True)
    assert outcome.status == 0, outcome.stderr
    found = {finding["name"]: finding for finding in json.loads(outcome.stdout)}
    trips = [float(found[name]["value"].split()[0]) for name in found if name.endswith("round trip")]
    assert trips
    assert min(trips) >= 80
    assert not [name for name in found if name.startswith("not alike")]
    assert {found[name]["state"] for name in found if name.endswith(("path MTU", "its clock"))} == {"ok"}

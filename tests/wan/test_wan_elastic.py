"""An elastic run over an emulated WAN: a line between two sites is cut, a site is killed and comes back."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from geocomm.core.run_dir import RunDir
from geocomm.elastic.journal.entries import Round
from geocomm.elastic.journal.journal import NoJournalError, SqliteJournal
from geocomm.elastic.journal.run_state import RunState, Standing
from geocomm.lab.emulator.emulated_links import EmulatedLink, EmulatedWan
from geocomm.lab.emulator.emulated_wan import WanRun
from support.wan_support import emulate, require_wan, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(290)]

SITES = ("site0", "site1", "site2")
EVERY = 20
# A site whose machine dies is started again, as a scheduler would.
START = (
    "while ! [ -e $FOLDER/stop ]; do "
    'GEOCOMM_KEYS="$KEYS/$GEOCOMM_SITE" "$PYTHON" -m geocomm run --elastic --hub "$MASTER_ADDR:$MASTER_PORT" '
    '--run-dir "$FOLDER/run-$GEOCOMM_SITE" --wait-for site0,site1,site2 -- --nproc-per-node 1 '
    f'-m support.elastic_training "$FOLDER" 100000 0.05 {EVERY}; done'
)


def state_of(folder: Path, site: str = "site0") -> tuple[RunState, list[Round]]:
    """The run as a site's journal has it, and its rounds."""
    try:
        journal = SqliteJournal(RunDir(folder / f"run-{site}").journal, read_only=True)
    except NoJournalError:  # there is none yet
        return RunState(), []
    try:
        entries = list(journal.read())
    finally:
        journal.close()
    return RunState.of(entries), [entry for entry in entries if isinstance(entry, Round)]


def test_cut_line_and_killed_site_stop_nobody(tmp_path: Path) -> None:
    require_wan()
    from geocomm.security.job_ca import JobCa

    JobCa.create(tmp_path / "keys", "wan", list(SITES), 2)
    environment = os.environ | {
        "KEYS": str(tmp_path / "keys"),
        "PYTHON": sys.executable,
        "FOLDER": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    environment.pop("GEOCOMM_SECURITY", None)

    def rounds_more(listed: tuple[str, ...], count: int, what: str) -> None:
        """Until so many further rounds have come that list just these sites."""
        before = len(state_of(tmp_path)[1])

        def there() -> bool:
            new = state_of(tmp_path)[1][before:]
            return sum(tuple(one.site for one in entry.members) == listed for entry in new) >= count

        wait_until(there, what, 100)

    def steps(site: str) -> int:
        return len((tmp_path / f"{site}.0.jsonl").read_text().splitlines())

    def faults(run: WanRun) -> None:
        rounds_more(SITES, 3, "rounds of all three sites")
        run.control.set_link("site1", "site2", up=False)
        rounds_more(SITES, 3, "rounds of all three sites, two of which cannot reach each other")
        run.control.set_link("site1", "site2", up=True)
        run.signal_site("site2", signal.SIGKILL)  # as when a machine loses power
        at_kill = {site: steps(site) for site in SITES}
        wait_until(lambda: state_of(tmp_path)[0].sites["site2"].standing is Standing.AWAY, "site2 is away", 30)
        rounds_more(SITES[:2], 3, "rounds of the two that are left")
        assert all(steps(site) > at_kill[site] for site in SITES[:2])
        rounds_more(SITES, 3, "rounds of all three sites again")
        (tmp_path / "stop").touch()

    link = EmulatedLink(rate_bps=200e6, delay_s=0.15, loss=0.001)
    command = ["/bin/sh", "-c", START]
    outcome = emulate(EmulatedWan.uniform(3, link), command, faults, timeout_s=120, environment=environment)
    assert outcome.status == 0, outcome.stderr
    assert "other bits" not in outcome.stderr
    # The site that came back went on where the run was.
    told = [json.loads(line) for line in (tmp_path / "site2.0.jsonl").read_text().splitlines()]
    numbers = [line["step"] for line in told if "step" in line]
    assert 1 not in numbers[1:]

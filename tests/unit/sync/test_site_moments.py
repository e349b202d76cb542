"""The moments of a site's optimizers, kept in its run folder while it trains, and given to the next process."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import torch

from geocomm.sync.local_steps.elastic.site_moments import SiteMoments
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.model.site_group import SiteGroup

RUN, LAYOUT = "1" * 32, "2" * 32


class Training:
    """A model of more than one piece, and the moments of its optimizers."""

    def __init__(self, folder: Path, features: int = 1500) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(features, features), torch.nn.Linear(features, 1))
        first, second = (list(layer.parameters()) for layer in self.model)
        self.optimizers = [torch.optim.AdamW(first), torch.optim.SGD(second, momentum=0.9)]
        self.moments = SiteMoments(folder, InnerOptimizers(self.optimizers), LAYOUT, SiteGroup(), sharded=False)

    def step(self, seed: int) -> None:
        inputs = torch.randn(2, self.model[0].in_features, generator=torch.Generator().manual_seed(seed))
        self.model(inputs).square().mean().backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()

    def keep(self, step: int, head_step: int) -> None:
        self.moments.write(RUN, step, head_step)
        until = time.monotonic() + 60
        while self.moments.is_writing and time.monotonic() < until:
            self.moments.advance()
            time.sleep(0.001)
        assert not self.moments.is_writing


def test_moments_go_over_to_the_next_process(tmp_path: Path) -> None:
    first = Training(tmp_path)
    for seed in range(3):
        first.step(seed)
    first.keep(3, 2)
    first.keep(5, 4)
    assert [folder.name for folder in (tmp_path / "site").iterdir()] == ["5"]

    second = Training(tmp_path)
    second.model.load_state_dict(first.model.state_dict())
    assert second.moments.newest(RUN, 4, 0) == 5
    loaded = second.moments.read(5)
    assert loaded is not None
    second.moments.take(loaded)
    for one in (first, second):
        one.step(9)
    for here, there in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(here, there)


def test_moments_of_another_run_or_that_do_not_fit_are_left(tmp_path: Path) -> None:
    first = Training(tmp_path)
    first.step(0)
    first.keep(5, 4)
    assert first.moments.newest("3" * 32, 4, 0) is None  # another run
    assert first.moments.newest(RUN, 3, 0) is None  # of a state that the journal does not have
    assert first.moments.newest(RUN, 4, 5) is None  # not newer than what the site came with
    assert Training(tmp_path, features=100).moments.read(5) is None
    (values,) = (tmp_path / "site" / "5").glob("*.values")
    values.write_bytes(values.read_bytes()[:-1] + b"x")
    assert first.moments.read(5) is None


def test_moments_that_cannot_be_kept_are_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = Training(tmp_path)
    first.step(0)
    (tmp_path / "site").write_text("in the way")
    for step in (1, 2):
        first.keep(step, 0)
    assert len([one for one in caplog.records if "moments" in one.getMessage()]) == 1

"""What a site makes of the deals that it hears of: rows in the order of each deal, and what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore

import geocomm
from geocomm.core.bad_input import BadInput
from geocomm.core.errors import InvalidArgumentError
from geocomm.data.corpus.data_settings import DataConfig
from geocomm.data.corpus.packing import Sequences
from geocomm.data.deal_records import SiteDeal
from geocomm.data.deal_sequences import DealtSequences, argsort
from geocomm.data.run_sequences import dealt_sequences
from geocomm.data.shard_sequences import SetName, ShardSequences
from geocomm.data.site_deals import SiteDeals
from geocomm.elastic.journal.entries import Data
from geocomm.elastic.journal.messages import RankWelcome
from support.dealt_sets import DataSet

RUN = "ab" * 16


class Outer:
    """What `local_steps` returns, at a site that was dealt these."""

    def __init__(self, data: DataSet, *deals: SiteDeal, taken: int = 0, digest: str = "", every: int = 0) -> None:
        sha256 = digest or data.catalog.digest(1)
        entry = Data(
            index=1, prev="0" * 64, term=0, set=data.catalog.url, number=1, sha256=sha256,
            sequence_length=data.LENGTH, held_out_every=every,
        )  # fmt: skip
        welcome = RankWelcome(
            site="a", run=RUN, versions={0: 0}, head=1, head_hash="0" * 64, states={}, every=1, step=0, taken=taken,
            data=entry,
        )  # fmt: skip
        self.has_left, self.leader, self._heard = False, "the leader", [*deals]
        found = SiteDeals.open(HashStore(), welcome, self, lambda: None)
        assert found is not None
        self.deals: SiteDeals | None = found

    def check(self) -> None:
        pass

    def take_dealt(self) -> list[SiteDeal]:
        found, self._heard = self._heard, []
        return found


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSet:
    monkeypatch.setenv("GEOCOMM_SITE", "a")
    return DataSet(tmp_path / "data", shards=6)


def deal(data: DataSet, at: int, shards: str, sequences: int, *, start: int = 0, of: int = 0, key: int = 5) -> SiteDeal:
    sha256, whole = data.catalog.digest(1), of or sequences
    return SiteDeal(
        at=at, sequences=sequences, start=start, deal=key, shards=shards, of=whole, number=1, sha256=sha256
    )  # fmt: skip


def test_rows_are_those_of_each_deal_and_a_rest_begins_inside_another(data: DataSet) -> None:
    """A batch may cross from one to the next."""
    deals = deal(data, 0, "0:0,2", 48), deal(data, 48, "0:4-5", 20, start=28, of=48, key=9)
    site = geocomm.SiteDataset(Outer(data, *deals, taken=3 * data.LENGTH), batch_size=5)
    rows = torch.cat([batch for _, batch in zip(range(13), site, strict=False)])
    run = int(RUN[:16], 16)
    first = data.ids[[0, 2]].ravel()[argsort(run, 5, 48)]
    second = data.ids[[4, 5]].ravel()[argsort(run, 9, 48)][28:]
    assert rows[:, 0].tolist() == np.concatenate([first, second])[3:].tolist()
    assert site.batch_tokens == 5 * data.LENGTH
    state = site.state_dict()
    again = geocomm.SiteDataset(Outer(data, *deals), batch_size=5)
    again.load_state_dict(state)  # the journal's position stays
    assert next(iter(again))[:, 0].tolist() == first[:5].tolist()
    of_catalog = geocomm.SiteDataset(data.catalog.url, batch_size=5, sequence_length=data.LENGTH)
    with pytest.raises(InvalidArgumentError, match="dealt by a run's leader"):
        of_catalog.load_state_dict(state)


def test_in_torchdatas_loader_the_journal_says_where_a_site_is(data: DataSet) -> None:
    """Not the state of a checkpoint, which may be older or newer than what counts."""
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is missing: pip install torchdata")

    def loader(taken: int) -> Any:
        outer = Outer(data, deal(data, 0, "0:0,2", 48), taken=taken * data.LENGTH)
        return module.StatefulDataLoader(geocomm.SiteDataset(outer, batch_size=4), batch_size=None)

    order = data.ids[[0, 2]].ravel()[argsort(int(RUN[:16], 16), 5, 48)]
    first, second = loader(0), loader(2)
    for begin, rows in zip(range(0, 20, 4), first, strict=False):
        assert rows[:, 0].tolist() == order[begin : begin + 4].tolist()
    second.load_state_dict(first.state_dict())
    assert next(iter(second))[:, 0].tolist() == order[2:6].tolist()


def test_what_does_not_fit_is_refused(data: DataSet) -> None:
    other = Outer(data, deal(data, 0, "0:0", 24, of=25))
    assert other.deals is not None
    with pytest.raises(BadInput, match=r"24 sequences here.* 25"):
        DealtSequences(other.deals, "a").micro_batch(0, 0, 0, 1, 4)
    other = Outer(data, deal(data, 0, "0:7", 24))
    assert other.deals is not None
    with pytest.raises(BadInput, match="has no shards 0:7"):
        DealtSequences(other.deals, "a").micro_batch(0, 0, 0, 1, 4)
    with pytest.raises(InvalidArgumentError, match="another one than the run has read"):
        geocomm.SiteDataset(Outer(data, digest="0" * 64), batch_size=1)
    with pytest.raises(InvalidArgumentError, match="are the run's"):
        geocomm.SiteDataset(Outer(data), batch_size=1, sequence_length=8)
    with pytest.raises(InvalidArgumentError, match="a batch takes 1000"):
        geocomm.SiteDataset(Outer(data), batch_size=1000)
    without = Outer(data)
    without.deals = None
    with pytest.raises(InvalidArgumentError, match="--data"):
        geocomm.SiteDataset(without, batch_size=1)


def test_label_that_a_newer_version_has_no_rule_for_lets_nobody_read_an_older_deal(tmp_path: Path) -> None:
    data = DataSet(tmp_path / "labelled", shards=2, labelled=1)
    outer = Outer(data, deal(data, 0, "0:1", 24))
    assert outer.deals is not None
    assert len(DealtSequences(outer.deals, "frankfurt").micro_batch(0, 0, 0, 1, 4)) == 4
    version = data.catalog.read()
    free, _ = data.catalog.shards(version)
    rules = version.rules.model_copy(update={"labels": {}})
    data.catalog.add(version.model_copy(update={"number": 2, "rules": rules, "parts": ()}), [free])
    newer = deal(data, 24, "0:0", 24, key=6).model_copy(update={"number": 2, "sha256": data.catalog.digest(2)})
    outer = Outer(data, deal(data, 0, "0:1", 24), newer)
    assert outer.deals is not None
    with pytest.raises(BadInput, match=r"frankfurt may not read 1\.tokens .* there is no \[labels.personal\] any more"):
        DealtSequences(outer.deals, "frankfurt").micro_batch(0, 0, 0, 1, 4)


def test_configuration_has_to_fit_the_data_that_is_dealt(data: DataSet) -> None:
    outer = Outer(data, every=4)
    assert outer.deals is not None

    def config(length: int, held_out: float) -> tuple[DataConfig, Sequences]:
        own = ShardSequences(SetName(data.catalog.url, 1), "a", length, held_out, 0)
        paths = [data.catalog.url]
        return DataConfig.model_validate(
            {"source": "catalog", "paths": paths, "sequence_length": length, "held_out_fraction": held_out}
        ), own

    found = dealt_sequences(*config(data.LENGTH, 0.25), outer.deals, "a")
    assert found.held_out_count == 6 * 6
    assert found.rows(found.held_out(2).tolist())[:, 0].tolist() == [3, 7]
    with pytest.raises(BadInput, match="sequence_length: 8 here, and 16"):
        dealt_sequences(*config(8, 0.25), outer.deals, "a")
    with pytest.raises(BadInput, match="one sequence of: 2 here, and 4"):
        dealt_sequences(*config(data.LENGTH, 0.5), outer.deals, "a")

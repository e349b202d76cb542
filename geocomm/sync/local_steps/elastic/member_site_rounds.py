"""The rounds of one site in an elastic run: it offers what it has learned when a round opens, and takes what counts."""

from __future__ import annotations

import math
import secrets
import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from typing_extensions import override

from geocomm.core.errors import InvalidArgumentError
from geocomm.core.message_log import logger
from geocomm.core.patience import Patience
from geocomm.core.units import count_text
from geocomm.data.site_deals import SiteDeals
from geocomm.elastic.files.snapshots import Layout
from geocomm.elastic.journal.entries import FRAME_BYTES, MOST_STEPS, AnyRound, Round
from geocomm.elastic.journal.messages import Beat, Model, Open, RankWelcome
from geocomm.sync.local_steps.elastic.member_frames import Decided, Delta, OwnFrame
from geocomm.sync.local_steps.elastic.member_rounds import MemberRounds
from geocomm.sync.local_steps.elastic.run_terms import FROZEN, frozen_text, optimizer_terms, within_bounds
from geocomm.sync.local_steps.elastic.site_moments import SiteMoments
from geocomm.sync.local_steps.model.fragments import BYTES_PER_ELEMENT, Fragment, digest
from geocomm.sync.local_steps.model.host_memory import free_host_memory
from geocomm.sync.local_steps.model.inner_optimizers import InnerOptimizers
from geocomm.sync.local_steps.model.parameter_view import ParameterView
from geocomm.sync.local_steps.model.site_group import SiteFacts
from geocomm.sync.local_steps.outer.anchor import CARRY, AnchoredFragment, merge_local
from geocomm.sync.local_steps.outer.delta_frames import most_bytes
from geocomm.sync.local_steps.outer.resolved_settings import ResolvedSettings, require_elastic
from geocomm.sync.local_steps.outer.rounds import Entry, log_wait
from geocomm.sync.local_steps.outer.site_state import SiteState
from geocomm.sync.local_steps.outer.site_weights import (
    MOST_CYCLES,
    MOST_WEIGHT,
    SiteDelta,
    SiteWeights,
    shorten,
    take_delta,
)

_LEAVE_S = 30.0
"""How long a site that ends waits for its last deltas to count."""
_LAST_WORD_S = 20.0
"""How long its agent may take to hear its last words, on a busy machine too: they end the site in order."""
_SETTLED, _BEGINS, _FAILED = 1, 2, 3
"""What the owner of a fragment says of it in a step; 0: nothing."""
_FIRST_KEPT_S, _KEPT_EVERY_S = 60.0, 600.0
"""How often the moments are kept."""
_KEEP, _KEEP_AND_LEAVE = 1, 2

OfModel = Callable[[list[Fragment], Model], MemberRounds]


class MemberSiteRounds(SiteState):
    """A site of an elastic run. Its rounds open when a site asks for them, and no step waits for another site.

    A decided round that lists the site's frame is merged as in any run with local steps. One that does not moves the
    site's weights along with the anchor, own += new anchor - old anchor, so that what was not counted stays in the next
    delta.
    """

    def __init__(
        self,
        view: ParameterView,
        inner: InnerOptimizers,
        facts: SiteFacts,
        settings: ResolvedSettings,
        rounds_of: OfModel,
        begin_step: int = 0,
        run_dir: Path | None = None,
        *,
        keeps_moments: bool = False,
    ) -> None:
        """rounds_of: makes the rounds of this rank from the fragments that it owns and the terms of the run.
        keeps_moments: of the optimizers, in run_dir, which ranks without a part of them may lack.

        Takes no memory yet. Raises InvalidArgumentError where there will be too little, and for settings that an
        elastic run does not have.
        """
        require_elastic(settings)
        super().__init__(view, inner, facts, settings, begin_step)
        self._owned = [one for one in self.fragments if self.ranks.owns(one.index)]
        self._rounds_of = rounds_of
        self._rounds: MemberRounds | None = None  # until `begin`, and where this rank owns nothing
        count = len(self.fragments)
        self._next_due = [math.ceil((index + 1) * self._schedule.every / count) for index in range(count)]
        self._quiet_until = 0  # a site that joins has an optimizer without moments: its first cycle is carried on
        self._since_state = [0] * count
        self._steps_s: list[float] = []
        self._last_step_at: float | None = None
        self._last_step: int | None = None
        """Up to which all is to count before the site ends; None: it does not end."""
        self._has_left = False
        self._moments = None
        if keeps_moments:
            self._moments = SiteMoments(run_dir, inner, self.layout, self.ranks, sharded=view.sharded)
        self._kept_at = time.monotonic() + _FIRST_KEPT_S - _KEPT_EVERY_S  # the moments
        self._leaves = False
        self._run, self._head_step = "", 0
        self._welcome: RankWelcome | None = None
        self._ahead = 0  # steps that the site with most has more than this one

    @property
    @override
    def run_step(self) -> int:
        """The most that this site or a listed frame has."""
        return self.step + self._ahead

    def _model(self, digests: Mapping[str, str]) -> Model:
        """What must be the same at every site, the model in words before its digest. digests: see `take_anchor`."""
        types = self._view.types()
        elements = sum(tensor.numel for tensor in self._view.tensors)
        most = max(sum(most_bytes(fragment, self._settings.coding)) for fragment in self.fragments)
        terms = {
            "model": f"{len(self._view.tensors)} trained parameters with {elements} elements",
            "tensors (digest)": digest([], repr(sorted(types.items()))),
            FROZEN: frozen_text({name: text for name, text in digests.items() if name in self._view.left_out}),
            FRAME_BYTES: str(most),
            **self._settings.terms(),
            **optimizer_terms(self._inner),
        }
        return Model(
            settings=within_bounds(terms),
            layout=self.layout,
            fragments=len(self.fragments),
            every=self._schedule.every,
            step=self._begin_step,
        )

    @override
    def begin(self) -> None:
        digests = self.take_anchor()
        failure: BaseException | None = None
        try:
            if self._owned:
                self._rounds = self._rounds_of(self._owned, self._model(digests))
            self._load()
        except Exception as error:  # the other ranks of the site have to hear of it
            failure = error
        failed = self.ranks.all_reduce([0 if failure is None else 1])[0]
        if failure is not None:
            raise failure
        if failed:
            raise InvalidArgumentError("local steps: another rank of this site cannot begin; its own log says why")
        self._replay()
        self.show_anchor()

    def _load(self) -> None:
        if self._rounds is None:
            return
        self._welcome = welcome = self._rounds.begin({index: held.digest() for index, held in self._held.items()})
        for index, version in welcome.states.items():
            self._rounds.read_state(self._held[index], version)
        if self.ranks.place == 0:
            self._rounds.write_layout(self._layout())
        self._heads = dict(welcome.versions)
        self._begun_at, self._taken, self._run = welcome.step, welcome.taken, welcome.run
        self._rounds.go(self._held, welcome.head)
        for index, version in welcome.versions.items():
            if version == 0:  # a site may join with other weights before the first round
                self._rounds.write_state(self._held[index])

    def _layout(self) -> Layout:
        ranges = [tuple((part.name, part.start, part.stop) for part in fragment.ranges) for fragment in self.fragments]
        shapes = {tensor.name: tensor.shape for tensor in self._view.tensors}
        return Layout(layout=self.layout, fragments=tuple(ranges), shapes=shapes)

    def _replay(self) -> None:
        """Apply what the journal has, and take over where the run is."""
        patience, rounds = Patience(), self._rounds
        while rounds is not None and any(held.version < self._heads[index] for index, held in self._held.items()):
            decided = rounds.decided()
            for index, one in decided.items():
                self._write_wanted(rounds, index)
                self._step_outside(self._held[index], one)
                rounds.applied(one, self._held[index])
            if not decided:
                time.sleep(0.01)
            missing = sum(self._heads[index] - held.version for index, held in self._held.items())
            log_wait(patience, f"the replay of {missing} rounds", "frames that other sites have")
        # All owners heard the same journal's head or a later one; the most is where the run is.
        is_first = rounds is not None and self.ranks.place == 0
        told = [self._begun_at, self._taken, secrets.randbits(62)] if is_first else [0, 0, 0]
        begun, self.tokens, name = self.ranks.all_reduce(told)
        first, welcome = (rounds, self._welcome) if is_first else (None, None)
        self.deals = SiteDeals.open(self.ranks.store(f"deals {name}"), welcome, first, self._meet_in_wait)
        self.step = begun
        self._step_at_begin = [begun] * len(self.fragments)
        self._tokens_at_begin = [self.tokens] * len(self.fragments)
        self._next_due = [begun + due for due in self._next_due]
        self._head_step = begun
        has_moments = self._take_moments() or bool(self._begin_step)
        self._quiet_until = begun + self._schedule.every if begun and not has_moments else begun

    def _take_moments(self) -> bool:
        """Give the optimizers the moments that this site has kept, where they are newer than what it came with."""
        moments = self._moments
        step = None if moments is None else moments.newest(self._run, self._head_step, self._begin_step)
        if moments is None or step is None:
            return False
        loaded = moments.read(step)
        if self.ranks.all_reduce([int(loaded is None)])[0] or loaded is None:
            if self.ranks.place == 0:
                logger().warning("local steps: the moments that this site has kept do not fit; it begins with new ones")
            return False
        moments.take(loaded)
        if self.ranks.place == 0:
            logger().info(f"local steps: this site goes on with the moments that it kept at step {step} of the run")
        return True

    @override
    def count_step(self) -> None:
        super().count_step()
        self._time_step()
        self._meet_members()

    @override
    def count_tokens(self, tokens: int) -> None:
        length = 1 if self.deals is None else self.deals.data.sequence_length
        if tokens % length:
            raise InvalidArgumentError(
                f"count_tokens() has got {count_text(tokens, 'token')}, and the sequences of this run's "
                f"data have {length}: count whole ones, "
                "as SiteDataset.batch_tokens does"
            )
        super().count_tokens(tokens)

    @torch.no_grad()
    def _meet_in_wait(self) -> None:
        """Take part while the training loop waits for data, which is not time that a step takes. Not where it
        evaluates the anchor: the weights that come back then are those of before."""
        if not self.shows_anchor:
            self._meet_members()
        self._last_step_at = None

    def _meet_members(self) -> None:
        """Apply what is decided, and begin what is open: the same at all ranks of the site."""
        rounds = self._rounds
        said, decided, opened, failure = [0] * len(self.fragments), dict[int, Decided](), dict[int, Open](), None
        leaves = rounds is not None and rounds.is_leaving  # asked once: it may change at any time
        said += [self._asks_to_keep(leaves=leaves), int(self._moments is not None and self._moments.is_writing)]
        if rounds is not None:
            try:
                decided, opened = rounds.decided(), rounds.to_begin()
            except Exception as error:  # every rank of the site has to hear of it
                failure = error
                said[self._owned[0].index] = _FAILED
            for fragment in self._owned:
                self._write_wanted(rounds, fragment.index)
            for index in opened:
                said[index] = _BEGINS
            for index in decided:
                said[index] = _SETTLED
        *said, asked, writing = self.ranks.all_reduce(said)
        if _FAILED in said:
            told = self.ranks.broadcast_failure(said.index(_FAILED), failure)
            raise told if failure is None else failure
        for index, what in enumerate(said):
            if what == _SETTLED:
                self._merge(index, decided.get(index))
            elif what == _BEGINS:
                self._begin(index, opened.get(index))
        self._keep_moments(asked)
        if rounds is not None:
            if leaves and not self._has_left:
                self._make_last_steps_count(rounds, is_keeping=bool(asked or writing))
            for fragment in self._owned:
                index = fragment.index
                if self.step >= self._next_due[index]:
                    rounds.due(index)
                self._write_wanted(rounds, index)
            rounds.tell(self._beat())

    def _write_wanted(self, rounds: MemberRounds, index: int) -> None:
        """Keep the state of an own fragment where somebody wants it as it is now."""
        if rounds.wants_state(index, self._held[index].version):
            self._since_state[index] = 0
            rounds.write_state(self._held[index])

    def _asks_to_keep(self, *, leaves: bool) -> int:
        """What the first rank has to say: that the moments are to be kept, now or before the site leaves."""
        if self._moments is None or self.ranks.place != 0:
            return 0
        if leaves and self._last_step is None:
            return _KEEP_AND_LEAVE
        return _KEEP if time.monotonic() - self._kept_at >= _KEPT_EVERY_S else 0

    def _keep_moments(self, asked: int) -> None:
        if self._moments is None:
            return
        if asked:
            self._kept_at, self._leaves = time.monotonic(), asked == _KEEP_AND_LEAVE
            self._moments.write(self._run, self.step, self._head_step)
        self._moments.advance(leaving=self._leaves)

    def _make_last_steps_count(self, rounds: MemberRounds, *, is_keeping: bool) -> None:
        """The site is asked to end: every fragment is due, until the steps up to now have counted."""
        own = [fragment.index for fragment in self._owned]
        if self._last_step is None:
            self._last_step, self._quiet_until = self.step, 0
        waits = [index for index in own if self._step_at_begin[index] < self._last_step]
        for index in waits:
            self._next_due[index] = min(self._next_due[index], self.step)
        if not waits and not is_keeping:
            self._has_left = True
            rounds.say_leave()

    def _begin(self, index: int, opened: Open | None) -> None:
        """Offer what the site has learned of this fragment."""
        self._next_due[index] = self.step + self._schedule.every
        weight = self._weight_of(index) if self.step > self._step_at_begin[index] else 0

        def offer(local: SiteWeights) -> bool:
            if opened is None or self._rounds is None:
                return True
            delta = take_delta(self._held[index].anchor, local, keep=self._keeps_local)
            squares = delta.squared_norm
            if squares is None or weight < 1 or self.step < self._quiet_until:
                self._rounds.give_nothing(opened)
            else:
                every = self._wanted_every(index, self._rounds.line.seconds)
                self._rounds.offer(opened, self._offered(index, delta, squares, weight, every))
            return squares is not None

        if not self._begin_by_owner(index, offer, looks=index == 0):
            self._counters["rounds_not_finite"] += 1
            under_way = self._rounds.kept_weights() if self._rounds is not None else []
            self._take_over_anchor(under_way, f"fragment {index}")

    def _offered(self, index: int, delta: SiteDelta, squared_norm: float, weight: int, every: int) -> Delta:
        """What becomes a frame: of a long delta what one round may take. "carry" leaves the rest to the next one."""
        held, begun, cycle = self._held[index], self._step_at_begin[index], self._schedule.every
        steps = self.step - begun
        counted = min(steps, MOST_CYCLES * cycle) if self._keeps_local else steps
        share = counted / steps
        shorten(delta, held.anchor, share)
        self._norms["delta_norm"] = share * math.sqrt(squared_norm)
        own_weight = self._weight_at_begin[index] + weight * counted // steps
        read = self._tokens_at_begin[index]
        read += (self.tokens - read) * counted // steps
        return Delta(
            delta.values,
            held.residual,
            max(1, weight * min(counted, MOST_WEIGHT * cycle) // steps),
            OwnFrame(own_weight, begun + counted, read, None, delta.local, 0),
            self.run_step,
            share * share * squared_norm,
            self._inner.rate,
            every,
        )

    def _merge(self, index: int, decided: Decided | None) -> None:
        """Take the outer step of a decided round, and merge it into the model."""
        merge = None if decided is None else partial(self._merge_own, index, decided)
        most, void, counted, weight, step, tokens = self._merge_by_owner(index, merge, 6)
        self._ahead = max(self._ahead, most - self.step)
        self._head_step = max(self._head_step, most)
        self._counters["rounds"] += 1
        self._counters["rounds_void"] += void
        if counted:
            self._weight_at_begin[index], self._step_at_begin[index] = weight, step
            self._tokens_at_begin[index] = tokens
        elif not void:
            self._held_back += 1

    def _merge_own(self, index: int, decided: Decided, local: SiteWeights) -> list[int]:
        """Merge what was decided of an own fragment, into `local`. The step of the run, whether the round is void,
        whether a frame of this site counts, and the weight, step and tokens that it brings."""
        held, own = self._held[index], decided.own
        before = held.anchor.clone() if own is None else None
        self._step_outside(held, decided)
        if own is None:
            merge_local(CARRY, local.pieces, held.anchor, before)
        else:
            merge_local(self._settings.merge, local.pieces, held.anchor, own.local_at_begin)
            self._take_residual(held, own.residual)
            self._counters["wire_bytes"] += own.wire_bytes
        if self._rounds is not None:
            self._rounds.applied(decided, held)
        self._keep_state(held, decided)
        void = decided.average is None and decided.state is None
        entry = decided.settled.entry
        steps = () if entry is None else (one.step for one in entry.members if one.step <= MOST_STEPS)
        most = max(steps, default=0)
        return [most, int(void), *((0, 0, 0, 0) if own is None else (1, own.weight, own.step, own.tokens))]

    def _step_outside(self, held: AnchoredFragment, decided: Decided) -> None:
        entry = decided.settled.entry
        if entry is not None and decided.average is not None:
            self._outer_step(held, decided.average, _entry_of(entry))
        if decided.state is not None:
            held.take(decided.state, decided.settled.after)
        held.version = decided.settled.after  # counts void rounds too

    def _keep_state(self, held: AnchoredFragment, decided: Decided) -> None:
        """Write the state to the run folder once the frames since the last one outweigh it."""
        if decided.settled.entry is None or self._rounds is None:
            return
        index = held.fragment.index
        self._since_state[index] += sum(one.size for one in decided.settled.entry.frames)
        of_state = BYTES_PER_ELEMENT * held.state_numel
        if self._since_state[index] > of_state:
            self._since_state[index] = 0
            self._rounds.write_state(held)

    @override
    def meet(self) -> None:
        raise InvalidArgumentError(
            "anchor(together=True) waits for all sites, and an elastic run waits for none; enter anchor() without it"
        )

    @override
    def end(self) -> None:
        """Offers what was not counted yet, for 30 s at most, and leaves: the model holds the anchor."""
        begun, patience = time.monotonic(), Patience()
        self._quiet_until = 0
        while (waits := self._uncounted()) and self._may_be_counted(begun + _LEAVE_S):
            for index in waits:
                self._next_due[index] = self.step
            self._meet_members()
            time.sleep(0.02)
            log_wait(patience, "finish()", "the sites to count the last deltas of this one")
        left = self._rounds is not None and self._rounds.has_left
        for index in [] if left else self._uncounted():
            logger().warning(f"local steps: the last delta of fragment {index} was not counted within {_LEAVE_S:g} s")
        if self._moments is not None:
            self._moments.close()
        if self._rounds is not None:
            self._rounds.leave(_LAST_WORD_S)
        self.show_anchor()
        free_host_memory()
        if self._rounds is not None:
            self._rounds.close()

    def _may_be_counted(self, until: float) -> bool:
        """Whether to wait for that, at all ranks of the site alike: not for one that has left already."""
        waits = time.monotonic() < until and (self._rounds is None or not self._rounds.has_left)
        return self.ranks.all_reduce([int(waits)])[0] == self.ranks.size

    def _uncounted(self) -> list[int]:
        return [index for index in range(len(self.fragments)) if self.step > self._step_at_begin[index]]

    @override
    def state_dict(self) -> dict[str, Any]:
        """What the site was: the state itself is in the run folder, which the journal goes with."""
        return {"elastic": True, "site": self.site, "layout": self.layout, "step": self.step}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Nothing is taken from it: the site has what the journal says."""
        if not state.get("elastic"):
            raise InvalidArgumentError(
                "this state is of a run with fixed sites; an elastic run begins from weights: load them before "
                "local_steps()"
            )
        if state["layout"] != self.layout:
            raise InvalidArgumentError("this state is of another model, or of other fragments")

    def _time_step(self) -> None:
        now = time.monotonic()
        if self._last_step_at is not None:
            self._steps_s = [*self._steps_s[-31:], now - self._last_step_at]
        self._last_step_at = now

    def _beat(self) -> Beat:
        step_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        line_s = 0.0 if self._rounds is None else self._rounds.line.seconds
        return Beat(step=self.run_step, tokens=self.tokens, step_s=step_s, line_s=line_s, free_bytes=0)


def _entry_of(listed: AnyRound) -> Entry:
    members = listed.members
    if isinstance(listed, Round):
        norms = tuple(one.squared_norm for one in listed.members)
    else:
        norms = (listed.squared_norm,) * len(members)
    return Entry(
        listed.version,
        listed.fragment,
        listed.version,
        tuple(one.site for one in members),
        tuple(one.step for one in members),
        tuple(one.weight for one in members),
        squared_norms=norms,
    )

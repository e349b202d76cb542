"""A site of the run that lies in any field of any message, to the leader's `Sequencer`: the others train on."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from pydantic import TypeAdapter

from geocomm.core.records import MOST_FRAGMENTS
from geocomm.elastic.journal.admission import COMINGS_S, MOST_COMINGS
from geocomm.elastic.journal.claims import LEAST_EVERY, MOST_EVERY, MOST_TIMES
from geocomm.elastic.journal.entries import BadLineError, Round
from geocomm.elastic.journal.member import Member
from geocomm.elastic.journal.message_lines import MAX_LINE_BYTES, OtherProtocolError, down_of, said, up_of
from geocomm.elastic.journal.messages import (
    PROTOCOL_VERSION,
    Applied,
    Down,
    EntrySaid,
    Fetch,
    Lost,
    Open,
    Owner,
    RankHello,
    RanksGone,
    RanksUp,
    ReadySaid,
    Refused,
    Repair,
    Stop,
    Up,
    Welcome,
)
from geocomm.elastic.journal.sequencer_events import Came, Close, Event, Remove, Send
from geocomm.group.planning import local_estimate
from support.led_sequencer import DIGESTS, MODEL, STORES, Led
from support.lies import Lie, kinds_of, lies, truth

UP: TypeAdapter[Any] = TypeAdapter(Up)
HONEST, LIAR = "ab", "c"
STEPS = 40
"""Of the honest sites, by which theirs have come."""
DIGEST = "4" * 32
MOST_MAIL_PARTS = 2**62
FRAME_BYTES = 1000


def known(led: Led) -> dict[str, Any]:
    """What a member's messages are of, now."""
    state = led.sequencer.state
    opened = (
        [one for one in led.messages(Open) if one.version == state.versions[one.fragment]] if state.versions else []
    )
    return {
        "protocol": PROTOCOL_VERSION,
        "store": STORES[LIAR],
        "run": None if state.genesis is None else state.genesis.run,
        "head": state.head.index,
        "head_hash": state.head.hash if state.head.index >= 0 else None,
        "term": state.term,
        "fetch": f"{LIAR}:1",
        "ranks": True,
        "id": STORES[LIAR],
        "host": LIAR,
        "port": 1,
        "model": MODEL.model_dump(),
        "digests": list(DIGESTS),
        "fragment": 0,
        "version": state.versions[0] if state.versions else 0,
        "attempt": opened[-1].attempt if opened else 0,
        "site": LIAR,
        "frame": "c" * 64,
        "digest": DIGEST,
        "weight": 5,
        "coded_bytes": 10,
        "step": STEPS,
        "step_s": 0.1,
    }


class Watched(Led):
    """What the honest sites are told goes into real `Member`s, as it comes over the line."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.members = {site: Member(site, dict.fromkeys(range(MODEL.fragments), 0)) for site in HONEST}

    def on(self, event: Event) -> None:
        before = len(self.sent)
        super().on(event)
        for action in self.sent[before:]:
            if action.site not in HONEST:
                continue
            assert not isinstance(action, Close), action
            if isinstance(action, Send):
                assert not isinstance(action.message, Refused | Stop | Repair), action
                self.members[action.site].on_down(heard(action.message))


def heard(message: Down) -> Down:
    """What comes of it at the other end."""
    down = down_of(said(message).encode())
    if isinstance(down, Open):
        assert down.attempt < MOST_MAIL_PARTS
    if isinstance(down, Fetch):
        assert down.bytes <= FRAME_BYTES
    return down


def tell(led: Led, lie: Lie, site: str = LIAR) -> None:
    """As the leader takes a line: what is no message ends the connection."""
    line = json.dumps(lie.content).encode()
    try:
        up = up_of(line)
    except BadLineError:
        return
    led.say(site, up)


def trains_on(led: Led, lie: Lie) -> None:
    """Two honest sites count in two more rounds, and nobody else moves the run by far."""
    state = led.sequencer.state
    for _ in range(2):
        version = state.versions[0]
        led.due(HONEST[0])
        for site in HONEST:
            led.offer(site, HONEST, step=STEPS)
        for _ in range(20):
            if state.versions[0] > version:
                break
            led.wait(1, HONEST)
        last = next(entry for entry in reversed(led.entries) if isinstance(entry, Round))
        assert state.versions[0] > version, lie
        applied(led)
        assert {*HONEST} <= {one.site for one in last.members}, lie
        assert MODEL.every <= state.every <= MOST_EVERY, lie
        assert state.step <= STEPS + MOST_TIMES * 10 * 60, lie  # of their pace, for a minute
        assert max(one.weight for one in last.members) <= MOST_TIMES * 5, lie
        assert max(one.coded_bytes + one.exact_bytes for one in last.members) <= FRAME_BYTES, lie


def applied(led: Led) -> None:
    """The honest sites have the last round, and equal bits."""
    for site in HONEST:
        led.say(site, Applied(fragment=0, version=led.sequencer.state.versions[0], digest=DIGEST))


def joined(**arguments: Any) -> Watched:
    """All three count, one round is over, and another is open."""
    led = Watched(**arguments)
    led.take_part(HONEST + LIAR)
    led.due()
    for site in HONEST + LIAR:
        led.offer(site, HONEST + LIAR, step=STEPS)
    assert led.last_members == HONEST + LIAR
    applied(led)
    led.due()
    return led


OF_LIES = 3
THIRDS = [pytest.param(third, marks=[pytest.mark.slow] * (third > 0)) for third in range(OF_LIES)]


@pytest.mark.parametrize("third", THIRDS)
@pytest.mark.parametrize("kind", kinds_of(UP))
def test_lie_of_a_member_costs_the_others_nothing(kind: str, third: int) -> None:
    for lie in itertools.islice(lies(UP, kind, known(joined())), third, None, OF_LIES):
        led = joined()
        tell(led, lie)
        if kind == "offer":  # it is on the others' disks, so that it may count
            frame = str(lie.content["frame"])
            for site in HONEST:
                tell(led, Lie("hold", (), HOLD | {"version": led.sequencer.state.versions[0], "frame": frame}), site)
        trains_on(led, lie)
        led.hello(LIAR)
        tell(led, Lie("ranks_up", (), RANKS_UP))
        led.say(LIAR, ReadySaid())
        trains_on(led, lie)


@pytest.mark.parametrize("third", THIRDS)
@pytest.mark.parametrize("kind", kinds_of(UP))
def test_lie_as_the_first_line_of_a_connection_costs_the_others_nothing(kind: str, third: int) -> None:
    for lie in itertools.islice(lies(UP, kind, known(joined())), third, None, OF_LIES):
        led = joined()
        led.on(Came(LIAR))
        tell(led, lie)
        tell(led, Lie("ranks_up", (), RANKS_UP))
        trains_on(led, lie)


@pytest.mark.parametrize("kind", ["hello", "ranks_up"])
def test_lie_before_the_run_has_begun_fails_no_leader(kind: str) -> None:
    for lie in lies(UP, kind, known(Led())):
        led = Led()
        for site in HONEST:
            led.hello(site)
        led.on(Came(LIAR))
        if kind != "hello":
            tell(led, Lie("hello", (), truth(UP, "hello", known(led))))
        tell(led, lie)
        tell(led, Lie("ranks_up", (), RANKS_UP))
        for site in HONEST:
            led.ranks_up(site)
            led.say(site, ReadySaid())
        led.wait(5, HONEST)
        for entry in led.entries:
            heard(EntrySaid(entry=entry))


def test_bounds_of_every_are_those_that_sites_choose_within() -> None:
    assert (LEAST_EVERY, MOST_EVERY) == (local_estimate.LEAST_EVERY, local_estimate.MOST_EVERY)


@pytest.mark.parametrize(("step", "believed"), [(2**40, 2**40), (2**63 - 1, STEPS)])
def test_removing_a_site_voids_the_step_and_the_interval_that_it_set(step: int, believed: int) -> None:
    led = joined()
    entry = led.entries[-1]
    state = led.sequencer.state
    assert isinstance(entry, Round)
    bad = entry.members[-1].model_copy(update={"step": step})
    listed = Round(
        index=state.head.index + 1,
        prev=state.head.hash,
        term=0,
        fragment=1,
        version=0,
        members=(*entry.members[:-1], bad),
        every=2**40,
        base=None,
    )
    after = Led(entries=[*led.entries, listed])
    assert (after.sequencer.state.step, after.sequencer.state.every) == (believed, 2**40)
    after.on(Remove(LIAR, "it lies"))
    assert (after.sequencer.state.step, after.sequencer.state.every) == (STEPS, MODEL.every)
    for site in HONEST:
        after.hello(site)
        after.ranks_up(site)
        after.say(site, ReadySaid())
    after.due()
    for site in HONEST:
        after.offer(site, HONEST, step=STEPS + 10)
    last = after.entries[-1]
    assert isinstance(last, Round)
    assert last.every == MODEL.every  # ranks that have heard of the other one take this
    assert after.sequencer.state.step == STEPS + 10


def test_site_that_comes_and_goes_without_end_fills_no_journal() -> None:
    led = joined()
    before = len(led.entries)
    for _ in range(1000):
        led.say(LIAR, RanksGone(why="again"))
        tell(led, Lie("ranks_up", (), RANKS_UP))
        led.say(LIAR, ReadySaid())
    assert len(led.entries) - before <= 2 * MOST_COMINGS
    led.wait(COMINGS_S, HONEST)
    led.hello(LIAR)
    tell(led, Lie("ranks_up", (), RANKS_UP))
    led.say(LIAR, ReadySaid())
    assert LIAR in led.sequencer.state.live


def test_site_whose_ranks_change_without_end_is_not_told_of_to_all_each_time() -> None:
    led = joined()
    before = len(led.messages(Open, HONEST[0]))
    for number in range(1000):
        led.say(LIAR, RanksUp(owners=(Owner(id=f"{number:032x}", host="c", port=1),), model=MODEL, digests=DIGESTS))
    assert len(led.messages(Open, HONEST[0])) - before <= MOST_COMINGS


def test_site_that_lacks_without_end_takes_no_memory() -> None:
    led = joined()
    lost = Lost(fragment=0, version=0, site=HONEST[0], frame="0" * 64)
    for number in range(20_000):
        led.say(LIAR, lost.model_copy(update={"frame": f"{number:064x}"}))
    assert len(led.sequencer._lost._said) <= 10_000
    led.wait(700, HONEST)
    assert "skip" not in led.kinds()


def test_what_is_said_of_all_ranks_fits_a_line_and_who_would_be_too_much_is_refused() -> None:
    led = Led()
    owners = tuple(Owner(id=f"{number:032x}", host="h" * 200, port=65535) for number in range(16))
    names = [f"site{number:03}" for number in range(150)]
    for number, name in enumerate(names):
        led.hello(name, store=f"{number:032x}", fetch=f"{'f' * 200}:65535")
        led.say(name, RanksUp(owners=owners, model=MODEL, digests=DIGESTS))
        led.say(name, ReadySaid())
    led.due(names[0])
    opened = led.messages(Open, names[0])[-1]
    assert 100 < len(opened.peers) < 150
    assert len(said(opened)) < MAX_LINE_BYTES
    assert "one message" in led.messages(Refused, names[-1])[-1].why


def test_of_the_most_fragments_every_line_fits() -> None:
    led = Led()
    model = MODEL.model_copy(update={"fragments": MOST_FRAGMENTS})
    hello = RankHello(
        place=0,
        owners=1,
        owner=Owner(id="0" * 32, host="a", port=1),
        model=model,
        digests=dict.fromkeys(range(MOST_FRAGMENTS), "4" * 32),
        versions=dict.fromkeys(range(MOST_FRAGMENTS), 2**62),
    )
    assert up_of(said(hello)) == hello
    led.hello("a")
    ranks = RanksUp(owners=(hello.owner,), model=model, digests=("4" * 32,) * MOST_FRAGMENTS)
    led.say("a", up_of(said(ranks)))
    led.say("a", ReadySaid())
    led.due("a", MOST_FRAGMENTS - 1)
    led.hello("a")
    welcome = led.messages(Welcome, "a")[-1]
    [(_, _, attempt)] = welcome.open
    heard(welcome.model_copy(update={"open": tuple((p, 2**62, attempt) for p in range(MOST_FRAGMENTS))}))
    for sent in led.sent:
        if isinstance(sent, Send):
            heard(sent.message)
    with pytest.raises(ValueError, match="4096"):
        model.model_validate(model.model_dump() | {"fragments": MOST_FRAGMENTS + 1})


def test_site_of_another_protocol_is_told_so_whatever_its_hello_has() -> None:
    with pytest.raises(OtherProtocolError, match="same version of geocomm"):
        up_of(b'{"kind":"hello","protocol":1,"attempts":{}}')
    with pytest.raises(BadLineError) as caught:
        up_of(b'{"kind":"hello","protocol":%d}' % PROTOCOL_VERSION)
    assert not isinstance(caught.value, OtherProtocolError)


HOLD = {"kind": "hold", "fragment": 0, "site": LIAR, "by_mail": True}
RANKS_UP: dict[str, Any] = {
    "kind": "ranks_up",
    "owners": [{"id": STORES[LIAR], "host": LIAR, "port": 1}],
    "model": MODEL.model_dump(),
    "digests": DIGESTS,
}

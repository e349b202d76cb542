"""To whom frames are mailed where there are regions: both ends agree, and what crosses to a region crosses once."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from geocomm.elastic.journal.mailed_frames import averager, made_for, mailed, mailed_to, region_of
from geocomm.elastic.journal.member import Member, SendFrame
from geocomm.elastic.journal.messages import Aggregator, Fetch, Hold, Open, Owner, Peer, Peers, RanksGone, Summed
from geocomm.elastic.journal.sequencer_events import LeaderSettings
from support.led_sequencer import STORES, Led

REGIONS = (("a", "b"), ("c", "d"))
OF = {"a": "a", "b": "a", "c": "c", "d": "c"}


def peer_of(site: str, region: str | None, *, ranks: bool = True) -> Peer:
    owners = (Owner(id=STORES[site], host=site, port=1),) if ranks else ()
    return Peer(site=site, owners=owners, fetch=f"{site}:1", region=region)


FOUR = tuple(peer_of(site, region) for site, region in OF.items())


@st.composite
def some_peers(draw: st.DrawFn) -> list[Peer]:
    sites = draw(st.lists(st.sampled_from("abcde"), min_size=1, unique=True))
    regions = {site: draw(st.sampled_from(["a", "c", None])) for site in "abcde"}
    return [peer_of(site, regions[site], ranks=draw(st.booleans())) for site in sites]


@given(some_peers(), st.integers(0, 50), st.data())
def test_a_frame_goes_to_all_of_the_own_region_and_to_one_of_each_other_and_both_ends_say_so(
    peers: list[Peer], fragment: int, data: st.DataObject
) -> None:
    maker = data.draw(st.sampled_from(peers))
    goes_to = mailed(peers, maker.site, fragment)
    by_region = Counter(map(region_of, goes_to))
    own = {peer.site for peer in peers if region_of(peer) == region_of(maker)}
    assert own <= {peer.site for peer in goes_to}
    assert all(by_region[region_of(peer)] == 1 for peer in peers if peer.site not in own)
    ranks = {region_of(peer) for peer in peers if peer.owners}
    assert all(peer.owners for peer in goes_to if peer.site not in own and region_of(peer) in ranks)
    opened = Open(fragment=fragment, version=0, attempt=3, peers=tuple(peers))
    takes = {peer.site for peer in peers if maker.site in [one.site for one, _ in mailed_to(opened, peer.site)]}
    assert takes == {peer.site for peer in goes_to} - {maker.site}
    assert [*mailed(peers[::-1], maker.site, fragment)] == [*goes_to][::-1]


def test_the_sites_of_a_region_take_turns_over_the_fragments() -> None:
    heads = [[one.site for one in mailed(FOUR, "a", fragment) if one.site in "cd"] for fragment in range(8)]
    assert Counter(map(tuple, heads)) == {("c",): 4, ("d",): 4}


def test_without_regions_all_get_all() -> None:
    peers = tuple(peer_of(site, None) for site in "abc")
    assert mailed(peers, "a", 0) is peers


def test_with_an_aggregator_frames_go_to_it_and_its_average_to_heads() -> None:
    opened = Open(fragment=0, version=0, attempt=3, peers=FOUR, aggregator=Aggregator(site="a", attempt=7))
    assert [(one.site, attempt) for one, attempt in mailed_to(opened, "a")] == [("b", 3), ("c", 3), ("d", 3)]
    assert [(one.site, attempt) for one, attempt in mailed_to(opened, "b")] == [("a", 7)]
    [head] = [site for site in "cd" if mailed_to(opened, site)]
    member = Member("a", {0: 0})
    member.on_down(opened)
    summed = Summed(fragment=0, version=0, attempt=7, frame="f" * 64, coded_bytes=1, exact_bytes=0, counts=("a",))
    member._own[0].summing = 7
    [sends] = [one for one in member.summed(summed) if isinstance(one, SendFrame)]
    assert [one.site for one in sends.peers] == ["b", head]


def test_the_head_of_another_region_gets_its_frames_and_the_aggregator_the_average_of_these() -> None:
    by, head = Aggregator(site="a", attempt=7), Aggregator(site="d", attempt=8)
    opened = Open(fragment=0, version=0, attempt=3, peers=FOUR, aggregator=by, adders=(head,))
    assert [averager(opened, site) for site in "abcd"] == [by, by, head, head]
    assert [(one.site, attempt) for one, attempt in mailed_to(opened, "a")] == [("b", 3), ("d", 8)]
    assert [(one.site, attempt) for one, attempt in mailed_to(opened, "b")] == [("a", 7)]
    assert ("c", 3) in [(one.site, attempt) for one, attempt in mailed_to(opened, "d")]
    assert ("a", 7) in [(one.site, attempt) for one, attempt in made_for(opened, "c")]
    member = Member("d", {0: 0})
    member.on_down(opened)
    member._own[0].summing = 8
    summed = Summed(fragment=0, version=0, attempt=8, frame="f" * 64, coded_bytes=1, exact_bytes=0, counts=("c", "d"))
    [sends] = [one for one in member.summed(summed) if isinstance(one, SendFrame)]
    assert [one.site for one in sends.peers] == ["a"]
    later = opened.model_copy(update={"aggregator": Aggregator(site="b", attempt=9), "adders": ()})
    member.on_down(later)
    member._own[0].summed = None
    assert [one for one in member.summed(summed) if isinstance(one, SendFrame)] == []  # nobody waits for it any more


# ---- at the leader


def led_by_region(sites: str = "abcd") -> Led:
    return Led(LeaderSettings(regions=REGIONS)).take_part(sites)


def head_and_other(led: Led, maker: str, region: str = "cd", fragment: int = 0) -> tuple[str, str]:
    """The head of a region for what a site makes in the last round, and the other site."""
    peers = led.messages(Open)[-1].peers
    [head] = [one.site for one in mailed(peers, maker, fragment) if one.site in region]
    return head, region.replace(head, "")


def test_the_leader_says_the_regions_and_a_newcomer_hears_of_its_own_before_its_ranks_are_there() -> None:
    led = led_by_region("abc")
    assert {one.site: one.region for one in led.messages(Peers)[-1].peers} == {"a": "a", "b": "a", "c": "c"}
    led.hello("d")
    told = led.messages(Peers, "d")[-1].peers
    assert {one.site: one.region for one in told} == OF
    assert next(one.owners for one in told if one.site == "d") == ()


def test_who_gets_no_mail_fetches_as_soon_as_a_site_of_its_region_has_the_frame() -> None:
    led = led_by_region()
    led.due()
    frame = led.offer("a", "b")
    head, other = head_and_other(led, "a")
    led.wait(0.5, "abcd")
    assert led.messages(Fetch) == []  # nobody has it who is near
    led.say(head, Hold(fragment=0, version=0, site="a", frame=frame, by_mail=True))
    assert [one.frame for one in led.messages(Fetch)] == [frame]
    [fetch] = led.messages(Fetch, other)
    assert f"{head}:1" in fetch.sources
    led.wait(0.5, "abcd")
    assert len(led.messages(Fetch)) == 1


def test_a_hold_that_comes_before_the_offer_is_enough() -> None:
    led = led_by_region()
    led.due()
    head, other = head_and_other(led, "a")
    attempt = led.messages(Open)[-1].attempt
    frame = f"{ord('a'):032x}{0:08x}{0:012x}{attempt:012x}"
    led.say(head, Hold(fragment=0, version=0, site="a", frame=frame, by_mail=True))
    assert led.messages(Fetch) == []
    assert led.offer("a") == frame
    assert [one.frame for one in led.messages(Fetch, other)] == [frame]


def test_nobody_waits_for_a_head_beyond_the_grace() -> None:
    led = led_by_region()
    led.due()
    frame = led.offer("a")
    led.wait(1.5, "abcd")
    assert led.messages(Fetch) == []
    led.wait(1, "abcd")  # the head has nothing
    assert [led.messages(Fetch, site)[-1].sources for site in "bcd"] == [("a:1", "leader:1")] * 3
    _, other = head_and_other(led, "a")
    led.say(other, Hold(fragment=0, version=0, site="a", frame=frame, by_mail=False))
    assert led.last_members == "a"


def one_round(led: Led, fragment: int = 0) -> None:
    """Each head has all mail that it is to have, and the others of its region fetch."""
    version = led.sequencer.state.versions[fragment]
    led.due(fragment=fragment)
    for maker in "abcd":
        near, far = ("ab", "cd") if maker in "ab" else ("cd", "ab")
        head, other = head_and_other(led, maker, far, fragment)
        frame = led.offer(maker, near.replace(maker, "") + head, fragment=fragment)
        assert [one.frame for one in led.messages(Fetch, other)][-1] == frame
        led.say(other, Hold(fragment=fragment, version=version, site=maker, frame=frame, by_mail=False))
    assert led.last_members == "abcd"


def test_who_gets_no_mail_is_not_taken_for_one_whose_mail_does_not_come() -> None:
    led = led_by_region()
    for round in range(12):
        one_round(led, round % 2)
    assert not led.sequencer.rounds._ways.unmailed
    assert not led.sequencer.rounds._ways._late_pairs
    led.due()
    before = len(led.messages(Fetch))
    led.offer("a")  # the mail takes its time
    led.wait(1, "abcd")
    assert len(led.messages(Fetch)) == before


def test_a_region_whose_heads_get_no_mail_fetches_at_once() -> None:
    led = led_by_region()
    for _ in range(4):  # two cycles of two fragments
        led.due()
        led.offer("a", "b")
        led.wait(2.5, "abcd")
        assert led.last_members == "a"
    led.due()
    frame = led.offer("a", "b")
    head, other = head_and_other(led, "a")
    assert [one.frame for one in led.messages(Fetch, head)] == [frame]
    assert led.messages(Fetch, other) == []
    led.say(head, Hold(fragment=0, version=4, site="a", frame=frame, by_mail=False))
    assert led.messages(Fetch, other)[-1].frame == frame


def test_where_a_head_goes_away_makers_hear_of_the_next_one() -> None:
    led = led_by_region()
    led.due()
    head, other = head_and_other(led, "a")
    before = len(led.messages(Open, "a"))
    led.say(head, RanksGone(why="killed"))
    opened = led.messages(Open, "a")
    assert len(opened) == before + 1
    assert [one.site for one in mailed(opened[-1].peers, "a", 0)] == ["a", "b", other]

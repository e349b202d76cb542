"""What the sites of an elastic run agree on, and how: the journal and the protocol around it.

Pure logic, without torch, sockets, files or clocks. `Sequencer` decides for the leader, `Member` for a rank: both take
what has happened and return what is to be done. Begin with `tests/unit/elastic/test_round_of_two_sites.py`, their
caller for two sites of one rank, which tells this:

    leader: genesis is in the journal
    leader: join is in the journal
    leader: join is in the journal
    leader: ready is in the journal
    leader: ready is in the journal
    a: due
    a: offer
    b: offer
    b: hold
    a: hold
    leader: round is in the journal
    a: applied
    b: applied

`LeaderRounds` and `OpenRound` have what happens when a site does not offer or hold, `messages.py` what they say to each
other. What is decided, where, and who carries it out; files of a rank are in `sync/local_steps`, those without a folder
in its `elastic`:

- when a round is due: the schedule (`outer/schedule.py`); `member_site_rounds.py`, at an optimizer step
- a frame of the delta: `Member.begins`; `member_frames.py`, which writes it to disk
- frames between ranks: `SendFrame`; `frame_mail.py`, by `geocomm._C.Mail`
- frames that mail does not bring: `elastic/site/frame_fetches.py`, which the leader's `Fetch` and the ranks' `Need` end
  up in; `elastic/files/fetch.py`, from `file_server.py` of others
- whether an average is right: `average_checks.py`; `MemberFrames.sum_hash` of another site
- what a rank says: `Say`; `elastic/site/rank_socket.py` to its agent, `agent_link.py` to the leader
- the order of all that counts: `Sequencer`; `elastic/leading/leader.py`: the journal first, then the lines
- the outer step and the merge: `Member.next_settled`; `outer/anchor.py`, at an optimizer step
- who leads: `elastic/leading/leadership.py`, `etcd_leadership.py`; `agent_process.py`, which starts the leader's part
"""

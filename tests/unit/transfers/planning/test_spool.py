"""Test that a plan stored on disk is read back unchanged."""

from transfers.model.entry import Entry, Kind
from transfers.planning.actions import Action, Verb
from transfers.planning.spool import Spool

ACTIONS = [
    Action(Verb.COPY, Entry(b"a\xff\n", Kind.FILE, 5, 6, 0o644, 1, 2, 3, 4), "not at the target"),
    Action(
        Verb.RELINK,
        Entry(b"l", Kind.LINK, link=b"\xfe"),
        "elsewhere",
        Entry(b"l", Kind.LINK, etag="e", digest="d"),
    ),
    Action(Verb.DELETE, Entry(b"z", Kind.FOLDER), "not in the source", implied=True),
]


def test_actions_are_read_back_in_order() -> None:
    spool = Spool()
    for action in ACTIONS:
        spool.add(action)
    assert list(spool) == ACTIONS
    assert spool.count == 3
    spool.close()


def test_two_readers_are_independent() -> None:
    spool = Spool()
    for action in ACTIONS:
        spool.add(action)
    assert list(zip(spool, spool, strict=True)) == [(action, action) for action in ACTIONS]
    spool.close()

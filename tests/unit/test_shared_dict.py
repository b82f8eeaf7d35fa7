"""Test the dictionaries of test doubles, which server threads change while a test reads them."""

from __future__ import annotations

from tests.support.shared_dict import SharedCounter, SharedDict


def test_a_dictionary_can_change_while_it_is_read() -> None:
    shared = SharedDict[str, int](a=1, b=2)
    reads = {"itself": lambda: shared, "keys": shared.keys, "values": shared.values, "items": shared.items}
    for name, read in reads.items():
        before = list(read())
        for number, _ in enumerate(read()):
            shared[f"{name} {number}"] = number
            shared.pop("a", None)
        assert len(shared) > len(before) - 1
    counts = SharedCounter()
    counts.add("a", 2)
    for key in counts:
        counts.add(f"{key} again")
    assert counts == {"a": 2, "a again": 1}
    assert (counts["never"], sum(counts.values()), counts.total()) == (0, 3, 3)

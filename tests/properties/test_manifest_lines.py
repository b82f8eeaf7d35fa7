"""Test that manifest lines, sorted and merged on disk, equal a dict."""

from __future__ import annotations

from contextlib import closing

from hypothesis import given
from hypothesis import strategies as st

from transfers.stores.server.manifest import (
    Cursor,
    Keyed,
    Known,
    ManifestLines,
    differs,
    line_of,
    merged,
    newest,
)

KEYS = st.sampled_from([b"a", b"a-x", b"a.b", b"a/b", b"a/b/c", b"a0", b"\xff", b"\n", b"z" * 300])
KNOWN = st.builds(Known, st.sampled_from(["e", "f"]), st.integers(0, 3), st.none(), st.just(5), st.just(-1))
PAIRS = st.lists(st.tuples(KEYS, KNOWN), max_size=8)
REMOVED = st.lists(KEYS, max_size=6)
IN_MEMORY = st.sampled_from([0, 500, 1 << 20])  # every line on disk, some, none


def gather(pairs: list[Keyed], in_memory: int) -> ManifestLines:
    lines = ManifestLines(in_memory)
    for key, line in pairs:
        lines.add(key, line)
    return lines


def as_lines(pairs: list[tuple[bytes, Known]]) -> list[Keyed]:
    return [(key, line_of(key, known)) for key, known in pairs]


@given(PAIRS, IN_MEMORY, st.booleans())
def test_lines_are_sorted_and_the_last_of_a_key_wins(
    pairs: list[tuple[bytes, Known]], in_memory: int, ordered: bool
) -> None:
    given_lines = as_lines(sorted(pairs, key=lambda pair: pair[0]) if ordered else pairs)
    with closing(gather(given_lines, in_memory)) as lines:
        assert bool(lines) == bool(given_lines)
        assert list(lines) == sorted(dict(given_lines).items())
        assert list(lines) == sorted(dict(given_lines).items()), "a second time, too"


@given(PAIRS, PAIRS, REMOVED, PAIRS, IN_MEMORY)
def test_a_merged_manifest_is_a_merged_dict(
    old: list[tuple[bytes, Known]],
    learned: list[tuple[bytes, Known]],
    removed: list[bytes],
    committed: list[tuple[bytes, Known]],
    in_memory: int,
) -> None:
    before = dict(as_lines(old))
    expected = {**before, **dict(as_lines(learned))}
    expected = {key: line for key, line in expected.items() if key not in removed}
    expected.update(as_lines(committed))
    with (
        closing(gather(as_lines(old), in_memory)) as first,
        closing(gather(as_lines(learned), in_memory)) as second,
        closing(gather([(key, b"") for key in removed], in_memory)) as third,
        closing(gather(as_lines(committed), in_memory)) as fourth,
    ):
        assert list(merged(first, newest(second, third, fourth))) == sorted(expected.items())
        assert differs(first, newest(second, third, fourth)) == (expected != before)


@given(PAIRS, st.lists(KEYS, max_size=9), IN_MEMORY)
def test_a_cursor_finds_what_a_dict_has(
    pairs: list[tuple[bytes, Known]], queried: list[bytes], in_memory: int
) -> None:
    held = dict(pairs)
    with closing(gather(as_lines(pairs), in_memory)) as lines:
        unasked: dict[bytes, bytes] = {}
        cursor = Cursor(lines, unasked.__setitem__)
        for key in sorted(queried):
            assert cursor.line(key) == (line_of(key, held[key]) if key in held else b"")
        cursor.end()
        assert unasked == {key: line_of(key, known) for key, known in held.items() if key not in queried}

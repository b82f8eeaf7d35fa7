"""Test that an executed plan makes the target equal to the source and leaves nothing to plan."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import example, given
from hypothesis import strategies as st

from tests.properties.trees import EMPTY, FOLDER, Model, ModelSide, buckets, execute_plan, parents, trees
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.model.rules import Rules, selector
from transfers.planning.actions import Action, Conflict, Verb, decide
from transfers.planning.planner import TransferPlan, plan_transfer

POSIX = Facts(kind="local", read_verification=Verification.DIGEST, write_verification=Verification.DIGEST)
BUCKET = Facts(
    kind="s3",
    read_verification=Verification.DIGEST,
    write_verification=Verification.DIGEST,
    folders=False,
    file_and_folder=True,
    links=False,
    utf8_names=True,
    refuses=(b"\n",),
)
DELETING = Rules(delete=True)
PATTERNS = st.sampled_from(("*.log", "a", "/a/", "a/**", "a-x/", "!a0", "x.log/"))


@contextmanager
def planned(source: ModelSide, target: ModelSide, rules: Rules) -> Iterator[TransferPlan]:
    found = plan_transfer(source, target, rules, target_exists=True)
    try:
        yield found
    finally:
        found.close()


def after(source: Model, target: Model, rules: Rules) -> tuple[Model, set[bytes]]:
    """Return the resulting target and the names in conflict; check that a second plan is empty."""
    with planned(ModelSide(source, POSIX), ModelSide(target, POSIX), rules) as found:
        result = execute_plan(source, target, found)
        conflicts = {(conflict.entry.path, conflict.code) for conflict in found.conflicts}
    with planned(ModelSide(source, POSIX), ModelSide(result, POSIX), rules) as again:
        assert [action for action in again.moves if action.entry.path not in dict(conflicts)] == []
        assert list(again.deletions) == []
        assert {(conflict.entry.path, conflict.code) for conflict in again.conflicts} == conflicts
        assert not again.changes
    return result, set(dict(conflicts))


@given(trees(), trees())
def test_with_delete_the_target_becomes_the_source(source: Model, target: Model) -> None:
    result, conflicts = after(source, target, DELETING)
    assert conflicts == set()
    assert _shown(result) == _shown(source)


@given(trees(), trees())
def test_without_delete_nothing_is_deleted_and_everything_else_arrives(source: Model, target: Model) -> None:
    result, conflicts = after(source, target, Rules())
    for path, node in source.items():
        assert (path in conflicts) or _shown({path: result[path]}) == _shown({path: node})
    for path, node in target.items():
        if path not in source or path in conflicts:
            assert result[path] == node, "the plan may not change it"


@given(trees(), trees())
def test_conflicts_are_names_with_an_entry_of_another_kind(source: Model, target: Model) -> None:
    _, conflicts = after(source, target, Rules())
    expected = set()
    for path, node in source.items():
        above = (one for one in (*parents(path), path) if source.get(one, FOLDER).kind is Kind.FOLDER)
        blocked = any(target[one].kind is not Kind.FOLDER for one in above if one in target)
        over = node.kind is not Kind.FOLDER and path in target and target[path].kind is Kind.FOLDER
        if blocked or over:
            expected.add(path)
    assert conflicts == expected


@given(trees(any_time=True), trees(any_time=True), st.booleans())
def test_with_checksum_only_content_counts(source: Model, target: Model, delete: bool) -> None:
    result, conflicts = after(source, target, Rules(checksum=True, delete=delete))
    for path, node in source.items():
        if path not in conflicts:
            assert (result[path].kind, result[path].content) == (node.kind, node.content)
    if delete:
        assert result.keys() == source.keys()


@given(trees(), trees(), st.lists(PATTERNS, max_size=2), st.lists(PATTERNS, max_size=2))
def test_excluded_entries_are_neither_moved_nor_deleted(
    source: Model, target: Model, exclude: list[str], include: list[str]
) -> None:
    rules = Rules(delete=True, exclude=tuple(exclude), include=tuple(include))
    takes = selector(rules)
    with planned(ModelSide(source, POSIX), ModelSide(target, POSIX), rules) as found:
        touched = [action.entry for action in (*found.moves, *found.deletions)]
        for entry in (*touched, *(conflict.entry for conflict in found.conflicts)):
            assert takes(entry), entry
        removed = {
            action.entry.path
            for action in found.moves
            if action.verb is Verb.RETYPE and action.entry.kind is Kind.FILE
        }
        for path, node in target.items():
            if not takes(_entry(path, node)):
                assert not removed.intersection(parents(path)), "a file replaced its parent folder"


@given(trees(), trees(), st.sampled_from(("*.log", "a0", "/a/a", "-d")))
def test_a_folder_with_excluded_entries_is_kept(source: Model, target: Model, pattern: str) -> None:
    rules = Rules(delete=True, exclude=(pattern,))
    takes = selector(rules)
    result, conflicts = after(source, target, rules)
    for path, node in target.items():
        if not takes(_entry(path, node)):
            assert result[path] == node
    for path, node in source.items():
        if takes(_entry(path, node)) and path not in conflicts:
            assert _shown({path: result[path]}) == _shown({path: node})


@given(trees(), trees())
def test_the_counts_match_the_actions(source: Model, target: Model) -> None:
    with planned(ModelSide(source, POSIX), ModelSide(target, POSIX), DELETING) as found:
        result = execute_plan(source, target, found)
        moved = [action.entry for action in found.moves if action.entry.kind is not Kind.FOLDER]
        removed = [
            path
            for path, node in target.items()
            if node.kind is not Kind.FOLDER and result.get(path, FOLDER).kind is Kind.FOLDER
        ]
        assert found.files == sum(node.kind is not Kind.FOLDER for node in source.values())
        assert found.bytes == sum(len(node.content) for node in source.values())
        assert (found.files_to_move, found.files_kept) == (len(moved), found.files - len(moved))
        assert found.bytes_to_move == sum(entry.size for entry in moved)
        assert found.files_to_delete == len(removed)
        assert found.target_files == sum(node.kind is not Kind.FOLDER for node in target.values())


@given(trees(), buckets())
def test_a_bucket_gets_everything_that_it_supports(source: Model, target: Model) -> None:
    sides = ModelSide(source, POSIX), ModelSide(target, BUCKET)
    supported = {
        path: node
        for path, node in source.items()
        if node.kind is Kind.FILE and b"\xff" not in path and b"\n" not in path
    }
    with planned(*sides, DELETING) as found:
        result = execute_plan(source, target, found, folders=False)
        conflicts = {conflict.entry.path: conflict for conflict in found.conflicts}
    lost = {path for path, node in source.items() if node.kind is not Kind.FOLDER} - set(supported)
    assert set(conflicts) == lost, "conflicts are exactly the names that the target does not support"
    for path, conflict in conflicts.items():
        assert conflict.refuse == (source[path].kind is not Kind.LINK)
    kept = {path: node for path, node in result.items() if path not in lost}
    assert {path: node.content for path, node in kept.items()} == {
        path: node.content for path, node in supported.items()
    }


@example({b"a/a": EMPTY, b"a/a/a": EMPTY}, {b"a": EMPTY}, True)
@given(buckets(), trees(), st.booleans())
def test_keys_that_conflict_in_a_folder_are_refused(source: Model, target: Model, delete: bool) -> None:
    with planned(ModelSide(source, BUCKET), ModelSide(target, POSIX), Rules(delete=delete)) as found:
        refused = {conflict.entry.path for conflict in found.conflicts if conflict.refuse}
        moved = {action.entry.path for action in found.moves}
    # A key below an existing file has a conflict for that file instead.
    existing_files = {path for path, node in target.items() if node.kind is not Kind.FOLDER and not delete}
    together = {path for path in source if any(above in source for above in parents(path))}
    assert refused <= together
    assert together - refused <= {path for path in together if existing_files & set(parents(path))}
    assert not together & moved


@given(buckets(), trees())
def test_a_folder_gets_the_contents_of_a_bucket(source: Model, target: Model) -> None:
    """Existing folders are kept, because a bucket has no folders."""
    possible = {path: node for path, node in source.items() if not set(parents(path)) & source.keys()}
    with planned(ModelSide(possible, BUCKET), ModelSide(target, POSIX), DELETING) as found:
        result = execute_plan(possible, target, found)
        assert found.conflicts == []
    assert {path: node for path, node in result.items() if node.kind is not Kind.FOLDER} == possible
    with planned(ModelSide(possible, BUCKET), ModelSide(result, POSIX), DELETING) as again:
        assert not again.changes


@given(trees(), trees(), st.booleans())
def test_every_source_name_gets_one_decision_and_folders_come_first(
    source: Model, target: Model, delete: bool
) -> None:
    sides = ModelSide(source, POSIX), ModelSide(target, POSIX)
    rules = Rules(delete=delete)
    decisions = list(decide(sides[0].list(), sides[1].list(), rules, selector(rules), POSIX, POSIX))
    decided = [
        one.entry.path for one in decisions if isinstance(one, Conflict) or one.verb is not Verb.DELETE
    ]
    assert sorted(decided) == sorted(source)
    deleted = [one for one in decisions if isinstance(one, Action) and one.verb is Verb.DELETE]
    assert delete or not deleted
    assert len({one.entry.path for one in deleted}) == len(deleted)
    assert {one.entry.path for one in deleted} <= set(target)
    position = {path: number for number, path in enumerate(decided)}
    for path in source:
        for above in parents(path):
            assert position[above] < position[path], "a folder is created before its entries"


def _entry(path: bytes, node: object) -> Entry:
    from tests.properties.trees import Node, entry_of

    assert isinstance(node, Node)
    return entry_of(path, node)


def _shown(tree: Model) -> dict[bytes, tuple[object, ...]]:
    """Return the guaranteed state of each name; for a folder only that it exists."""
    return {path: (node.kind,) if node.kind is Kind.FOLDER else tuple(node) for path, node in tree.items()}

"""Test that a saved plan is executed exactly or refused, and that drift is detected."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

from hibali.errors import RefusedError
from tests.properties.test_plan import BUCKET, POSIX, planned
from tests.properties.trees import FOLDER, Model, ModelSide, Node, buckets, execute_plan, files, trees
from tests.schemas import check_lines
from transfers.model.entry import Kind
from transfers.model.rules import DeleteLimit, Rules
from transfers.planning.actions import Action
from transfers.planning.plan_file import Header, PlanEndpoint, SavedPlan, plan_lines, read_plan
from transfers.planning.planner import TransferPlan, plan_transfer
from transfers.planning.recheck import recheck

DELETING = Rules(delete=True, delete_limit=DeleteLimit(percent=100), allow_empty_source=True)
HEADER = Header(
    PlanEndpoint(b"/from \xff\n", b"/from \xff\n"),
    PlanEndpoint(b"there:x", b"/x"),
    DELETING,
    "2026-01-01T00:00:00Z",
)


def written(source: ModelSide, target: ModelSide, header: Header = HEADER) -> bytes:
    found = plan_transfer(source, target, header.rules, target_exists=True)
    try:
        if any(conflict.refuse for conflict in found.conflicts):
            reject()
        return b"".join(plan_lines(header, found))
    finally:
        found.close()


@contextmanager
def reading(content: bytes) -> Iterator[SavedPlan]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan"
        path.write_bytes(content)
        saved = read_plan(path)
    try:
        yield saved
    finally:
        saved.planned.close()


def again(saved: SavedPlan, source: ModelSide, target: ModelSide) -> TransferPlan:
    return recheck(saved.planned, source, target, saved.header.rules, target_exists=True, subject="there:x")


def refused(content: bytes) -> str:
    with pytest.raises(RefusedError) as caught, reading(content):
        pass
    assert caught.value.code == "plan-damaged"
    return caught.value.message


def sealed(records: list[dict[str, Any]]) -> bytes:
    """Return these lines with a valid end, as an attacker can write them."""
    lines = [json.dumps(record).encode() + b"\n" for record in records[:-1]]
    summed = hashlib.sha256(b"".join(lines)).hexdigest()
    end = records[-1] | {"count": len(lines), "sha256": summed}
    return b"".join([*lines, json.dumps(end).encode() + b"\n"])


def done(action: Action) -> tuple[Any, ...]:
    return (action.verb, action.entry.path, action.entry.kind, action.because, action.implied)


@given(trees(), trees())
def test_a_saved_plan_has_the_same_result_as_a_direct_transfer(source: Model, target: Model) -> None:
    here, there = ModelSide(source, POSIX), ModelSide(target, POSIX)
    content = written(here, there)
    check_lines(content)
    with reading(content) as saved, planned(here, there, DELETING) as first:
        assert saved.header == HEADER
        found = again(saved, here, there)
        assert sorted(map(done, found.moves)) == sorted(map(done, first.moves))
        assert sorted(map(done, found.deletions)) == sorted(map(done, first.deletions))
        assert found.planned() == first.planned()
        assert found.target_files == first.target_files
        assert execute_plan(source, target, found) == execute_plan(source, target, first)
        found.close()


@pytest.mark.heavy
@given(buckets(), buckets())
def test_a_saved_plan_between_buckets_has_the_same_result(source: Model, target: Model) -> None:
    here, there = ModelSide(source, BUCKET), ModelSide(target, BUCKET)
    with reading(written(here, there)) as saved, planned(here, there, DELETING) as first:
        found = again(saved, here, there)
        assert sorted(map(done, found.moves)) == sorted(map(done, first.moves))
        assert sorted(map(done, found.deletions)) == sorted(map(done, first.deletions))
        found.close()


@given(trees(), trees(), st.data())
def test_an_interrupted_plan_is_completed(source: Model, target: Model, data: st.DataObject) -> None:
    here = ModelSide(source, POSIX)
    with reading(written(here, ModelSide(target, POSIX))) as saved, ExitStack() as stack:
        whole, part = again(saved, here, ModelSide(target, POSIX)), TransferPlan()
        stack.callback(whole.close)
        stack.callback(part.close)
        moves, deletions = list(whole.moves), list(whole.deletions)
        count = data.draw(st.integers(0, len(moves)))
        deleted = data.draw(st.integers(0, len(deletions))) if count == len(moves) else 0
        for action in (*moves[:count], *deletions[:deleted]):
            part.count(action)
        halfway = execute_plan(source, target, part)
        rest = again(saved, here, ModelSide(halfway, POSIX))
        stack.callback(rest.close)
        assert execute_plan(source, halfway, rest) == execute_plan(source, target, whole)
        assert rest.files == whole.files


@given(trees(), trees(), st.data())
def test_a_name_that_changed_since_is_drift(source: Model, target: Model, data: st.DataObject) -> None:
    here, there = ModelSide(source, POSIX), ModelSide(target, POSIX)
    with reading(written(here, there)) as saved:
        every = [*saved.planned.moves, *saved.planned.deletions]
        subject = [action for action in every if action.entry.kind is Kind.FILE and not action.implied]
        assume(subject)
        path = data.draw(st.sampled_from(subject)).entry.path
        changed = data.draw(files())._replace(mtime_ns=12345, content=b"something else altogether")
        if path in source:
            drifted = ModelSide(source | {path: changed}, POSIX), there
        else:
            drifted = here, ModelSide(target | {path: changed}, POSIX)
        with pytest.raises(RefusedError) as caught:
            again(saved, *drifted)
        assert caught.value.code == "drift"


@given(trees(), trees(), trees())
def test_a_plan_changes_only_its_own_names(source: Model, target: Model, other: Model) -> None:
    here = ModelSide(source, POSIX)
    with reading(written(here, ModelSide(target, POSIX))) as saved:
        names = {action.entry.path for action in (*saved.planned.moves, *saved.planned.deletions)}
        now = dict(target)
        for path, node in other.items():
            above = all(now.get(one, FOLDER).kind is Kind.FOLDER for one in _above(path))
            if path not in now and above and not any(one in names for one in (path, *_above(path))):
                now[path] = node
        try:
            found = again(saved, here, ModelSide(now, POSIX))
        except RefusedError:
            return  # another change is in a folder that the plan replaces
        result = execute_plan(source, now, found)
        for path in now.keys() - names:
            assert result.get(path) == now[path]
        found.close()


def _above(path: bytes) -> list[bytes]:
    parts = path.split(b"/")
    return [b"/".join(parts[:count]) for count in range(1, len(parts))]


SMALL = written(
    ModelSide({b"new": Node(Kind.FILE, b"x", 5), b"\xff": Node(Kind.LINK, link=b"../\xff")}, POSIX),
    ModelSide({b"old": Node(Kind.FILE, b"x", 5)}, POSIX),
)


@given(st.integers(0, len(SMALL) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused(position: int, change: int) -> None:
    edited = bytearray(SMALL)
    edited[position] ^= change
    refused(bytes(edited))


@given(st.integers(0, len(SMALL) - 1))
def test_a_truncated_plan_is_refused(length: int) -> None:
    refused(SMALL[:length])


@given(st.integers(0, 3), st.integers(0, 3))
def test_lines_that_were_moved_or_repeated_are_refused(first: int, second: int) -> None:
    lines = SMALL.splitlines(keepends=True)
    assert len(lines) == 5
    swapped = list(lines)
    swapped[first], swapped[second] = swapped[second], swapped[first]
    if first != second:
        refused(b"".join(swapped))
    refused(b"".join([*lines[:first], lines[first], *lines[first:]]))
    refused(SMALL + lines[first])


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(
        ("", "..", "../x", "/etc/passwd", "a//b", "x\0y", ".hibali/lock", "delete", "file", "\ud800")
    ),
    st.lists(st.none(), max_size=1),
    st.dictionaries(st.sampled_from(("type", "size")), st.just("x"), max_size=1),
)


@settings(max_examples=3 * settings.default.max_examples)
@given(st.data())
def test_an_invalid_line_is_refused_even_with_a_matching_digest(data: st.DataObject) -> None:
    records = [json.loads(line) for line in SMALL.splitlines()]
    record: dict[str, Any] = data.draw(st.sampled_from(records[:-1]))
    inner = [record[key] for key in ("source", "target", "rules") if isinstance(record.get(key), dict)]
    place = data.draw(st.sampled_from([record, *inner]))
    key = data.draw(st.sampled_from([*sorted(place), "extra"]))
    before = place.get(key)
    place[key] = data.draw(JUNK)
    assume(type(before) is not type(place[key]) or isinstance(place[key], (list, dict)))
    harmless = {"files_from", "newer_ns", "min_size", "max_size", "max_delete", "require_proof"}
    assume(key not in harmless)
    assume(place[key] != before)
    # an etag or a mode is optional, but must have the right type
    assume(not (key in {"include", "exclude"} and place[key] == []))
    refused(sealed(records))


@pytest.mark.parametrize(
    "path", ["", "..", "../x", "a/../../x", "/x", "a//x", "x\0y", ".hibali/lock", ".hibali-" + "0" * 32]
)
def test_unsafe_and_reserved_names_are_refused(path: str) -> None:
    records = [json.loads(line) for line in SMALL.splitlines()]
    assert records[1]["path"] == "new"
    records[1]["path"] = path
    assert "path" in refused(sealed(records))


def test_the_readable_name_must_match_the_exact_one() -> None:
    records = [json.loads(line) for line in SMALL.splitlines()]
    records[1]["path_base64"] = "ZXZpbA=="
    assert "are different names" in refused(sealed(records))


def test_a_plan_without_delete_deletes_nothing() -> None:
    records = [json.loads(line) for line in SMALL.splitlines()]
    records[0]["rules"]["delete"] = False
    assert "rules do not allow deletions" in refused(sealed(records))


def test_an_endless_line_is_refused_before_it_is_read_completely() -> None:
    lines = SMALL.splitlines(keepends=True)
    long = lines[0][:-2] + b" " * 400_000 + b"}\n"
    assert "too long" in refused(long + b"".join(lines[1:]))


def test_planning_failures_are_saved() -> None:
    special = ModelSide({b"pipe": Node(Kind.SPECIAL), b"a": Node(Kind.FILE, b"x", 5)}, POSIX)
    content = written(special, ModelSide({}, POSIX))
    kinds = [record["kind"] for record in check_lines(content)]
    assert kinds == ["plan", "failed", "action", "plan-end"]
    with reading(content) as saved:
        found = again(saved, special, ModelSide({}, POSIX))
        assert [(failure.path, failure.code) for failure in found.failures()] == [(b"pipe", "special-file")]
        found.close()

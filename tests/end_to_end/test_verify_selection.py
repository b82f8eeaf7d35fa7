"""Test which files `verify` selects: by name, age and size at the first location."""

from __future__ import annotations

from pathlib import Path

from hibali.config.settings import Settings
from hibali.locations import read_location
from tests.support.transfers import Transfers, failed
from tests.support.trees import File
from transfers.model.rules import Rules
from transfers.verify import VerificationRequest, Verifier

OLD = 1_600_000_000_000_000_000
TREE = {b"sub/a": b"x" * 10, b"sub/big": b"y" * 5000, b"b": File(b"z" * 20, mtime_ns=OLD), b"c\nd": b"odd"}


def names_in(path: Path, *names: bytes) -> Path:
    path.write_bytes(b"\0".join(names))
    return path


def test_a_list_of_names_selects_the_verified_files(there: Transfers, tmp_path: Path) -> None:
    there.make(TREE)
    there.push()
    there.place.corrupt("data", b"sub/a")
    listed = names_in(tmp_path / "list", b"b", b"c\nd")
    sound = there.verify("there:data", "--files-from", listed, "-0").last
    assert (sound["files"], sound["files_kept"], sound["proof_tree"]) == (2, 2, "digest")
    names_in(listed, b"sub", b"c\nd", b"nothing/of this")
    answer = there.verify("there:data", "--files-from", listed, "-0", exit=6)
    assert failed(answer) == {b"sub/a": "differs", b"nothing/of this": "missing"}
    there.place.remove("data", b"c\nd")
    gone = names_in(listed, b"c\nd")
    assert failed(there.verify("there:data", "--files-from", gone, "-0", exit=6)) == {b"c\nd": "missing"}


def test_size_and_age_select_the_verified_files(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    there.place.corrupt("data", b"sub/a")
    for words, files in ((("--min-size", "1K"), 1), (("--newer", "2d", "--min-size", "11"), 1)):
        sound = there.verify("there:data", *words).last
        assert (sound["files"], sound["files_kept"], sound["files_unchecked"]) == (files, files, 0)
    assert there.verify("there:data", "--max-size", "25", "--min-size", "15").last["files"] == 1
    assert failed(there.verify("there:data", "--max-size", "15", exit=6)) == {b"sub/a": "differs"}
    there.place.remove("data", b"b")
    answer = there.verify("there:data", "--min-size", "1K", exit=6)
    assert failed(answer) == {b"b": "missing"}, "a missing file has no size, so it is reported"


def test_sizes_are_those_of_the_first_location(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    there.place.plant("data", {b"sub/big": b"cut short", b"more": b"m" * 3000, b"tiny": b"t"})
    answer = there.verify(there.source, "there:data", "--min-size", "1K", exit=6)
    assert failed(answer) == {b"sub/big": "differs", b"more": "unexpected"}
    listed = names_in(tmp_path / "list", b"b", b"tiny", b"in neither")
    answer = there.verify(there.source, "there:data", "--files-from", listed, "-0", exit=6)
    assert failed(answer) == {b"tiny": "unexpected", b"in neither": "missing"}


def test_only_one_list_can_come_from_stdin(local_there: Transfers) -> None:
    there = local_there
    there.make(TREE)
    there.push()
    answer = there.hibali("verify", "there:data", "--files-from", "-", "--json", stdin=b"sub\n", exit=0)
    assert answer.last["files"] == 2
    there.hibali("verify", "there:data", "--files-from", "-", "--manifest", "-", exit=2)
    there.hibali("verify", "there:data", "-0", exit=2)


def test_another_selection_is_another_request(tmp_path: Path) -> None:
    """Check that `--resume` requires the same selection."""
    place = read_location(str(tmp_path), Settings(tmp_path / "config.toml", {}))
    selections = [
        Rules(),
        Rules(min_size=1),
        Rules(max_size=1),
        Rules(newer_ns=1),
        Rules(include=("a",)),
        Rules(files_from=frozenset({b"a"})),
        Rules(files_from=frozenset({b"a", b"b"})),
    ]
    keys = [Verifier(VerificationRequest(place, rules=rules))._key() for rules in selections]
    assert all(keys.count(key) == 1 for key in keys)
    assert keys == [Verifier(VerificationRequest(place, rules=rules))._key() for rules in selections]

"""Test a remote agent that sends false data: no change outside the target, no deletion, exit 6 or 8, and no traceback (S1, S3)."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.services.session import REPOSITORY
from tests.support import tampering_agent
from tests.support.trees import File, make_tree, read_tree, state_of

MTIME = 1_600_000_000_000_000_000
TREE = {b"a/1": b"one", b"a/2": b"two", b"b": b"three", b"c/d/e": b"four"}
EXTRA = {b"a/extra": b"only at the target", b"extra": b"this one, too"}
REFUSED = {6, 8}
DISCONNECTED = {5, 6, 8}  # a connection that breaks is not a proven false answer

FALSE_LISTINGS = sorted(name for name in tampering_agent.TAMPERINGS if "-at-" not in name)
FALSE_FRAMES = sorted(name for name in tampering_agent.TAMPERINGS if "-at-" in name)
WRONG_VALUES = ("null", "-1", '"x"', "[]", "{}", "[null]", "1e300", str(1 << 70))


class World:
    """A folder with files that must not change, two trees, and a site whose agent sends false data."""

    def __init__(self, hibali: Any, folder: Path) -> None:
        self.hibali = hibali
        self.folder = folder / "world"
        self.near = self.folder / "near"
        self.host = self.folder / "far"
        self.outside = make_tree(self.folder / "outside", {b"keep": b"untouched"})

    def send_false(self, name: str) -> None:
        # the path of python may contain no space, although that of the clone may
        real, program = shlex.quote(sys.executable), "-P -m tests.support.tampering_agent"
        ssh, python = self.folder.parent / "ssh", self.folder.parent / "python"
        # the last argument starts the program that starts the agents, which is none itself
        ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec env LIAR_SESSION=1 sh -c "$last"\n')
        python.write_text(
            f'#!/bin/sh\nif [ -z "$LIAR_SESSION" ]; then exec {real} {program} {shlex.quote(name)}; fi\n'
            f'unset LIAR_SESSION; exec {real} "$@"\n'
        )
        ssh.chmod(0o755)
        python.chmod(0o755)
        self.hibali.home.config.write_text(
            'version = 1\n[sites.liar]\nkind = "ssh"\n[sites.liar.limits]\nlogin_interval = "0s"\nreconnect = "0s"\n'
            f'[sites.liar.ssh]\nhost = "liar"\npersist = "no"\ncommand = {json.dumps([str(ssh)])}\n'
            f"python = {json.dumps(str(python))}\n"
        )
        self.hibali.home.config.chmod(0o600)
        self.hibali.env.update(LIAR_OUTSIDE=str(self.outside), PYTHONPATH=str(REPOSITORY))

    def push(self, *words: str) -> Any:
        make_tree(self.near, dict(TREE))
        make_tree(self.host, {**EXTRA, b"b": File(b"older", mtime_ns=MTIME)})
        return self._run("push", self.near, f"liar:{self.host}", *words)

    def pull(self, *words: str) -> Any:
        make_tree(self.host, dict(TREE))
        make_tree(self.near, {**EXTRA, b"b": File(b"older", mtime_ns=MTIME)})
        return self._run("pull", f"liar:{self.host}", self.near, *words)

    def _run(self, *words: Any) -> Any:
        before = state_of(self.outside)
        answer = self.hibali(*words, "--json", "--delete", "--max-delete", "100%", timeout=60)
        assert state_of(self.outside) == before, "a file outside of the target changed"
        assert {path.name for path in self.folder.iterdir()} == {"near", "far", "outside"}
        assert b"Traceback" not in answer.err, str(answer)
        assert answer.last["exit"] == answer.exit, str(answer)
        return answer

    def check(self, target: Path) -> None:
        """Check that nothing was deleted and that new files have the right content."""
        found = read_tree(target)
        for name, content in EXTRA.items():
            assert found.pop(name, None) == content, f"{name!r} was deleted"
        assert found.pop(b"b") in {b"older", TREE[b"b"]}
        for name in list(found):
            if name.startswith(b".hibali"):
                del found[name]
        assert {name: TREE.get(name) for name in found} == found, "a file arrived that is not in the plan"


@pytest.fixture
def world(hibali: Any, tmp_path: Path) -> World:
    return World(hibali, tmp_path)


def some_of(names: Sequence[str]) -> list[Any]:
    """Return all of them; the ordinary suite tries every fourth one."""
    return [
        pytest.param(name, marks=[] if number % 4 == 0 else [pytest.mark.heavy])
        for number, name in enumerate(names)
    ]


def test_the_agent_wrapper_without_false_data_is_accepted(world: World) -> None:
    """Check that the wrapper of the agent changes nothing by itself."""
    world.send_false("answer:nothing:{}")
    assert world.push().exit == 0
    assert read_tree(world.host) == TREE


@pytest.mark.parametrize("name", some_of(FALSE_LISTINGS))
def test_a_false_listing_of_the_target_is_detected(world: World, name: str) -> None:
    world.send_false(name)
    answer = world.push()
    if name == "below-a-link" and answer.exit == 0:
        return  # the listing is sorted and counted; invented entries do not exist, so none is deleted, and nothing outside changed
    assert answer.exit in (DISCONNECTED if "hang-up" in name else REFUSED), str(answer)
    world.check(world.host)


@pytest.mark.heavy
@pytest.mark.parametrize("name", FALSE_LISTINGS)
def test_a_false_listing_of_the_source_is_detected(world: World, name: str) -> None:
    world.send_false(name)
    answer = world.pull()
    assert answer.exit in (DISCONNECTED if "hang-up" in name else REFUSED), str(answer)
    world.check(world.near)


@pytest.mark.heavy
@pytest.mark.parametrize("name", FALSE_FRAMES)
def test_unexpected_and_too_large_frames_are_detected(world: World, name: str) -> None:
    world.send_false(name)
    answer = world.push()
    assert answer.exit in REFUSED, str(answer)
    world.check(world.host)


FALSE_DATA = (
    "field:data:unit:99", "field:data:sizes:[-3,9,9,9]", "field:data:sizes:[1]", "field:data:sizes:[]",
    "field:data:sizes:[4,2,5,4]", "field:data:digests:[]", 'field:data:problems:{"99":["x","y",false]}',
    'field:data:problems:{"-1":["x","y",false]}', 'field:data:problems:{"x":["x","y",false]}',
    'field:data:problems:{"0":["x"]}', 'field:data:problems:{"0":1}',
    f'field:data:digests:["{"0" * 64}","{"1" * 64}","{"2" * 64}","{"3" * 64}"]',
    "field:data:digests:[1,2,3,4]", "answer:data:{}",
)  # fmt: skip


@pytest.mark.parametrize("name", some_of(FALSE_DATA))
def test_a_source_that_sends_false_data_is_detected(world: World, name: str) -> None:
    world.send_false(name)
    answer = world.pull()
    assert answer.exit in REFUSED, str(answer)
    world.check(world.near)


FALSE_COMMITS = (
    "field:committed:unit:99", "field:committed:done:[99]", "field:committed:done:[0,0]", "field:committed:done:[]",
    'field:committed:failed:[[99,["x","y",false]]]', "field:committed:failed:[[0]]", "field:committed:failed:[1]",
    "field:committed:done:[[0]]", 'field:committed:done:["0"]', "answer:committed:{}", 'answer:committed:{"unit":null}',
    'answer:committed:{"unit":"x"}', 'field:committed:failed:[[0,["a","b",true]]]',
)  # fmt: skip


@pytest.mark.parametrize("name", some_of(FALSE_COMMITS))
def test_a_target_that_reports_false_commits_is_detected(world: World, name: str) -> None:
    world.send_false(name)
    answer = world.push()
    assert answer.exit in REFUSED, str(answer)
    world.check(world.host)


FIELDS = (
    "greeting:protocol", "expand:path", "stat:found", "lstat:found", "open:path", "list:count",
    "list:problems", "list:orphans", "space:bytes", "space:inodes", "remove:problems", "committed:done",
    "committed:failed", "committed:unit", "data:sizes", "data:digests", "data:problems", "data:unit",
    "digest:digest", "digest:problem",
)  # fmt: skip
# Where a wrong value is a valid one (an empty list of problems, a number of inodes), exit 0 is correct, too.
WORDS = sorted(
    {field.partition(":")[0] for field in FIELDS} | {"lock", "unlock", "start_receiving", "committed"}
)


@pytest.mark.heavy
@pytest.mark.parametrize("word", WORDS)
def test_empty_replies_are_not_reported_as_a_bug(world: World, word: str) -> None:
    world.send_false(f"answer:{word}:{{}}")
    for answer in (world.push("--checksum"), world.pull()):
        assert answer.exit in {0, 3, 4, 5, 6, 8}, str(answer)


@pytest.mark.heavy
@pytest.mark.parametrize("value", WRONG_VALUES)
@pytest.mark.parametrize("field", FIELDS)
def test_wrong_values_are_not_reported_as_a_bug(world: World, field: str, value: str) -> None:
    world.send_false(f"field:{field}:{value}")
    for answer in (world.push("--checksum"), world.pull()):
        assert answer.exit in {0, 3, 4, 5, 6, 8}, str(answer)


@pytest.mark.parametrize("value", ["5", "[]", json.dumps("ab" * 32 + "  ../../evil")])
def test_an_invalid_digest_is_never_written_to_a_manifest(world: World, value: str) -> None:
    make_tree(world.host, dict(TREE))
    world.send_false(f"field:digest:digest:{value}")
    answer = world.hibali("manifest", f"liar:{world.host}", exit=6)
    assert answer.out == b""
    assert b"an invalid sha256" in answer.err
    assert world.hibali("verify", f"liar:{world.host}", world.host, "--json", exit=6).last["files_kept"] == 0

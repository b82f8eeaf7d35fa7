"""Test quotas with recorded command output, because none can be set up where the tests run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import RefusedError
from transfers.agent.commands import Mount, Quota, find_mount, quota_commands, read_project, read_quotas
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.model.units import Space
from transfers.planning.actions import Action, Verb
from transfers.planning.planner import TransferPlan, check_space
from transfers.remote.agent_host import within_quotas

RECORDINGS = sorted((Path(__file__).parents[2] / "recordings" / "quota").glob("*.json"))
MOUNTS = (
    b"22 27 0:21 / /proc rw,relatime - proc proc rw\n"
    b"27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro\n"
    b"30 27 8:2 / /home rw shared:2 - ext4 /dev/sdb1 rw,usrquota,grpquota\n"
    b"31 27 0:40 / /with\\040space rw - xfs /dev/sdc1 rw,noquota\n"
    b"32 30 0:41 / /home/remote rw shared:7 master:2 - nfs4 server:/x rw,vers=4.2\n"
    b"33 27 0:42 / /lustre rw - lustre 10.0.0.1@o2ib:/fs rw,lazystatfs\n"
)


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_recorded_quota_outputs_are_parsed(path: Path) -> None:
    recorded: dict[str, Any] = json.loads(path.read_text())
    assert recorded["version"]
    assert recorded["origin"]
    assert [list(room) for room in read_quotas(recorded["stdout"])] == recorded["expect"]


def test_raw_grace_output_has_every_column() -> None:
    # The layout of quota-tools 4.x with -p: `0` without a grace time, else seconds since the epoch.
    row = "/dev/sdb1  1000* 900 1000 1700000000 10 0 40 0"
    text = f"Disk quotas for user me (uid 1000): \nFilesystem blocks quota limit grace files\n{row}\n"
    assert list(read_quotas(text)) == [Quota("user 1000", 0, 30)]


@pytest.mark.parametrize(
    "text", ["", "quota: error\n", "Disk quotas for user me (uid 1000): none\n", "a b c d e f g h i\n"]
)
def test_output_without_a_limit_sets_no_limit(text: str) -> None:
    assert list(read_quotas(text)) == []


def test_the_deepest_mount_of_the_path_is_used() -> None:
    def folder(path: bytes) -> bytes:
        found = find_mount(MOUNTS, path)
        assert found is not None
        return found.folder

    assert folder(b"/") == folder(b"/homely") == b"/"
    assert folder(b"/home/me") == b"/home"
    assert folder(b"/home/remote") == folder(b"/home/remote/x") == b"/home/remote"
    assert folder(b"/with space/x") == b"/with space"
    assert find_mount(b"rubbish\n", b"/") is None


def test_quotas_are_queried_only_on_filesystems_that_have_them() -> None:
    def commands_for(path: bytes, project: int | None = None) -> list[list[bytes]]:
        mount = find_mount(MOUNTS, path)
        assert mount is not None
        return quota_commands(mount, path, (1000, 100), project)

    assert commands_for(b"/x") == []
    assert commands_for(b"/with space/x") == []
    (words,) = commands_for(b"/home/me")
    assert words[0] == b"quota"
    assert words[-2:] == [b"-f", b"/home"]
    assert commands_for(b"/home/remote")[0][-1] == b"/home/remote"
    assert [words[2:] for words in commands_for(b"/lustre/me", 7)] == [
        [b"-u", b"1000", b"/lustre/me"],
        [b"-g", b"100", b"/lustre/me"],
        [b"-p", b"7", b"/lustre/me"],
    ]
    assert len(commands_for(b"/lustre/me")) == 2
    assert quota_commands(Mount(b"/", "tmpfs", "rw"), b"/", (1, 1), None) == []


def test_the_project_of_a_folder_is_read() -> None:
    # `lfs project -d`, the layout of Lustre's manual (13.3.1, "Project quotas"): number, inheritance, path.
    assert read_project("110255 P /projects/x\n") == 110255
    assert read_project("    0 - /home/x\n") is None
    assert read_project("lfs: not on a mounted Lustre filesystem") is None


def test_the_smallest_limit_applies() -> None:
    space = within_quotas(Space(100, None), [["user 1", 200, 7], ["group 2", 50, None], ["project 3", 60, 3]])
    assert (space.free_bytes, space.free_inodes) == (50, 3)
    assert space.by == {"bytes": "group 2", "inodes": "project 3"}
    assert within_quotas(Space(100, 5), []) == Space(100, 5)
    for wrong in ([["user 1", -1, None]], [["user 1"]], [["user 1", "many", None]], 7):
        with pytest.raises((ValueError, TypeError)):
            within_quotas(Space(1, 1), wrong)  # type: ignore[arg-type]


class _Full:
    facts = Facts("test", Verification.DIGEST, Verification.DIGEST, holes=True)

    def __init__(self, space: Space, partial: int = 0) -> None:
        self._space = space
        self._partial = partial

    def space(self) -> Space:
        return self._space

    def partial_bytes(self) -> int:
        return self._partial


@pytest.mark.parametrize(
    ("space", "code"),
    [
        (Space(9, None), "no-space"),
        (Space(None, 0), "no-inodes"),
        (Space(9, 5, {"bytes": "project 7"}), "no-quota"),
        (Space(9, 0, {"inodes": "user 1000"}), "no-space"),
    ],
)
def test_a_full_target_is_refused_with_its_reason(space: Space, code: str) -> None:
    found = TransferPlan()
    check_space(found, _Full(Space(0, 0)), "there")  # type: ignore[arg-type]
    found.count(Action(Verb.COPY, Entry(b"a", Kind.FILE, 10), "new"))
    check_space(found, _Full(Space(10, 1)), "there")  # type: ignore[arg-type]
    with pytest.raises(RefusedError) as caught:
        check_space(found, _Full(space), "there")  # type: ignore[arg-type]
    assert caught.value.code == code
    assert ("quota of" in caught.value.message) == (code == "no-quota")
    found.close()


def test_the_received_part_of_a_file_needs_no_more_space() -> None:
    found = TransferPlan()
    found.count(Action(Verb.COPY, Entry(b"large", Kind.FILE, 80), "new"))
    check_space(found, _Full(Space(40, 1), partial=40), "there")  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match="41 B to move"):
        check_space(found, _Full(Space(40, 1), partial=39), "there")  # type: ignore[arg-type]
    found.close()


def test_holes_need_no_space() -> None:
    found = TransferPlan()
    found.count(Action(Verb.COPY, Entry(b"image", Kind.FILE, 1 << 40, allocated=8192), "new"))
    check_space(found, _Full(Space(8192, 1)), "there")  # type: ignore[arg-type]
    with pytest.raises(RefusedError, match=r"8\.2 kB to move"):
        check_space(found, _Full(Space(8191, 1)), "there")  # type: ignore[arg-type]
    found.close()

"""Test folders that other accounts can write: hibali never follows their symlinks below a site's root (S21)."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hibali.plugins import if_offered
from tests.end_to_end.conftest import MakeTransfers
from tests.end_to_end.run_tools import Bench
from tests.support.transfers import Transfers, counts
from tests.support.trees import make_tree, read_tree, state_of

OTHER_ACCOUNT = 65533  # the uid of another account
ANYTHING = ("--delete", "--max-delete", "100%")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a symlink to another account")


# The agent at an ssh site is the same as on this machine.
@pytest.fixture(params=["local", "sftp", pytest.param("ssh", marks=pytest.mark.heavy)])
def shared(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Return a site that stores files."""
    there = transfers_to(request.param)
    there.make({b"new": b"1"})
    return there


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Make a folder outside of the root, with files of the user."""
    return make_tree(tmp_path / "victim", {b"data/thesis": b"years of work", b"notes": b"2"})


def plant(link: Path, target: Path, owner: int | None = OTHER_ACCOUNT) -> Path:
    """Make a symlink, which belongs to another account by default."""
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(target)
    if owner is not None:
        os.lchown(link, owner, owner)
    return link


def push_to(there: Transfers, place: str, *words: str) -> tuple[str, ...]:
    return ("push", str(there.source), f"there:{place}", *words)


@needs_root
def test_a_symlink_of_another_account_below_the_root_is_not_followed(
    shared: Transfers, victim: Path, tmp_path: Path
) -> None:
    plant(shared.place.at("team"), victim)  # type: ignore[attr-defined]
    before = state_of(victim)
    for words in (
        push_to(shared, "team/data"),
        push_to(shared, "team/data", *ANYTHING),
        ("rm", "--yes", "there:team/notes"),
        ("rm", "-r", "--yes", "there:team/data"),
        ("pull", "there:team/data", str(tmp_path / "got")),
        ("ls", "there:team/data"),
        ("cat", "there:team/notes"),
        ("verify", "there:team/data", str(shared.source)),
    ):
        answer = shared.hibali(*words, exit=8)
        assert f"belongs to another account (uid {OTHER_ACCOUNT})".encode() in answer.err, str(answer)
    assert state_of(victim) == before
    assert not (tmp_path / "got").exists()


def test_push_and_pull_go_through_the_users_own_symlinks(
    shared: Transfers, victim: Path, tmp_path: Path
) -> None:
    plant(shared.place.at("mine"), victim, owner=None)  # type: ignore[attr-defined]
    assert counts(shared.hibali(*push_to(shared, "mine/data"), "--json", exit=0))["files_moved"] == 1
    assert read_tree(victim / "data").keys() >= {b"thesis", b"new"}
    shared.hibali("pull", "there:mine/data", tmp_path / "got", exit=0)
    assert (tmp_path / "got" / "thesis").read_bytes() == b"years of work"
    shared.hibali(*push_to(shared, "mine/fresh/folder"), exit=0)
    assert (victim / "fresh" / "folder" / "new").read_bytes() == b"1"


def test_nothing_is_deleted_behind_a_symlink_of_the_user_out_of_the_root(
    shared: Transfers, victim: Path
) -> None:
    plant(shared.place.at("mine"), victim, owner=None)  # type: ignore[attr-defined]
    before = state_of(victim)
    for words in (
        push_to(shared, "mine/data", *ANYTHING),
        push_to(shared, "mine/data", *ANYTHING, "--dry-run"),
        ("rm", "--yes", "there:mine/notes"),
        ("rm", "-r", "--yes", "there:mine/data"),
    ):
        answer = shared.hibali(*words, "--json", exit=8)
        assert answer.last["code"] == "leaves-root", str(answer)
        assert str(victim) in answer.last["message"]
    assert state_of(victim) == before


def test_deletions_follow_the_users_symlinks_inside_the_root(shared: Transfers) -> None:
    root: Path = shared.place.at("")  # type: ignore[attr-defined]
    make_tree(root, {b"2026/data/old": b"1", b"2026/data/older": b"2"})
    plant(root / "relative", Path("2026/../2026"), owner=None)
    plant(root / "absolute", root / "2026", owner=None)
    shared.hibali("rm", "--yes", "there:absolute/data/older", exit=0)
    shared.hibali(*push_to(shared, "relative/data", *ANYTHING), exit=0)
    assert read_tree(root / "2026" / "data").keys() >= {b"new"}
    assert not (root / "2026" / "data" / "old").exists()


@needs_root
def test_a_backup_is_not_written_through_a_symlink_of_another_account(
    transfers_to: MakeTransfers, victim: Path
) -> None:
    shared = transfers_to("local")
    shared.make({b"new": b"1"})
    root: Path = shared.place.at("")  # type: ignore[attr-defined]
    make_tree(root / "data", {b"new": b"old content"})
    plant(root / "kept", victim)
    before = state_of(victim)
    answer = shared.push("--backup-dir", "there:kept/today", exit=8)
    assert answer.last["code"] == "foreign-symlink", str(answer)
    assert state_of(victim) == before
    assert (root / "data" / "new").read_bytes() == b"old content"


@needs_root
def test_a_path_without_a_site_is_not_written_through_a_symlink_of_another_account(
    transfers_to: MakeTransfers, victim: Path, tmp_path: Path
) -> None:
    shared = transfers_to("local")
    shared.make({b"new": b"1"})
    link = plant(tmp_path / "team", victim)
    before = state_of(victim)
    for words in (
        ("sync", shared.source, link / "data", *ANYTHING),
        ("sync", shared.source, link / "data"),
        ("rm", "-r", "--yes", link / "data"),
        ("rm", "--yes", link / "notes"),
    ):
        answer = shared.hibali(*words, "--json", exit=8)
        assert answer.last["code"] == "foreign-symlink", str(answer)
    assert state_of(victim) == before
    shared.hibali("push", link / "data", "there:data", exit=0)  # a named path is read
    assert shared.there() == {b"thesis": b"years of work"}


@needs_root
def test_a_path_without_a_site_is_below_the_roots_of_local_sites(
    local_there: Transfers, victim: Path
) -> None:
    there = local_there
    there.make({b"new": b"1"})
    root: Path = there.place.at("")  # type: ignore[attr-defined]
    mine, theirs = plant(root / "mine", victim, owner=None), plant(root / "theirs", victim)
    before = state_of(victim)
    for code, words in (
        ("leaves-root", ("sync", there.source, mine / "data", *ANYTHING)),
        ("leaves-root", ("rm", "-r", "--yes", mine / "data")),
        ("foreign-symlink", ("sync", there.source, theirs / "data")),
        ("foreign-symlink", ("push", theirs / "data", "there:data")),
    ):
        assert there.hibali(*words, "--json", exit=8).last["code"] == code
    assert state_of(victim) == before


@contextmanager
def swapping(folder: Path, outside: Path) -> Iterator[Callable[[], int]]:
    """Swap `folder` for a symlink to `outside` and back, as another account that can write to the folder above; yield how often."""
    hidden = folder.with_name("hidden-by-the-other-account")
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            with contextlib.suppress(OSError):
                folder.rename(hidden)
                plant(folder, outside)
                swaps += 1
            with contextlib.suppress(OSError):
                if folder.is_symlink():
                    folder.unlink()
                hidden.rename(folder)

    thread = threading.Thread(target=swap)
    thread.start()
    try:
        yield lambda: swaps
    finally:
        stop.set()
        thread.join()


@needs_root
@pytest.mark.heavy
@pytest.mark.parametrize("word", ["local", "ssh"])
def test_nothing_is_deleted_or_written_while_another_account_swaps_a_folder_for_a_symlink(
    transfers_to: MakeTransfers, victim: Path, word: str
) -> None:
    shared = transfers_to(word)
    shared.make({b"new": b"1"})
    root: Path = shared.place.at("")  # type: ignore[attr-defined]
    before = state_of(victim)
    codes = set()
    make_tree(root / "team" / "data", {b"old": b"1"})
    with swapping(root / "team", victim) as swaps:
        for _ in range(6):
            answer = shared.hibali(*push_to(shared, "team/data", *ANYTHING))
            codes.add(answer.exit)
            assert b"Traceback" not in answer.err
            codes.add(shared.hibali("rm", "-r", "--yes", "there:team/data").exit)
    assert codes <= {0, 3, 5, 6, 8}
    assert swaps() > 20
    assert state_of(victim) == before


def scheduled(there: Transfers, *words: str, exit: int) -> Any:  # noqa: A002 - as the fixture `hibali` has it
    """Run the command as the schedule `nightly` does."""
    environment = dict(there.hibali.env)
    there.hibali.env["HIBALI_SCHEDULE"] = "nightly/20260101-030000-00000000"
    try:
        return there.hibali(*words, "--json", exit=exit)
    finally:
        there.hibali.env.clear()
        there.hibali.env.update(environment)


def test_a_scheduled_transfer_refuses_another_folder_under_the_name_of_its_target(
    local_there: Transfers, tmp_path: Path
) -> None:
    there = local_there
    there.make({b"new": b"1"})
    words = push_to(there, "data", *ANYTHING)
    scheduled(there, *words, exit=0)
    scheduled(there, *words, exit=0)
    there.root.rename(tmp_path / "moved-away")
    other = make_tree(there.root, {b"work": b"of somebody"})
    before = state_of(other)
    answer = scheduled(there, *words, exit=8)
    assert answer.last["code"] == "root-changed"
    assert if_offered("schedule", "schedule resume nightly") in answer.last["hint"]
    assert state_of(other) == before
    other.rename(tmp_path / "other")
    # missing, as if nothing is mounted
    assert scheduled(there, *words, exit=8).last["code"] == "root-changed"
    assert not there.root.exists()
    there.hibali(*words, exit=0)  # allowed outside of a schedule
    assert there.there() == {b"new": b"1"}


@needs_root
def test_no_run_files_are_written_or_removed_through_a_symlink_of_another_account(
    hibali: Any, tmp_path: Path
) -> None:
    bench = Bench(hibali)
    shared = tmp_path / "shared"
    table = f'kind = "local"\nwork = "@team/hibali"\n[sites.here.roots]\nteam = "{shared}"\n'
    bench.add_site("here", f'{table}[sites.here.container]\nname = "bare"\n[sites.here.limits]\npoll = "1s"')
    done = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    hibali("runs", "collect", done, "got", exit=0)
    elsewhere = tmp_path / "elsewhere"
    (shared / "hibali").rename(elsewhere)
    link = plant(shared / "hibali", elsewhere)
    before = state_of(elsewhere)
    for words in (
        ("runs", "clean", "--site", "here"),
        ("runs", "collect", done, "again"),
        ("runs", "adopt", "here"),
        (*bench.line(bench.answers(code=3)),),
    ):
        answer = hibali(*words, "--json", exit=8)
        assert answer.last["code"] == "foreign-symlink", str(answer)
    assert state_of(elsewhere) == before
    os.lchown(link, os.geteuid(), -1)  # the work folder is the configured one
    assert hibali("runs", "clean", "--site", "here", "--json", exit=0).lines[0]["fate"] == "removed"


@needs_root
def test_a_run_in_a_folder_of_another_account_is_not_adopted(hibali: Any, tmp_path: Path) -> None:
    bench = Bench(hibali)
    work = bench.add_local_site()
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    state = tmp_path / "another-state"
    state.mkdir(mode=0o700)
    ledger = {"HIBALI_STATE": str(state)}
    folder = work / "runs" / run_id
    for owner, mode in ((OTHER_ACCOUNT, 0o755), (os.geteuid(), 0o770)):
        os.chown(folder, owner, -1)
        folder.chmod(mode)
        [stray] = hibali("runs", "adopt", "here", "--yes", "--json", env=ledger, exit=0).lines[:-1]
        assert (stray["fate"], "another account" in stray["because"]) == ("left", True)
    os.chown(work / "runs", OTHER_ACCOUNT, -1)
    assert hibali("runs", "adopt", "here", "--json", env=ledger, exit=8).last["code"] == "not-private"

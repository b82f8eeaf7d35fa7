"""Test data at sites that are reached through REST services, with hibali's commands."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.services import rest
from tests.support.folders import removed_folders
from tests.support.rest_sites import NAME, SERVICES, RestSite, SiteCommands, open_site

MIB = 1024 * 1024
LARGE = int(os.environ.get("HIBALI_REST_LARGE_MIB", "72"))  # 1024 for the figures of the closing notes
MANY = int(os.environ.get("HIBALI_REST_FILES", "400"))  # 2000 for the same
KILLS = 5
WINDOW = (
    24  # MiB of a file that were requested ahead, or came after the last mark in the journal of the receiver
)


class Place(SiteCommands):
    """hibali with one site that is reached through a service."""

    def __init__(self, hibali: Any, site: RestSite) -> None:
        super().__init__(hibali, site.table())
        self.site = site
        self.double = site.double

    @property
    def moved(self) -> int:
        """The bytes of contents that the service sent and received."""
        return sum(self.double.sent.values()) + sum(self.double.received.values())


@pytest.fixture(params=[pytest.param(each, marks=pytest.mark.heavy) for each in SERVICES])
def place(request: pytest.FixtureRequest) -> Place:
    site = open_site(request, request.param)  # sets variables that hibali inherits
    return Place(request.getfixturevalue("hibali"), site)


def make_tree(folder: Path, contents: dict[str, bytes]) -> Path:
    """Write files with these contents, by their path, and return the folder."""
    for path, content in contents.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


def read_tree(folder: Path) -> dict[str, bytes]:
    """Return the contents of all files that are not hibali's own."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".hibali" not in path.parts
    }


def make_large(path: Path) -> str:
    """Write a large file without a pattern, and return its sha256."""
    path.parent.mkdir(parents=True)
    summed = hashlib.sha256()
    with path.open("wb") as file:
        for _ in range(LARGE):
            piece = os.urandom(MIB)
            summed.update(piece)
            file.write(piece)
    return summed.hexdigest()


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


CONTENTS = {
    **{f"a b/{number}%41+;.txt": b"%d" % number * 50 for number in range(5)},
    "empty": b"",
    "ä/ü": b"umlaut",
    "deep/er/est": b"x" * 70_000,
}


def test_a_tree_is_sent_once_listed_received_and_removed(place: Place, tmp_path: Path) -> None:
    hibali, tree = place.hibali, make_tree(tmp_path / "tree", CONTENTS)
    hibali("push", tree, f"{NAME}:data/set", exit=0)
    assert read_tree(place.site.home / "data/set") == CONTENTS
    sent = {name: size for name, size in place.double.received.items() if ".hibali/" not in name}
    hibali("push", tree, f"{NAME}:data/set", exit=0)
    assert sent == {name: size for name, size in place.double.received.items() if ".hibali/" not in name}
    listed = hibali("ls", "--recursive", f"{NAME}:data/set", exit=0).out.decode()
    assert "a b/0%41+;.txt" in listed
    hibali("verify", tree, f"{NAME}:data/set", exit=0)
    hibali("pull", f"{NAME}:data/set", tmp_path / "back", exit=0)
    assert read_tree(tmp_path / "back") == CONTENTS
    (tree / "empty").unlink()
    hibali("sync", tree, f"{NAME}:data/set", "--delete", exit=0)
    assert "empty" not in read_tree(place.site.home / "data/set")
    hibali("rm", "--recursive", "--yes", f"{NAME}:data/set", exit=0)
    assert not (place.site.home / "data/set").exists()


def test_a_site_is_checked_and_diagnosed(place: Place) -> None:
    facts = place.hibali("sites", "check", NAME, "--json", exit=0).last["facts"]
    assert str(place.site.home) in facts.values()
    if "setup" not in removed_folders():
        steps = place.hibali("doctor", NAME, "--json", exit=0).lines
        assert ("writes", "ok") in {(step.get("name"), step.get("verdict")) for step in steps}, steps


def test_a_login_with_a_code_is_stored_and_removed(place: Place) -> None:
    place.set_table(place.site.table(device=True))
    denied = place.hibali("ls", f"{NAME}:", "--json", exit=4).last
    assert (denied["code"], denied["hint"]) == ("login-needed", f"To log in: hibali sites login {NAME}")
    assert place.hibali("sites", "login", NAME, "--json", exit=4).last["code"] == "login-needed", (
        "without a terminal"
    )
    assert place.hibali("sites", "logout", NAME, "--json", exit=0).last["change"] == "same"


def test_tokens_that_expire_in_the_middle_of_many_files_are_renewed(place: Place, tmp_path: Path) -> None:
    place.site.oidc.uses = MANY // 4
    tree = {f"f{number % 7}/{number:04}": b"%d." % number * 90 for number in range(MANY)}
    source = make_tree(tmp_path / "source", tree)
    place.hibali("push", source, f"{NAME}:data", exit=0, timeout=900)
    assert read_tree(place.site.home / "data") == tree
    assert place.site.oidc.issued > 5
    issued = place.site.oidc.issued
    place.hibali("pull", f"{NAME}:data", tmp_path / "target", exit=0, timeout=900)
    assert read_tree(tmp_path / "target") == tree
    assert place.site.oidc.issued > issued + 2


def test_nothing_finished_is_sent_again_after_kills(place: Place, tmp_path: Path) -> None:
    tree = {f"f{number % 3}/{number:03}": b"%d." % number * 90 for number in range(150)}
    source = make_tree(tmp_path / "source", tree)
    home = place.site.home / "data"
    for step in range(3):
        enough = 30 * (step + 1)  # the files themselves may be renamed meanwhile, the folders stay
        reached = lambda enough=enough: sum(len(list(each.iterdir())) for each in home.glob("f?")) >= enough  # noqa: E731
        assert place.kill_when(reached, "push", source, f"{NAME}:data") == -signal.SIGKILL
    place.hibali("push", source, f"{NAME}:data", exit=0)
    assert read_tree(home) == tree
    sent = sum(size for name, size in place.double.received.items() if ".hibali/" not in name)
    assert sent <= sum(map(len, tree.values())) + 3 * 16 * 600, "more than what was under way at the kills"


def test_a_large_file_resumes_within_one_part_after_each_kill(place: Place, tmp_path: Path) -> None:
    large, target = tmp_path / "source" / "large", tmp_path / "target"
    digest, each = make_large(large), LARGE // (KILLS + 1)
    for step in range(KILLS):
        enough = (step + 1) * each * MIB
        reached = lambda enough=enough: sum(place.double.received.values()) >= enough  # noqa: E731
        assert place.kill_when(reached, "push", large, f"{NAME}:data/") == -signal.SIGKILL
        assert not (place.site.home / "data/large").exists(), "a file is visible before it is complete"
    place.hibali("push", large, f"{NAME}:data/", exit=0, timeout=900)
    assert digest_of(place.site.home / "data/large") == digest
    up = sum(place.double.received.values())  # also of hibali's own small files
    place.double.sent.clear()
    for step in range(KILLS):
        enough = (step + 1) * each * MIB
        reached = lambda enough=enough: sum(place.double.sent.values()) >= enough  # noqa: E731
        assert place.kill_when(reached, "pull", f"{NAME}:data/large", f"{target}/") == -signal.SIGKILL
        assert not (target / "large").exists(), "a file is visible before it is complete"
    place.hibali("pull", f"{NAME}:data/large", f"{target}/", exit=0, timeout=900)
    assert digest_of(target / "large") == digest
    down = sum(place.double.sent.values())  # likewise
    more = [(moved / MIB - LARGE) / KILLS for moved in (up, down)]
    print(
        f"\n{place.site.service}: {LARGE} MiB, {KILLS} kills: {more[0]:.1f} MiB more up, {more[1]:.1f} MiB down for each"
    )
    assert more[0] <= place.site.part_mib
    assert more[1] <= WINDOW, "more than what was requested ahead"


def test_a_file_that_the_service_truncates_is_found(place: Place, tmp_path: Path) -> None:
    content = os.urandom(6 * MIB)
    source = make_tree(tmp_path / "source", {"scan": content})
    method, path = place.site.upload
    place.double.fail(rest.TRUNCATED, method, path, times=1000)
    answer = place.hibali("push", source / "scan", f"{NAME}:data/", "--json")
    assert answer.exit in {5, 6}, answer
    assert not (place.site.home / "data/scan").exists()
    place.double.forget_faults()
    place.hibali("push", source / "scan", f"{NAME}:data/", exit=0)
    method, path = place.site.download
    place.double.fail(rest.TRUNCATED, method, path, times=1000)
    answer = place.hibali("pull", f"{NAME}:data/scan", f"{tmp_path / 'target'}/", "--json")
    assert answer.exit in {5, 6}, answer
    assert not (tmp_path / "target/scan").exists()
    place.double.forget_faults()
    place.hibali("pull", f"{NAME}:data/scan", f"{tmp_path / 'target'}/", exit=0)
    assert (tmp_path / "target/scan").read_bytes() == content


def test_bytes_can_go_by_another_site_with_the_same_filesystem(place: Place, tmp_path: Path) -> None:
    table = place.site.table().replace(
        f"[sites.{NAME}.{place.site.service}]\n", f'[sites.{NAME}.{place.site.service}]\ndata = "disk"\n'
    )
    place.set_table(f'{table}[sites.disk]\nkind = "local"\n')
    tree = make_tree(tmp_path / "tree", CONTENTS)
    there = place.site.home / "data"
    place.hibali("push", tree, f"{NAME}:{there}", exit=0)
    assert read_tree(there) == CONTENTS
    assert place.moved == 0


def test_other_answers_than_the_documented_ones_change_nothing(place: Place, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", CONTENTS)
    place.hibali("push", tree, f"{NAME}:data", exit=0)
    for method in ("GET", "POST"):
        place.double.fail(rest.GARBAGE, method, ".*", times=1000)
    answer = place.hibali("sync", tree, f"{NAME}:data", "--delete", "--json")
    assert answer.exit in {4, 5, 6}, answer
    assert b"Traceback" not in answer.err
    place.double.forget_faults()
    assert read_tree(place.site.home / "data") == CONTENTS


@pytest.fixture
def firecrest_place(request: pytest.FixtureRequest) -> Place:
    site = open_site(request, "firecrest")
    return Place(request.getfixturevalue("hibali"), site)


@pytest.mark.heavy
def test_firecrest_refuses_paths_above_its_filesystems(firecrest_place: Place, tmp_path: Path) -> None:
    """The real server answers 400 to each path outside of them (eth-cscs/firecrest-v2 35e1d08, since 2026-06-19)."""
    place = firecrest_place
    tree = make_tree(tmp_path / "tree", {"set/a": b"1", "set/b": b"2"})
    place.hibali("push", tree, f"{NAME}:data", exit=0)
    place.hibali("push", tree, f"{NAME}:data", exit=0)
    place.hibali("verify", tree / "set", f"{NAME}:data/set", exit=0)
    place.hibali("pull", f"{NAME}:data/set", tmp_path / "back", exit=0)
    assert read_tree(tmp_path / "back") == {"a": b"1", "b": b"2"}
    place.hibali("rm", "--recursive", "--yes", f"{NAME}:data", exit=0)
    outside = place.hibali("ls", f"{NAME}:/elsewhere", "--json", exit=4).last
    assert (outside["code"], "no filesystem there" in outside["message"]) == ("denied", True)


def test_firecrest_verifies_names_with_spaces(firecrest_place: Place, tmp_path: Path) -> None:
    """The server splits the output of sha256sum at white space, and answers 500 if there are more than two words."""
    contents = {"a b/c d.txt": b"spaces", "plain": b"none", "tab\tname": b"tab"}
    tree = make_tree(tmp_path / "tree", contents)
    firecrest_place.hibali("push", tree, f"{NAME}:data", exit=0)
    assert read_tree(firecrest_place.site.home / "data") == contents
    firecrest_place.hibali("verify", tree, f"{NAME}:data", exit=0)


@pytest.mark.heavy
def test_firecrest_reads_files_above_the_limit_of_its_answers(firecrest_place: Place, tmp_path: Path) -> None:
    """An answer has at most 5 MiB of base64, so a file of 3.93 to 5.24 MB can be sent directly, but not received."""
    content = os.urandom(4_000_000)
    tree = make_tree(tmp_path / "tree", {"a b/c & d": content, "plain": content[:3_932_157]})
    firecrest_place.hibali("push", tree, f"{NAME}:data", exit=0)
    firecrest_place.hibali("pull", f"{NAME}:data", tmp_path / "back", exit=0)
    assert read_tree(tmp_path / "back") == {"a b/c & d": content, "plain": content[:3_932_157]}


@pytest.mark.heavy
def test_firecrest_moves_large_files_whose_folders_a_shell_would_misread(
    firecrest_place: Place, tmp_path: Path
) -> None:
    """The server pastes paths into scripts: HTML-escaped, between quotation marks for uploads, bare for downloads."""
    name = "a b & $(touch pwned) `x`"
    content = os.urandom(6 * MIB)
    contents = {f"{name}/{name}": content, f"{name}/plain": content[::-1]}
    tree = make_tree(tmp_path / "tree", contents)
    firecrest_place.hibali("push", tree, f"{NAME}:data", exit=0)
    firecrest_place.hibali("pull", f"{NAME}:data", tmp_path / "back", exit=0)
    assert read_tree(tmp_path / "back") == contents
    assert read_tree(firecrest_place.site.home / "data") == contents
    left = firecrest_place.site.home / ".hibali" / "jobs"
    assert not left.exists() or list(left.iterdir()) == []


@pytest.fixture
def iri_place(request: pytest.FixtureRequest) -> Place:
    site = open_site(request, "iri")
    return Place(request.getfixturevalue("hibali"), site)


def test_iri_extracts_only_into_new_folders_and_refuses_paths_above_its_root(
    iri_place: Place, tmp_path: Path
) -> None:
    """The adapter of the reference server (doe-iri/iri-facility-api-python b9188d8) refuses `extract` into a folder that exists."""
    tree = make_tree(tmp_path / "tree", {"set/a b": b"1", "set/b": b"2"})
    iri_place.hibali("push", tree, f"{NAME}:data", exit=0)
    (tree / "set/b").write_bytes(b"changed")
    iri_place.hibali("push", tree, f"{NAME}:data", exit=0)
    assert read_tree(iri_place.site.home / "data") == {"set/a b": b"1", "set/b": b"changed"}
    assert (iri_place.site.home / "data/set/b").stat().st_mode & 0o777 == 0o600
    refused = iri_place.hibali("ls", f"{NAME}:/etc", "--json", exit=4).last
    assert (refused["code"], "no filesystem there" in refused["message"]) == ("denied", True)


def test_a_listing_that_shows_the_folder_itself_is_not_taken_for_its_content(
    iri_place: Place, tmp_path: Path
) -> None:
    make_tree(iri_place.site.home / "data", {"a": b"1"})
    make_tree(iri_place.site.home / "same", {"same/deep": b"2"})
    copy = make_tree(tmp_path / "copy", {"a": b"1"})
    iri_place.double.lists_itself = True
    answer = iri_place.hibali("sync", f"{NAME}:data", copy, "--delete", "--json", exit=6).last
    assert answer["code"] == "listing-violation", answer
    assert read_tree(copy) == {"a": b"1"}
    iri_place.double.lists_itself = False
    iri_place.hibali("pull", f"{NAME}:same", tmp_path / "back", exit=0)
    assert read_tree(tmp_path / "back") == {"same/deep": b"2"}


def test_the_reason_of_a_facility_is_shown(iri_place: Place) -> None:
    (iri_place.site.home / "file").write_bytes(b"x")
    answer = iri_place.hibali("mkdir", f"{NAME}:file/below", "--json").last
    assert "(mkdir): Error: Command" in answer["message"], answer

"""Test transfers by Globus: push, pull and site to site, with the same verification and limits as other transfers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from hibali_plugins.globus.paths import is_supported_path
from tests.services.globus import Globus
from tests.support.globus_sites import GlobusSites, globus_sites
from tests.support.trees import HOSTILE_NAMES, File, Folder, Link, Tree, read_tree, sha256

SUPPORTED_NAMES = [name for name in HOSTILE_NAMES if is_supported_path(name) and len(name) < 200]


@pytest.fixture
def sites(hibali: Any, globus: Globus, tmp_path: Path, request: pytest.FixtureRequest) -> GlobusSites:
    """Return a laptop with a collection, and a site `host` with ssh and a collection."""
    made = globus_sites(hibali, globus, tmp_path, request.getfixturevalue)
    made.add_ssh("far")
    return made


def _odd_tree(files: int, folders: int) -> Tree:
    """Return that many files in that many folders, with unusual names among both."""
    names = [SUPPORTED_NAMES[number % len(SUPPORTED_NAMES)] + b"-%d" % number for number in range(folders)]
    tree: Tree = {b"empty folder": Folder()}
    for number in range(files):
        odd = SUPPORTED_NAMES[number // folders % len(SUPPORTED_NAMES)]
        tree[names[number % folders] + b"/" + odd + b".%d" % number] = File(b"%d," % number * (number % 97))
    return tree


def test_a_few_files_are_sent_by_globus_and_verified_by_the_remote_host(sites: GlobusSites) -> None:
    tree = _odd_tree(40, 8)
    tree[b"tool"] = File(b"#!/bin/sh\n", executable=True)
    tree[b"link"] = Link(b"tool")
    tree[b"not UTF-8 \xff"] = tree[b"new\nline"] = File(b"goes another way")
    sites.make(tree)
    answer = sites.push()
    assert {key: answer.last[key] for key in ("mover", "checked_by", "proof_moved", "files_failed")} == {
        "mover": "globus",
        "checked_by": "hibali",
        "proof_moved": "digest",
        "files_failed": 0,
    }
    assert sites.same()
    assert sites.ours() == []
    (task,) = sites.transfers()
    assert (task["verify_checksum"], task["preserve_timestamp"]) == (True, True)
    assert all(".hibali-" in item["destination_path"] for item in task["body"]["DATA"])

    again = sites.push()
    assert (again.last["files_moved"], again.last["mover"]) == (0, None)
    assert len(sites.transfers()) == 1
    sites.push("--checksum", "--recorded")
    (sites.roots["far"] / "data" / "tool").unlink()
    assert sites.push().last["files_moved"] == 1
    (item,) = sites.transfers()[-1]["body"]["DATA"]
    assert (item["checksum_algorithm"], item["external_checksum"]) == ("SHA256", sha256(b"#!/bin/sh\n"))

    sites.make({b"tool": File(b"#!/bin/sh\necho changed\n", executable=True)})
    assert sites.push("--via", "stream").last["mover"] == "stream"
    assert sites.same()
    assert sites.ours() == []
    assert len(sites.transfers()) == 2


@pytest.mark.heavy
def test_twelve_hundred_files_are_transferred_in_every_direction(sites: GlobusSites) -> None:
    sites.add_ssh("north")
    sites.make(_odd_tree(1200, 40))

    def moved(answer: Any, files: int = 1200) -> None:
        expected = {"files_moved": files, "mover": "globus" if files else None, "checked_by": "hibali"}
        assert {key: answer.last[key] for key in expected} == expected, str(answer)
        assert answer.last["proof_moved"] == ("digest" if files else None)

    moved(sites.push())
    assert sites.same("far")
    moved(sites.push(), 0)

    between = ("sync", "far:data", "north:data")
    moved(sites.move(*between))
    assert sites.same("north")
    moved(sites.move(*between), 0)

    back = sites.here / "back"
    moved(sites.move("pull", "north:data", back))
    assert read_tree(back) == read_tree(sites.here / "data")
    moved(sites.move("pull", "north:data", back), 0)
    assert len(sites.transfers()) == 3
    assert sites.ours("far") == sites.ours("north") == []

    gone = sorted(path for path in (sites.here / "data").rglob("*") if path.is_file())[:200]
    for path in gone:
        path.unlink()
    refused = sites.push("--delete", code=8)
    assert refused.last["code"] == "delete-limit"
    assert len([path for path in sites.roots["far"].rglob("*") if path.is_file()]) == 1200
    answer = sites.push("--delete", "--max-delete", "200")
    assert (answer.last["files_deleted"], answer.last["files_moved"]) == (200, 0)
    assert sites.same("far")


@pytest.mark.heavy
def test_a_site_that_only_globus_reaches_supports_all_operations(sites: GlobusSites, tmp_path: Path) -> None:
    """List, write, read, adjust and verify through Globus only: by HTTPS where it is allowed, else by a task that transfers nothing."""
    vault = sites.add_vault(tmp_path / "vault")
    readable = sites.add_vault(tmp_path / "readable", https=True)
    sites.make({**_odd_tree(30, 5), b"plain": File(b"content")})

    for name, checker, proof in (("vault", "globus", "claimed"), ("readable", "https", "digest")):
        answer = sites.push(to=f"{name}:data")
        assert (answer.last["checked_by"], answer.last["proof_moved"]) == (checker, proof), str(answer)
        assert sites.same(name)
        assert sites.push(to=f"{name}:data").last["files_moved"] == 0
    levels = [task["sync_level"] for task in sites.transfers()]
    assert levels == [None, 3, None]

    listed = sites.hibali("ls", "vault:data", exit=0).out
    assert b"plain" in listed
    sites.hibali("mkdir", "vault:new/below", exit=0)
    assert (vault / "new" / "below").is_dir()
    assert sites.hibali("cat", "readable:data/plain", exit=0).out == b"content"
    assert sites.hibali("cat", "vault:data/plain").exit == 2

    back = sites.here / "back"
    answer = sites.move("pull", "vault:data", back)
    assert (answer.last["checked_by"], answer.last["mover"]) == ("globus", "globus")
    assert read_tree(back) == read_tree(sites.here / "data")

    shutil.rmtree(min(path for path in (sites.here / "data").iterdir() if path.is_dir()))
    assert len(read_tree(readable / "data")) > len(read_tree(sites.here / "data"))
    assert (
        sites.push("--delete", "--max-delete", "3", to="readable:data", code=8).last["code"] == "delete-limit"
    )
    assert sites.push("--delete", to="readable:data").last["files_failed"] == 0
    assert sites.same("readable")


def test_permissions_that_globus_drops_are_reported(sites: GlobusSites, tmp_path: Path) -> None:
    """Check that a plan, the transfer and the history name them, and that nothing is lost where hibali reaches the target."""
    vault = sites.add_vault(tmp_path / "vault")
    sites.make({b"tool": File(b"#!/bin/sh\n", executable=True), b"data": File(b"1")})

    def notes(answer: Any) -> list[str]:
        return [line["message"] for line in answer.lines if "permissions" in line.get("message", "")]

    lost = ["vault:data: 1 file loses its execute bit, because Globus does not preserve permissions"]
    planned = sites.hibali("push", sites.here / "data", "vault:data", "--dry-run", "--json", exit=0)
    assert notes(planned) == lost
    assert notes(sites.push(to="vault:data")) == lost
    assert not (vault / "data" / "tool").stat().st_mode & 0o111
    operation = sites.hibali("history", "--json", exit=0).lines[0]["id"]
    assert lost[0] in sites.hibali("history", "show", operation, "--json", exit=0).last["notes"]
    assert notes(sites.push(to="vault:data")) == []
    pulled = notes(sites.move("pull", "vault:data", sites.here / "back"))
    assert pulled == ["vault:data: no file becomes executable, because Globus does not preserve permissions"]
    assert notes(sites.push()) == []
    assert sites.same()


def test_globus_is_not_used_where_it_is_not_available(sites: GlobusSites, tmp_path: Path) -> None:
    """Check that an explicit request for Globus is refused with the reason, and that without it another transport is used."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x")
    refused = sites.move("push", outside, "far:other", "--via", "globus", code=2).last
    assert (refused["code"], refused["about"]) == ("not-by-globus", "here")
    assert sites.move("push", outside, "far:other").last["mover"] == "stream"
    sites.make({b"a": File(b"1")})
    assert sites.push("--bwlimit", "1M").last["mover"] == "stream"
    assert sites.push("--rename", "s/a/b/").last["mover"] == "stream"
    assert sites.push("--rename", "s/a/b/", "--via", "globus", code=2).last["about"] == "--rename"
    assert sites.push("--bwlimit", "1M", "--via", "globus", code=2).last["code"] == "not-by-globus"
    single = sites.move("push", sites.here / "data" / "a", "far:one/b")
    assert (single.last["mover"], (sites.roots["far"] / "one" / "b").read_bytes()) == ("globus", b"1")
    assert sites.transfers()[-1]["files"] == 1

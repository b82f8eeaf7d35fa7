"""Two catalogues meet at a git repository, and nothing that lies there is believed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import HibaliError, RefusedError
from registry.remote import gather
from registry.remotes.git import GitRemote
from registry.signature import Policy, sign, signed_text
from tests.support.catalogues import Site, forge, git, raw
from tests.support.lacking import lacks


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "lab.git"
    git(tmp_path, "init", "-q", "--bare", "-b", "main", str(folder))
    return folder


@pytest.fixture
def over_git(tmp_path: Path, repository: Path) -> tuple[Site, Site]:
    a, b = (Site(tmp_path / name, GitRemote, str(repository), history=True) for name in "ab")
    return a, b


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if shutil.which("ssh-keygen") is None:
        lacks("ssh-keygen is missing")
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def test_under_the_policy_only_what_is_signed_comes(
    over_git: tuple[Site, Site], key: Path, tmp_path: Path
) -> None:
    a, b = over_git
    signers = tmp_path / "allowed_signers"
    signers.write_text(f"ada@example.org {key.with_suffix('.pub').read_text()}")
    b.policy = Policy(signers, required=True, scratch=b.folder)
    added = a.catalogue.add(raw())
    a.publish()
    with pytest.raises(RefusedError, match="not signed"):
        b.fetch()
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True)
    a.catalogue.sign(added, *sign(signed_text(added), other, a.folder))
    a.publish()
    with pytest.raises(RefusedError, match="none whose word counts"):
        b.fetch()
    second = a.catalogue.add(raw(version="2.0"))
    file, signature = sign(signed_text(added), key, a.folder)
    a.catalogue.sign(second, file, signature)  # of another version
    a.publish()
    with pytest.raises(RefusedError):
        b.fetch("tool@2.0")
    assert b.references() == []
    a.catalogue.sign(added, file, signature)
    a.publish()
    assert b.fetch("tool@1.0") == {"tool@1.0": "fetched"}
    assert b.policy.check(added, {file: signature}, "x") == "ada@example.org"


@pytest.mark.parametrize(
    ("forged", "code", "ends"),
    [
        ({"tool/1.0/descriptor.json": raw(description="Evil.")}, "tampered", 8),
        ({"tool/1.0/descriptor.json": b"no json"}, "invalid-json", 2),
        ({"tool/1.0/descriptor.json": b"{}"}, "invalid-descriptor", 2),
        ({"tool/1.0/descriptor.json": raw(version="2.0")}, "wrong-version", 8),
        ({"tool/1.0/published.json": b'{"digest": 3}'}, "tampered", 8),
    ],
)
def test_what_was_tampered_with_is_refused_and_nothing_is_fetched(
    over_git: tuple[Site, Site], repository: Path, forged: dict[str, bytes], code: str, ends: int
) -> None:
    a, b = over_git
    a.catalogue.add(raw())
    a.catalogue.add(raw("other"))
    a.publish()
    forge(repository, dict(forged))
    with pytest.raises(HibaliError) as refused:
        b.fetch()
    assert (refused.value.code, refused.value.exit) == (code, ends)
    assert b.references() == []
    assert b.fetch("other") == {"other@1.0": "fetched"}


def test_what_was_fetched_once_cannot_be_changed_there(over_git: tuple[Site, Site], repository: Path) -> None:
    a, b = over_git
    a.catalogue.add(raw())
    a.publish()
    b.fetch()
    forge(repository, {"tool/1.0/descriptor.json": raw(description="Evil."), "tool/1.0/published.json": None})
    for site in (a, b):
        with pytest.raises(RefusedError, match="other content"):
            site.fetch()


def test_a_rewritten_history_is_told(over_git: tuple[Site, Site], repository: Path) -> None:
    a, b = over_git
    a.catalogue.add(raw())
    a.publish()
    b.fetch()
    git(repository, "update-ref", "-d", "refs/heads/main")
    forge(repository, {"other/1.0/descriptor.json": raw("other")})
    with pytest.raises(RefusedError) as refused:
        b.fetch()
    assert (refused.value.code, refused.value.exit) == ("history-rewritten", 8)
    assert b.references() == ["tool@1.0"]
    assert b.fetch(accept_rewritten=True) == {"other@1.0": "fetched"}
    assert b.fetch() == {"other@1.0": "same"}


HOSTILE_NAMES = ["../../x/1/descriptor.json", ".git/1/descriptor.json", "UPPER/1/descriptor.json", "a b/1/descriptor.json", "tool/descriptor.json", "tool/.x/descriptor.json"]  # fmt: skip


def test_strange_names_and_links_are_passed_over(over_git: tuple[Site, Site], repository: Path) -> None:
    _, b = over_git
    for name in HOSTILE_NAMES[2:]:
        forge(repository, {name: raw()})
    forge(repository, {"link/1.0/descriptor.json": b"/etc/passwd"}, symlink=True)
    forge(repository, {"tool/1.0/descriptor.json": raw()})
    assert b.fetch() == {"tool@1.0": "fetched"}


@pytest.mark.parametrize(
    "url", ["ext::sh -c touch% sprung", "--upload-pack=touch sprung", "fd::17", "git://example.org/x"]
)
def test_hostile_urls_run_nothing(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    site = Site(tmp_path / "a", GitRemote, url)
    with pytest.raises(HibaliError):
        site.fetch()
    assert not list(tmp_path.glob("**/sprung*"))


def test_a_hostile_remote_runs_nothing(over_git: tuple[Site, Site], repository: Path, tmp_path: Path) -> None:
    """Hooks, filters, an embedded bare repository whose settings name a program, submodules, special remotes that enable themselves."""
    a, b = over_git
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    evil: dict[str, bytes | None] = {
        ".gitattributes": b"* filter=evil diff=evil merge=evil\n",
        ".gitmodules": b'[submodule "x"]\n\tpath = x\n\turl = https://example.org/x\n',
        "tool/1.0/HEAD": b"ref: refs/heads/main\n",
        "tool/1.0/config": f"[core]\n\tbare = true\n\tfsmonitor = {trap}\n\tsshCommand = {trap}\n".encode(),
        "tool/1.0/objects/x": b"",
        "tool/1.0/refs/x": b"",
        "tool/1.0/descriptor.json": raw(),
        ".datalad/config": f"[datalad]\n\tprocedures = {trap}\n".encode(),
    }
    forge(repository, evil)
    remote_log = f"uuid autoenable=true externaltype={trap} type=external name=evil\n".encode()
    blob = git(repository, "hash-object", "-w", "--stdin", stdin=remote_log).strip()
    tree = git(repository, "mktree", stdin=f"100644 blob {blob}\tremote.log\n".encode()).strip()
    git(
        repository,
        "update-ref",
        "refs/heads/git-annex",
        git(repository, "commit-tree", tree, "-m", "x").strip(),
    )
    assert b.fetch() == {"tool@1.0": "fetched"}
    assert b.catalogue.beside("tool", "1.0") == {}
    a.catalogue.add(raw("mine"))
    a.publish()
    assert b.fetch() == {"tool@1.0": "same", "mine@1.0": "fetched"}
    assert not (tmp_path / "sprung").exists()


def test_nothing_is_written_outside_of_the_catalogue(over_git: tuple[Site, Site], repository: Path) -> None:
    """git lets names such as `..` in a tree pass with a warning, and what lies beside a descriptor is written here."""
    _, b = over_git

    def tree(*entries: tuple[str, str, str]) -> str:
        packed = b"".join(
            f"{mode} {name}".encode() + b"\0" + bytes.fromhex(digest) for mode, name, digest in entries
        )
        return git(
            repository, "hash-object", "-w", "-t", "tree", "--literally", "--stdin", stdin=packed
        ).strip()

    def blob(content: bytes) -> str:
        return git(repository, "hash-object", "-w", "--stdin", stdin=content).strip()

    signature = ("100644", "x.sig", blob(b"escaped"))
    up = tree(
        ("40000", "..", tree(("40000", "..", tree(signature)))),
        ("100644", "a b.sig", blob(b"x")),
        ("100644", "y", blob(b"x")),
    )
    version = tree(("100644", "descriptor.json", blob(raw())), ("40000", "signatures", up))
    root = tree(("40000", "tool", tree(("40000", "1.0", version))))
    git(repository, "update-ref", "refs/heads/main", git(repository, "commit-tree", root, "-m", "x").strip())
    before = set(b.folder.parent.rglob("*.sig"))
    with contextlib.suppress(RefusedError):  # newer gits refuse such objects
        b.fetch()
        assert b.catalogue.beside("tool", "1.0") == {}
    assert set(b.folder.parent.rglob("*.sig")) == before


def test_the_catalogue_itself_writes_nothing_outside_of_a_version(over_git: tuple[Site, Site]) -> None:
    a, _ = over_git
    added = a.catalogue.add(raw())
    for name in ("../x", "signatures/../../x", "/tmp/x", "signatures//x", "."):
        with pytest.raises(RefusedError, match="leads out"):
            a.catalogue.sign(added, name, b"x")


@pytest.mark.parametrize(
    "path", ["tool/1.0/signatures/../../x", "tool/1.0//x", "tool/../1.0/x", "./tool/1.0/x", "../1.0/x"]
)
def test_paths_that_climb_are_no_offers(path: str) -> None:
    found = gather([("tool/1.0/descriptor.json", "1"), (path, "2")], "lab")
    assert {key: dict(offer.files) for key, offer in found.items()} == {
        ("tool", "1.0"): {"descriptor.json": "1"}
    }


def test_objects_that_git_finds_dangerous_are_refused(over_git: tuple[Site, Site], repository: Path) -> None:
    _, b = over_git
    forge(
        repository,
        {
            ".gitmodules": b'[submodule "x"]\n\tpath = x\n\turl = x\n\tupdate = !touch sprung\n',
            "tool/1.0/descriptor.json": raw(),
        },
    )
    with pytest.raises(RefusedError) as refused:
        b.fetch()
    assert (refused.value.code, b.references()) == ("bad-objects", [])


@pytest.mark.heavy
def test_one_new_version_moves_only_that_one(over_git: tuple[Site, Site], repository: Path) -> None:
    a, b = over_git
    for number in range(50):
        a.catalogue.add(raw(f"tool-{number}", description=os.urandom(2000).hex()))
    a.publish()
    b.fetch()
    before = objects(b.folder / "exchange.git"), objects(repository)
    a.catalogue.add(raw("new"))
    assert a.publish("new") == {"new@1.0": "published"}
    done: dict[str, Any] = b.fetch()
    assert sum(fate == "fetched" for fate in done.values()) == 1
    after = objects(b.folder / "exchange.git"), objects(repository)
    # two blobs, three trees, one commit
    assert [new - old for old, new in zip(before, after, strict=True)] == [6, 6]


def objects(repository: Path) -> int:
    return len(git(repository, "cat-file", "--batch-all-objects", "--batch-check").splitlines())

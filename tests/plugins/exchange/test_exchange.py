"""Test exchange between two catalogues through an untrusted git repository."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import HibaliError, RefusedError
from hibali_plugins.exchange.remotes.base import gather
from hibali_plugins.exchange.remotes.git import GitRemote
from registry.signature import Policy, sign, signed_text
from tests.plugins.exchange.accounts import Site
from tests.support.catalogues import forge, git, raw
from tests.support.requirements import skip_or_fail


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
        skip_or_fail("ssh-keygen is missing")
    path = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


def test_the_policy_admits_only_signed_versions(
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
    with pytest.raises(RefusedError, match="none of its signers"):
        b.fetch()
    second = a.catalogue.add(raw(version="2.0"))
    file, signature = sign(signed_text(added), key, a.folder)
    a.catalogue.sign(second, file, signature)  # another version
    a.publish()
    with pytest.raises(RefusedError):
        b.fetch("tool@2.0")
    assert b.references() == []
    a.catalogue.sign(added, file, signature)
    a.publish()
    assert b.fetch("tool@1.0") == {"tool@1.0": "fetched"}
    assert b.policy.check(added, {file: signature}, "x") == "ada@example.org"


@pytest.mark.parametrize(
    ("forged", "code", "exit_code"),
    [
        ({"tool/1.0/descriptor.json": raw(description="Evil.")}, "tampered", 8),
        ({"tool/1.0/descriptor.json": b"no json"}, "invalid-json", 2),
        ({"tool/1.0/descriptor.json": b"{}"}, "invalid-descriptor", 2),
        ({"tool/1.0/descriptor.json": raw(version="2.0")}, "wrong-version", 8),
        ({"tool/1.0/published.json": b'{"digest": 3}'}, "tampered", 8),
    ],
)
def test_tampered_versions_are_refused_and_nothing_is_fetched(
    over_git: tuple[Site, Site], repository: Path, forged: dict[str, bytes], code: str, exit_code: int
) -> None:
    a, b = over_git
    a.catalogue.add(raw())
    a.catalogue.add(raw("other"))
    a.publish()
    forge(repository, dict(forged))
    with pytest.raises(HibaliError) as refused:
        b.fetch()
    assert (refused.value.code, refused.value.exit) == (code, exit_code)
    assert b.references() == []
    assert b.fetch("other") == {"other@1.0": "fetched"}


def test_a_fetched_version_cannot_change_at_the_remote(over_git: tuple[Site, Site], repository: Path) -> None:
    a, b = over_git
    a.catalogue.add(raw())
    a.publish()
    b.fetch()
    forge(repository, {"tool/1.0/descriptor.json": raw(description="Evil."), "tool/1.0/published.json": None})
    for site in (a, b):
        with pytest.raises(RefusedError, match="different content"):
            site.fetch()


def test_a_rewritten_history_is_reported(over_git: tuple[Site, Site], repository: Path) -> None:
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


def test_invalid_names_and_links_are_ignored(over_git: tuple[Site, Site], repository: Path) -> None:
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
    """The remote has hooks, filters, an embedded bare repository whose settings name a program, submodules and autoenabled special remotes."""
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
    assert b.catalogue.attachments("tool", "1.0") == {}
    a.catalogue.add(raw("mine"))
    a.publish()
    assert b.fetch() == {"tool@1.0": "same", "mine@1.0": "fetched"}
    assert not (tmp_path / "sprung").exists()


HOOKS = (
    *("pre-receive", "update", "post-receive", "post-update", "reference-transaction", "proc-receive"),
    *(
        "push-to-checkout",
        "pre-auto-gc",
        "post-checkout",
        "post-index-change",
        "fsmonitor-watchman",
        "pre-push",
    ),
)


def plant_trap(folder: Path, sprung: Path) -> Path:
    trap = folder / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0" >> {sprung}\n')
    trap.chmod(0o755)
    return trap


def plant_hooks(repository: Path, trap: Path) -> None:
    (repository / "hooks").mkdir(exist_ok=True)
    for name in HOOKS:
        (repository / "hooks" / name).symlink_to(trap)


def plant_foreign_hooks(repository: Path, trap: Path) -> None:
    """Plant hooks by a setting in an included file."""
    hooks = trap.parent / "hooks"
    hooks.mkdir()
    for name in HOOKS:
        (hooks / name).symlink_to(trap)
    (trap.parent / "included").write_text(f"[core]\n\thooksPath = {hooks}\n")
    git(repository, "config", "include.path", str(trap.parent / "included"))


def plant_worktree_settings(repository: Path, trap: Path) -> None:
    plant_foreign_hooks(repository, trap)
    git(repository, "config", "--unset", "include.path")
    git(repository, "config", "extensions.worktreeConfig", "true")
    (repository / "config.worktree").write_text(f"[core]\n\thooksPath = {trap.parent}/hooks\n")


def plant_programs(repository: Path, trap: Path) -> None:
    """Plant every setting that names a program which git could run in a repository for a fetch or push."""
    for name in (
        *("core.fsmonitor", "core.sshCommand", "core.gitProxy", "core.askPass", "core.editor", "core.pager"),
        *("uploadpack.packObjectsHook", "gpg.program", "credential.helper", "diff.external"),
        *("gc.recentObjectsHook", "trace2.normalTarget", "receive.certNonceSeed", "protocol.ext.allow"),
    ):
        git(repository, "config", name, "always" if name.startswith("protocol.") else str(trap))
    for name, value in (("receive.autogc", "true"), ("gc.auto", "1"), ("receive.procReceiveRefs", "refs/x")):
        git(repository, "config", name, value)


def plant_alternate(repository: Path, trap: Path) -> None:
    other = trap.parent / "alternate.git"
    git(repository, "init", "-q", "--bare", str(other))
    (repository / "objects" / "info").mkdir(exist_ok=True)
    (repository / "objects" / "info" / "alternates").write_text(f"{other}/objects\n")
    git(repository, "config", "core.alternateRefsCommand", str(trap))


def plant_promisor(repository: Path, trap: Path) -> None:
    """Plant a partial clone that would fetch missing blobs, here all of its last commit, from its own remote."""
    for name, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "evil"),
        ("remote.evil.promisor", "true"),
        ("remote.evil.url", f"ext::{trap} %S"),
        ("protocol.ext.allow", "always"),
    ):
        git(repository, "config", name, value)
    for line in git(repository, "ls-tree", "-r", "main").splitlines():
        digest = line.split()[2]
        (repository / "objects" / digest[:2] / digest[2:]).unlink(missing_ok=True)


def run_plain(over: Site, repository: Path, tmp_path: Path) -> None:
    """Run plain git fetch and push with that repository."""
    work = tmp_path / "plain"
    for arguments in (
        ["git", "clone", "-q", "--no-local", str(repository), str(work)],
        [
            "git",
            "-C",
            str(work),
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b",
            "commit",
            "-q",
            "--allow-empty",
            "-m",
            "x",
        ],
        ["git", "-C", str(work), "push", "-q", "origin", "HEAD:main"],
    ):
        subprocess.run(arguments, check=False, capture_output=True)
    assert over


@pytest.mark.parametrize(
    ("plant", "springs"),
    [
        (plant_hooks, True),
        (plant_foreign_hooks, True),
        (plant_worktree_settings, True),
        (plant_programs, False),
        (plant_alternate, True),
        (plant_promisor, None),
    ],
)
@pytest.mark.parametrize("address", [pytest.param("{}", marks=pytest.mark.heavy), "file://{}"])
def test_a_repository_of_this_machine_runs_none_of_its_own_programs(
    tmp_path: Path,
    repository: Path,
    address: str,
    plant: Callable[[Path, Path], None],
    *,
    springs: bool | None,
) -> None:
    """git starts its server programs itself, as this account, without the settings of its command line."""
    sprung = tmp_path / "sprung"
    forge(repository, {"theirs/1.0/descriptor.json": raw("theirs")})
    site = Site(tmp_path / "a", GitRemote, address.format(repository), history=True)
    site.catalogue.add(raw("mine"))
    plant(repository, plant_trap(tmp_path, sprung))
    if springs is not None:
        assert site.fetch() == {"theirs@1.0": "fetched"}
        assert site.publish("mine") == {"mine@1.0": "published"}
    else:
        with pytest.raises(HibaliError):
            site.fetch()
    assert not sprung.exists(), sprung.read_text()
    if springs:  # without hibali's settings, the planted program runs
        run_plain(site, repository, tmp_path)
        assert sprung.exists()


def test_nothing_is_checked_out_at_a_remote_by_its_own_filters(tmp_path: Path) -> None:
    sprung, folder = tmp_path / "sprung", tmp_path / "lab"
    trap = plant_trap(tmp_path, sprung)
    git(tmp_path, "init", "-q", "-b", "main", str(folder))
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")
    for name, value in (
        ("receive.denyCurrentBranch", "updateInstead"),
        ("filter.evil.smudge", str(trap)),
        ("filter.evil.process", str(trap)),
    ):
        git(folder, "config", name, value)
    (folder / ".git" / "info").mkdir(exist_ok=True)
    (folder / ".git" / "info" / "attributes").write_text("* filter=evil\n")
    site = Site(tmp_path / "a", GitRemote, str(folder), history=True)
    site.catalogue.add(raw())
    with pytest.raises(RefusedError) as refused:
        site.publish()
    assert (refused.value.code, sprung.exists()) == ("branch-checked-out", False)


def test_hooks_that_newer_gits_find_in_settings_are_refused(tmp_path: Path, repository: Path) -> None:
    (tmp_path / "included").write_text('[hook "evil"]\n\tevent = post-receive\n\tcommand = touch sprung\n')
    git(repository, "config", "include.path", str(tmp_path / "included"))
    site = Site(tmp_path / "a", GitRemote, str(repository), history=True)
    site.catalogue.add(raw())
    with pytest.raises(RefusedError) as refused:
        site.publish()
    assert refused.value.code == "repository-runs-programs"


def test_fetching_writes_nothing_outside_the_catalogue(over_git: tuple[Site, Site], repository: Path) -> None:
    """git accepts names such as `..` in a tree with a warning, and attachments of a descriptor are written locally."""
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
        assert b.catalogue.attachments("tool", "1.0") == {}
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
def test_paths_with_dot_dot_are_ignored(path: str) -> None:
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
def test_publishing_transfers_only_new_versions(over_git: tuple[Site, Site], repository: Path) -> None:
    a, b = over_git
    for number in range(50):
        a.catalogue.add(raw(f"tool-{number}", description=os.urandom(2000).hex()))
    a.publish()
    b.fetch()
    before = objects(b.folder / "exchange.git"), objects(repository)
    a.catalogue.add(raw("new"))
    assert a.publish("new") == {"new@1.0": "published"}
    done: dict[str, Any] = b.fetch()
    assert sum(result == "fetched" for result in done.values()) == 1
    after = objects(b.folder / "exchange.git"), objects(repository)
    # two blobs, three trees, one commit
    assert [new - old for old, new in zip(before, after, strict=True)] == [6, 6]


def objects(repository: Path) -> int:
    return len(git(repository, "cat-file", "--batch-all-objects", "--batch-check").splitlines())

"""Test DataLad datasets and git-annex repositories on this machine: contents are sent, and a pull is one commit."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.annex import AnnexRepository, annex_environment
from tests.support.transfers import Transfers, failed
from tests.support.trees import Link

_HOSTILE = (b"-dash", b"new\nline", b"\xff\xfe.bin", b"with space", b":(top)magic")


class Annex:
    """A git-annex repository, used as its owner does."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self.root = root
        self.env = env

    def git(self, *words: str | bytes) -> bytes:
        """Run git in the repository."""
        return AnnexRepository(self.root, self.env).run(*words)

    def make(self) -> Annex:
        """Initialize a new repository."""
        self.root.mkdir(parents=True)
        self.git("init", "-q", "-b", "main")
        self.git("annex", "init", "-q", "origin")
        return self

    def commit(self, **files: bytes) -> None:
        """Commit files; those named `text` are stored in git itself."""
        for name, content in files.items():
            self.put(os.fsencode(name), content)
        self.git("annex", "add", "-q", ".")
        self.git("commit", "-q", "-m", "made")

    def put(self, name: bytes, content: bytes) -> None:
        """Write one file without adding it."""
        path = Path(os.fsdecode(os.fsencode(self.root) + b"/" + name))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(content)

    def clone(self, root: Path) -> Annex:
        """Clone the repository without its content."""
        self.git("clone", "-q", str(self.root), str(root))
        return Annex(root, self.env)

    def log(self) -> list[str]:
        """Return the subjects of the commits, newest first."""
        return self.git("log", "--format=%s").decode().splitlines()

    def status(self) -> bytes:
        """Return the files that git reports as changed."""
        return self.git("status", "--porcelain", "-z")


@pytest.fixture
def annex(hibali: Any, tmp_path: Path) -> Annex:
    made = Annex(tmp_path / "origin", annex_environment(hibali.env, tmp_path))
    hibali.env = made.env
    return made.make()


def test_a_push_sends_the_content_and_gets_it_first(folder_there: Transfers, annex: Annex) -> None:
    files = {b"big": b"x" * 5_000_000, b"sub/same": b"x" * 5_000_000, b"unlocked": b"u" * 50}
    files |= {b"names/" + name: name * 3 for name in _HOSTILE}
    for name, content in files.items():
        annex.put(name, content)
    annex.git("annex", "add", "-q", ".")
    annex.git("annex", "unlock", "-q", "unlocked")
    annex.put(b"text", b"in git")
    annex.put(b".gitattributes", b"*.txt annex.largefiles=nothing\n")
    (annex.root / "alias").symlink_to("text")
    annex.git("add", "text", ".gitattributes", "alias")
    annex.git("commit", "-q", "-m", "made")
    there = folder_there
    there.source = annex.clone(there.folder / "clone").root
    receipt = there.push().last
    assert receipt["files"] == len(files) + 2
    assert receipt["proof_moved"] == "digest"
    assert there.there() == {**files, b"text": b"in git"}
    assert (there.root / "alias").readlink() == Path("text")
    assert there.push().last["files_moved"] == 0


@pytest.mark.heavy  # many processes of git-annex
def test_only_content_in_the_plan_is_fetched(local_there: Transfers, annex: Annex) -> None:
    annex.commit(wanted=b"w" * 1000, other=b"o" * 1000)
    clone = annex.clone(local_there.folder / "clone")
    local_there.source = clone.root
    local_there.push("--include", "wanted")
    assert local_there.there() == {b"wanted": b"w" * 1000}
    assert not (clone.root / "other").exists()  # the link is broken
    clone.git("annex", "drop", "-q", "wanted")
    assert local_there.push("--include", "wanted").last["files_moved"] == 0
    assert not (clone.root / "wanted").exists()


@pytest.mark.heavy  # many processes of git-annex
def test_unavailable_content_is_reported_and_no_link_sent(local_there: Transfers, annex: Annex) -> None:
    annex.commit(here=b"h" * 1000, gone=b"g" * 1000, unlocked=b"u" * 1000)
    annex.git("annex", "unlock", "-q", "unlocked")
    annex.git("annex", "drop", "-q", "--force", "gone", "unlocked")
    local_there.source = annex.root
    answer = local_there.push(exit=6)
    assert failed(answer) == {b"gone": "content-not-here", b"unlocked": "content-not-here"}
    assert local_there.there() == {b"here": b"h" * 1000}
    single = local_there.hibali("push", annex.root / "gone", "there:data/gone", "--json", exit=6)
    assert failed(single) == {b"gone": "content-not-here"}
    assert local_there.there() == {b"here": b"h" * 1000}


@pytest.mark.heavy
def test_a_pull_is_one_commit_with_its_receipt(there: Transfers, annex: Annex) -> None:
    annex.commit(old=b"old" * 100, goes=b"goes")
    annex.put(b"mine", b"not to be swept along")
    annex.put(b"staged", b"nor this")
    annex.git("add", "staged")
    before = annex.git("rev-parse", "HEAD:old")
    key = (annex.root / "old").readlink()
    names = [name for name in _HOSTILE if there.place.word != "s3" or name.isascii()]
    there.make({b"old": b"new" * 100, **{b"in/" + name: name for name in names}})
    there.push()
    pulled = there.pull(annex.root).last
    assert annex.log() == [f"[HIBALI] pull there:data: {len(names) + 1} files", "made"]
    message = annex.git("log", "-1", "--format=%B").decode()
    block = message.partition("=== hibali receipt ===\n")[2].partition("\n^^^ hibali receipt ^^^")[0]
    assert json.loads(block) == pulled
    assert annex.status() == b"A  staged\0?? mine\0"
    assert (annex.root / "old").read_bytes() == b"new" * 100
    assert (annex.root / "old").is_symlink()
    assert annex.git("rev-parse", "HEAD:old") != before
    assert (annex.root / key).read_bytes() == b"old" * 100  # the old content is unchanged
    annex.git("annex", "fsck", "-q", "--fast")
    again = there.pull(annex.root).last
    assert (again["files_moved"], len(annex.log())) == (0, 2)
    there.pull(annex.root, "--delete", "--max-delete", "9", "--exclude", "mine", "--exclude", "staged")
    assert annex.log()[0].endswith("0 files, 1 deletion")
    assert not (annex.root / "goes").is_symlink()
    assert annex.status() == b"A  staged\0?? mine\0"


@pytest.mark.heavy  # many processes of git-annex
def test_files_received_before_a_kill_are_committed_by_the_same_command(
    local_there: Transfers, annex: Annex
) -> None:
    local_there.make({b"a": b"a" * 1000, b"b": b"b" * 1000})
    local_there.push()
    with _git_that(annex, 'case "$*" in *commit-tree*) kill -9 $PPID;; esac'):
        local_there.hibali("pull", "there:data", annex.root, exit=-9)
    assert (annex.root / "a").read_bytes() == b"a" * 1000
    with _git_that(annex, 'case "$*" in *commit-tree*) echo no >&2; exit 3;; esac'):
        assert local_there.pull(annex.root, exit=6).last["code"] == "not-saved"
    assert local_there.pull(annex.root).last["files_moved"] == 0
    assert annex.log() == ["[HIBALI] pull there:data: 0 files"]
    assert annex.git("ls-files", "-z").split(b"\0")[:-1] == [b"a", b"b"]
    assert annex.status() == b""


def test_the_ledger_has_the_exit_code_of_a_failed_commit(local_there: Transfers, annex: Annex) -> None:
    local_there.make({b"a": b"1"})
    local_there.push()
    with _git_that(annex, 'case "$*" in *commit-tree*) echo no >&2; exit 3;; esac'):
        assert local_there.pull(annex.root, exit=6).last["code"] == "not-saved"
    pulled = local_there.hibali("history", "--json", exit=0).lines[-2]
    assert (pulled["operation"], pulled["result"]) == ("pull", "incomplete")
    [journal] = (local_there.hibali.home.state / "operations").glob(f"{pulled['id']}.jsonl")
    *_, stopped, receipt = map(json.loads, journal.read_bytes().splitlines())
    assert (stopped["kind"], stopped["code"], receipt["kind"], receipt["exit"]) == (
        "stopped",
        "not-saved",
        "receipt",
        6,
    )


@contextlib.contextmanager
def _git_that(annex: Annex, does: str) -> Iterator[None]:
    """Put a `git` on the PATH that runs these lines of sh first."""
    folder = annex.root.parent / "wrapped"
    folder.mkdir(exist_ok=True)
    real = shutil.which("git")
    (folder / "git").write_text(f'#!/bin/sh\n{does}\nexec {real} "$@"\n')
    (folder / "git").chmod(0o755)
    before = annex.env["PATH"]
    annex.env["PATH"] = f"{folder}:{before}"
    try:
        yield
    finally:
        annex.env["PATH"] = before


@pytest.mark.heavy  # many processes of git-annex
def test_files_of_the_repository_itself_are_not_received(local_there: Transfers, annex: Annex) -> None:
    annex.commit(kept=b"kept")
    annex.put(b".gitattributes", b"* annex.largefiles=anything\n")
    annex.git("add", ".gitattributes")
    annex.git("commit", "-q", "-m", "attributes")
    local_there.make(
        {b"data": b"d", b"sub/.git/hooks/post-commit": b"#!/bin/sh\n", b".gitattributes": b"* filter=x\n"}
    )
    local_there.push()
    refused = local_there.pull(annex.root, exit=8)
    assert refused.last["code"] == "unsafe-name"
    assert annex.status() == b""
    left_out = ("--exclude", ".git", "--exclude", ".gitattributes")
    local_there.pull(annex.root, "--delete", "--max-delete", "9", *left_out)
    assert (annex.root / ".gitattributes").read_bytes() == b"* annex.largefiles=anything\n"
    assert annex.git("ls-files", "-z").split(b"\0")[:-1] == [b".gitattributes", b"data"]
    for option in ("--xattrs", "--hard-links"):
        local_there.pull(annex.root, option, *left_out, exit=8)
    assert (
        local_there.pull(annex.root, "--push-to", "nobody", *left_out, exit=2).last["code"]
        == "no-such-sibling"
    )
    assert local_there.push("--push-to", "nobody", exit=2).last["code"] == "no-dataset"


@pytest.mark.heavy  # many processes of git-annex
def test_a_saved_plan_is_applied_in_a_dataset(local_there: Transfers, annex: Annex) -> None:
    annex.commit(same=b"same", old=b"old", gone=b"gone")
    local_there.make({b"same": b"same", b"old": b"another"})
    local_there.push()
    plan = local_there.folder / "the.plan"
    words = ("plan", "there:data", annex.root, "--delete", "--checksum", "-o", plan)
    local_there.hibali(*words, exit=0)
    local_there.hibali("apply", plan, exit=0)
    assert annex.log()[0] == "[HIBALI] apply there:data: 1 file, 1 deletion"
    assert (annex.root / "old").read_bytes() == b"another"
    assert annex.status() == b""
    back = (
        "plan",
        annex.clone(local_there.folder / "clone").root,
        "there:back",
        "-o",
        plan,
        "--exclude",
        "same",
    )
    local_there.hibali(*back, exit=0)
    Annex(local_there.folder / "clone", annex.env).git("annex", "get", "-q", "old")
    local_there.hibali("apply", plan, exit=0)
    assert local_there.place.files("back") == {b"old": b"another"}


@pytest.mark.heavy  # many processes of git-annex
def test_nothing_is_received_if_git_fails(local_there: Transfers, annex: Annex) -> None:
    local_there.make({b"a": b"a"})
    local_there.push()
    with _git_that(annex, "echo dubious >&2; exit 128"):
        refused = local_there.pull(annex.root, exit=8)
        assert (refused.last["code"], "dubious" in refused.last["message"]) == ("unusable-dataset", True)
        assert not (annex.root / "a").exists()
        local_there.pull(annex.root, "--no-save")
    assert annex.status() == b"?? a\0"


@pytest.mark.heavy  # many processes of git-annex
def test_files_and_folders_are_exchanged_in_one_commit(local_there: Transfers, annex: Annex) -> None:
    annex.commit(**{"d/x": b"x", "d/deep/y": b"y", "f": b"f", "k": b"kept"})
    local_there.make(
        {b"d": Link(b"k"), b"f/now": b"a folder", b"k": b"kept", b"pointer": b"/annex/objects/none\n"}
    )
    local_there.push()
    local_there.pull(annex.root, "--delete", "--max-delete", "9")
    assert annex.git("ls-tree", "-rz", "--name-only", "HEAD").split(b"\0")[:-1] == [
        b"d",
        b"f/now",
        b"k",
        b"pointer",
    ]
    assert annex.status() == b""
    assert local_there.pull(annex.root).last["files_moved"] == 0


@pytest.mark.heavy  # many processes of git-annex
def test_subdatasets_and_adjusted_branches_are_committed(local_there: Transfers, annex: Annex) -> None:
    inner = Annex(annex.root / "inner", annex.env).make()
    inner.commit(deep=b"deep" * 10)
    annex.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", "./inner")
    annex.commit(top=b"top" * 10)
    local_there.source = annex.root
    local_there.push()
    assert local_there.there() == {b"top": b"top" * 10, b"inner/deep": b"deep" * 10}
    (local_there.root / "inner" / "more").write_bytes(b"more")
    local_there.pull(annex.root)
    for each in (annex, inner):
        assert each.log()[0] == "[HIBALI] pull there:data: 1 file"
        assert each.status() == b""
    annex.git("annex", "adjust", "--unlock", "--quiet")
    (local_there.root / "top").write_bytes(b"another" * 10)
    local_there.pull(annex.root)
    assert (annex.root / "top").read_bytes() == b"another" * 10
    assert annex.git("log", "-1", "--format=%s", "main").decode().startswith("[HIBALI]")
    assert annex.status() == b""
    assert local_there.pull(annex.root).last["files_moved"] == 0


@pytest.mark.heavy  # datalad is slow
def test_commits_are_pushed_to_siblings(local_there: Transfers, annex: Annex) -> None:
    annex.commit(first=b"1")
    clone = annex.clone(local_there.folder / "clone")
    annex.git("config", "receive.denyCurrentBranch", "updateInstead")
    local_there.make({b"new": b"new" * 100})
    local_there.push()
    local_there.pull(clone.root, "--push-to", "origin")
    assert annex.log() == clone.log()
    assert (annex.root / "new").read_bytes() == b"new" * 100


@pytest.mark.heavy  # many processes of git-annex
def test_verify_and_a_single_file_use_the_content(local_there: Transfers, annex: Annex) -> None:
    annex.commit(a=b"a" * 500)
    clone = annex.clone(local_there.folder / "clone")
    local_there.hibali("push", clone.root / "a", "there:data/", exit=0)
    assert local_there.there() == {b"a": b"a" * 500}
    local_there.verify(clone.root, "there:data")
    clone.git("annex", "drop", "-q", "a")
    local_there.verify(clone.root, "there:data", exit=6)
    assert not (clone.root / "a").exists()
    again = local_there.hibali(
        "push", clone.root, "there:data", "--checksum", "--recorded", "--json", exit=0
    ).last
    assert (again["files_moved"], again["proof_tree"]) == (0, "recorded")
    assert not (clone.root / "a").exists()


def plant_program(folder: Path, sprung: Path) -> Path:
    """Write a program that leaves a trace when it runs."""
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "evil"
    program.write_text(f'#!/bin/sh\necho "$0" >> {sprung}\n')
    program.chmod(0o755)
    return program


@pytest.mark.heavy
def test_remotes_with_autoenable_run_no_programs(
    local_there: Transfers, annex: Annex, tmp_path: Path
) -> None:
    """Check a clone in which git-annex enables such remotes on its own and searches the work tree for their programs."""
    sprung, programs = tmp_path / "sprung", tmp_path / "programs"
    plant_program(annex.root / "git-annex-remote-x", sprung)
    plant_program(programs, sprung).rename(programs / "git-annex-remote-onpath")
    annex.git("add", "git-annex-remote-x")
    annex.commit(big=b"content")
    remotes = {
        "00000000-0000-4000-8000-000000000001": "type=external externaltype=x/evil encryption=none",
        "00000000-0000-4000-8000-000000000002": "type=external externaltype=onpath encryption=none",
        "00000000-0000-4000-8000-000000000003": f"type=git location=ext::{annex.root}/git-annex-remote-x/evil%20%S",
        "00000000-0000-4000-8000-000000000004": f"type=rsync rsyncurl=-e{annex.root}/git-annex-remote-x/evil:x encryption=none",
        "00000000-0000-4000-8000-000000000005": "type=hook hooktype=evil encryption=none",
    }
    branch = tmp_path / "branch"
    annex.git("annex", "merge", "-q")
    annex.git("worktree", "add", "-q", str(branch), "git-annex")
    where = next(branch.glob("*/*/*.log"))
    for name, line in {
        "remote.log": "{} autoenable=true name=evil{} {} timestamp=1790000000s",
        "trust.log": "{} 1 timestamp=1790000000s",
        "uuid.log": "{} evil timestamp=1790000000s",
        str(where.relative_to(branch)): "1790000000s 1 {}",
    }.items():
        lines = [
            line.format(*((each, each[-1], words) if name == "remote.log" else (each,)))
            for each, words in remotes.items()
        ]
        (branch / name).write_text("".join(f"{each}\n" for each in lines))
    Annex(branch, annex.env).git("add", "--all")
    Annex(branch, annex.env).git("commit", "-q", "-m", "evil", "--no-verify")
    shutil.rmtree(branch)
    annex.git("worktree", "prune")
    clone = annex.clone(tmp_path / "clone")
    clone.git("remote", "set-url", "origin", str(tmp_path / "gone"))
    annex.env["PATH"] = f"{programs}:{annex.env['PATH']}"  # the programs that hibali itself uses, too
    answer = local_there.hibali("push", clone.root, "there:clone", "--json", exit=6)
    assert not sprung.exists(), sprung.read_text()
    assert b"content-not-here" in answer.out
    local_there.make({b"new": b"new"})
    local_there.push()
    local_there.pull(clone.root)
    assert not sprung.exists(), sprung.read_text()
    # proof that the planted program works where git-annex starts it
    other = annex.clone(tmp_path / "other")
    AnnexRepository(other.root, annex.env).run_unchecked("annex", "get", "big")
    assert sorted(set(sprung.read_text().split())) == [
        str(programs / "git-annex-remote-onpath"),
        "git-annex-remote-x/evil",
    ]


def test_a_backend_in_the_dataset_is_not_run(local_there: Transfers, annex: Annex, tmp_path: Path) -> None:
    sprung = tmp_path / "sprung"
    plant_program(annex.root / "git-annex-backend-XY", sprung)
    (annex.root / ".gitattributes").write_text("* annex.backend=XY/evil\n")
    (annex.root / ".datalad").mkdir()
    (annex.root / ".datalad" / "config").write_text(
        f'[datalad "result-hook.evil"]\n\tcall-json = run {{"cmd": "touch {sprung}"}}\n\tmatch-json = {{}}\n[include]\n\tpath = {sprung}\n'
    )
    annex.git("-c", "filter.annex.process=", "-c", "filter.annex.clean=cat", "add", ".")
    annex.git("commit", "-q", "-m", "made")
    local_there.make({b"new": b"new"})
    local_there.push()
    answer = local_there.hibali("pull", "there:data", annex.root, "--json", exit=6)
    assert not sprung.exists(), sprung.read_text()
    assert b"annex.backend=XY/evil" in answer.out
    assert (annex.root / "new").read_bytes() == b"new"
    # proof that the planted program works where git-annex starts it
    AnnexRepository(annex.root, annex.env).run_unchecked("annex", "add", "new")
    assert sprung.exists()

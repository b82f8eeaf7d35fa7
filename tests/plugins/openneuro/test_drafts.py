"""Test pushes to drafts of OpenNeuro, on the double in tests/services/openneuro.py, whose repositories are real."""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.archives import ARCHIVES, Published
from tests.services.openneuro import KEY, OpenNeuro, key_table
from tests.services.rest import Reply
from tests.services.session import REPOSITORY
from tests.support.documentation_home import lines_to_type, page
from tests.support.waiting import wait_for

MIB = 1 << 20
FILES = {
    "dataset_description.json": b'{"Name": "scans", "BIDSVersion": "1.9.0"}\n',
    "README": b"A dataset.\n",
    ".bidsignore": b"extra\n",
    "sub-01/anat/sub-01_T1w.nii.gz": os.urandom(3000),
    "sub-01/func/bold run.nii": os.urandom(9 * MIB),
    'sub-01/ünïcode "quoted".tsv': b"onset\tduration\n",
    "empty.nii": b"",
}


@pytest.fixture
def double() -> Iterator[OpenNeuro]:
    server = OpenNeuro()
    yield server
    server.close()
    assert not server.refused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return plant(tmp_path / "data", FILES)


def plant(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return folder


def add(hibali: Any, double: OpenNeuro, **more: Any) -> None:
    with hibali.home.config.open("a") as config:
        config.write("\n[sites.mine]\n" + key_table(double, **more).format(name="mine"))


def tree_of(double: OpenNeuro) -> dict[str, bytes]:
    """Return the files of the draft with their contents, as a clone with all contents has them."""
    found = {}
    for line in double.git("ls-tree", "-r", "-z", "main").split("\0")[:-1]:
        about, _, path = line.partition("\t")
        mode, _, blob = about.split()
        if path.startswith((".gitattributes", ".datalad")):
            continue
        content = double.git("cat-file", "blob", blob).encode()
        if mode == "120000":
            link = Path(os.path.normpath(double.repository / Path(path).parent / content.decode()))
            assert link == double.object_path(link.name)
            content = link.read_bytes()
        found[path] = content
    return found


def test_a_folder_is_pushed_by_one_commit_and_verified(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    add(hibali, double)
    receipt = hibali("push", folder, "mine:", "--json", exit=0).last
    assert receipt["proof_moved"] == "digest"
    assert tree_of(double) == FILES
    assert double.git("log", "--format=%an %s", "main").splitlines() == [
        "Ada [hibali] Changed files",
        "Git Worker [OpenNeuro] Dataset created",
    ]
    assert sorted(status for _, status in double.posts) == [200] * 3
    again = hibali("push", folder, "mine:", "--json", exit=0).last
    assert (again["files_moved"], again["files_kept"]) == (0, len(FILES))
    assert len(double.posts) == 3
    hibali("verify", folder, "mine:", exit=0)


def key_of(name: str, content: bytes) -> str:
    suffix = ".nii.gz" if name.endswith(".nii.gz") else ".nii"
    return f"SHA256E-s{len(content)}--{hashlib.sha256(content).hexdigest()}{suffix}"


LARGE = "sub-01/func/bold run.nii"
SMALL = "sub-01/anat/sub-01_T1w.nii.gz"
LARGE_KEY, SMALL_KEY = key_of(LARGE, FILES[LARGE]), key_of(SMALL, FILES[SMALL])


def test_what_a_reset_left_under_a_key_is_replaced(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    cuts = {LARGE_KEY: 2, SMALL_KEY: 2}

    def cut(key: str, size: int) -> bool:
        cuts[key] = cuts.get(key, 0) - 1
        return cuts[key] >= 0 and size > 0

    double.cut = cut
    add(hibali, double)
    receipt = hibali("push", folder, "mine:", "--json", exit=0).last
    assert receipt["proof_moved"] == "digest"
    assert tree_of(double) == FILES
    assert [status for key, status in double.posts if key == LARGE_KEY] == [0, 0, 200]
    assert [status for key, status in double.posts if key == SMALL_KEY] == [0]  # all of it had arrived


def test_an_earlier_part_and_a_damaged_content_are_not_taken_for_whole(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    add(hibali, double)
    for key, content in ((LARGE_KEY, FILES[LARGE][:MIB]), (SMALL_KEY, b"x" * len(FILES[SMALL]))):
        double.object_path(key).parent.mkdir(parents=True)
        double.object_path(key).write_bytes(content)
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == FILES
    assert sorted(double.deleted) == sorted([LARGE_KEY, SMALL_KEY])
    double.object_path(LARGE_KEY).unlink()  # after the commit
    assert hibali("push", folder, "mine:", "--json", exit=0).last["files_moved"] == 1
    assert tree_of(double) == FILES


def no_length(key: str, reply: Reply) -> Reply:
    """Answer as a proxy that sends chunks."""
    del key
    return reply if reply.status == 404 else Reply(200, reply.content, size=-1)


def long_length(key: str, reply: Reply) -> Reply:
    del key, reply
    return Reply(200, iter([b"x"]), {"Content-Length": "9" * 5000}, size=-1)


def page_of_a_proxy(key: str, reply: Reply) -> Reply:
    del key, reply
    return Reply(200, b"<html>Maintenance</html>")


def login_page(key: str, reply: Reply) -> Reply:
    del key, reply
    return Reply(303, b"", {"Location": "https://login.example.org/"})


@pytest.mark.parametrize("answer", [no_length, long_length, page_of_a_proxy, login_page])
@pytest.mark.heavy
def test_no_odd_answer_loses_or_replaces_what_commits_point_at(
    hibali: Any, double: OpenNeuro, folder: Path, answer: Any
) -> None:
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    (folder / SMALL).unlink()
    hibali("push", folder, "mine:", "--delete", exit=0)  # an earlier commit has it
    plant(folder, {SMALL: FILES[SMALL]})
    double.answer = answer
    hibali("push", folder, "mine:", exit=6 if answer is page_of_a_proxy else 5)
    assert not double.deleted
    double.answer = lambda key, reply: reply  # noqa: ARG005
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == FILES
    assert len(double.posts) == 3


@pytest.mark.heavy
def test_a_content_at_which_others_point_meanwhile_is_not_removed(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    content, link = double.object_path(SMALL_KEY), double.repository / "theirs.nii.gz"
    content.parent.mkdir(parents=True)
    content.write_bytes(FILES[SMALL])

    def answer(key: str, reply: Reply) -> Reply:
        if key != SMALL_KEY:
            return reply
        if not link.is_symlink():
            link.symlink_to(content.relative_to(double.repository))
            double.commit("by another person")
        return page_of_a_proxy(key, reply)

    double.answer = answer
    add(hibali, double)
    failed = hibali("push", folder, "mine:", "--json", exit=6)
    assert [each["code"] for each in failed.lines if each["kind"] == "failed"] == ["corrupt"]
    assert not double.deleted


@pytest.mark.heavy
def test_a_login_page_is_not_taken_for_a_content(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    double.answer = login_page
    add(hibali, double)
    assert hibali("push", folder, "mine:", "--json").last["code"] == "bad-answer"
    assert not {SMALL, LARGE} & tree_of(double).keys()
    double.answer = lambda key, reply: reply  # noqa: ARG005
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == FILES


@pytest.mark.heavy
def test_a_content_in_the_object_store_is_not_called_verified(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    store = "https://s3.amazonaws.com/openneuro.org/ds004321/scan?versionId=1"
    double.answer = lambda key, reply: Reply(303, b"", {"Location": store}) if key == SMALL_KEY else reply
    add(hibali, double)
    receipt = hibali("push", folder, "mine:", "--json", exit=6).last
    assert (receipt["files_failed"], receipt["proof_moved"]) == (0, "claimed")
    assert SMALL_KEY not in {key for key, _ in double.posts}
    assert hibali("push", folder, "mine:", "--json", exit=0).last["files_moved"] == 0
    told = hibali("verify", folder, "mine:", "--json", exit=6)
    assert "verify the snapshot by its DOI" in str(told.lines)


@pytest.mark.heavy
def test_contents_that_are_there_are_not_sent_after_a_refused_commit(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    add(hibali, double)
    hook = double.repository / ".git/hooks/pre-receive"
    before = hook.read_text()
    hook.write_text("#!/bin/sh\necho it failed validation; exit 1\n")
    refused = hibali("push", folder, "mine:", "--json", exit=6).last
    assert (refused["code"], "it failed validation" in refused["message"]) == ("commit-refused", True)
    assert tree_of(double) == {}
    hook.write_text(before)
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == FILES
    assert len(double.posts) == 3


def test_tokens_that_end_are_renewed_and_no_secret_is_told(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    seen = set()

    def expire(request: Any, when: str) -> bool:
        kind = request.method, request.path.split("/")[4:5], "receive-pack" in str(request.query)
        if when == "before" and request.path.startswith("/git/") and str(kind) not in seen:
            seen.add(str(kind))
            double.expire_tokens()
        return False

    double.watch = expire
    add(hibali, double)
    told = hibali("push", folder, "mine:", "--json", "-vv", exit=0)
    assert double.logins > 4
    assert tree_of(double) == FILES
    told_bytes = told.out + told.err
    state = b"".join(
        path.read_bytes() for path in Path(hibali.env["HIBALI_STATE"]).rglob("*") if path.is_file()
    )
    for token in [*double._issued, KEY]:
        assert token.encode() not in told_bytes + state
    assert not list(Path(hibali.env["HIBALI_STATE"]).glob("openneuro-*"))


def test_a_key_without_permission_changes_nothing(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    double.is_public = True
    add(hibali, double)
    double.keys = {"a new key"}
    assert hibali("push", folder, "mine:", "--json", exit=4).last["code"] in {"denied", "expired"}
    double.is_public = False
    assert hibali("push", folder, "mine:", "--json", exit=4).last["code"] in {"denied", "expired"}
    assert not double.posts


@pytest.mark.heavy
def test_changes_and_deletions_keep_what_others_changed(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    (folder / SMALL).write_bytes(b"y" * len(FILES[SMALL]))  # of the same size
    (folder / "README").unlink()
    (double.repository / "CHANGES").write_text("1.0.0\n")
    double.commit("by another person")
    hibali("push", folder, "mine:", "--delete", "--exclude", "CHANGES", exit=0)
    expected = {**FILES, SMALL: b"y" * len(FILES[SMALL]), "CHANGES": b"1.0.0\n"}
    del expected["README"]
    assert tree_of(double) == expected
    assert (double.repository / ".gitattributes").exists()
    assert double.object_path(SMALL_KEY).exists()  # snapshots may have it


@pytest.mark.heavy
def test_a_push_that_someone_overtakes_is_repeated_or_refused(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    others = ["CHANGES"]

    def overtake(request: Any, when: str) -> bool:
        if when == "before" and "receive-pack" in request.query.get("service", "") and others:
            (double.repository / others.pop()).write_text("by another person\n")
            double.commit("by another person")
        return False

    double.watch = overtake
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == {**FILES, "CHANGES": b"by another person\n"}
    (folder / "README").write_text("mine\n")
    others.append("README")
    assert hibali("push", folder, "mine:", "--json", exit=6).last["code"] == "target-changed"
    assert tree_of(double)["README"] == b"by another person\n"


@pytest.mark.heavy
def test_a_push_whose_answer_was_lost_is_not_repeated(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    lost = [True]
    double.watch = lambda request, when: (
        when == "after"
        and request.method == "POST"
        and "receive-pack" in request.path
        and bool(lost)
        and lost.pop()
    )
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == FILES
    assert len(double.git("log", "--format=%h", "main").splitlines()) == 2


@pytest.mark.heavy
def test_names_that_the_server_refuses_are_told_before_anything_is_sent(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    plant(folder, {"sub-01/.DS_Store": b"x"})
    add(hibali, double)
    assert "begins with a dot" in str(hibali("push", folder, "mine:", "--json").lines)
    assert not double.posts
    hibali("push", folder, "mine:", "--exclude", ".DS_Store", exit=0)
    assert tree_of(double) == FILES


@pytest.mark.heavy
def test_a_draft_is_read_and_its_damage_is_found(
    hibali: Any, double: OpenNeuro, folder: Path, tmp_path: Path
) -> None:
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    listed = hibali("ls", "-R", "mine:", "--json", exit=0).lines
    assert {each["path"] for each in listed if each.get("type") == "file"} == set(FILES)
    hibali("pull", "mine:", tmp_path / "back", exit=0)
    assert {
        path.relative_to(tmp_path / "back").as_posix(): path.read_bytes()
        for path in (tmp_path / "back").rglob("*")
        if path.is_file()
    } == FILES
    double.object_path(LARGE_KEY).write_bytes(b"z" * len(FILES[LARGE]))
    hibali("verify", folder, "mine:", exit=6)
    refused = hibali("push", folder, "mine:", "--checksum", "--json", exit=6)
    assert [each["code"] for each in refused.lines if each["kind"] == "failed"] == ["corrupt"]
    assert not double.deleted  # a commit points at it


@pytest.mark.heavy
def test_a_killed_push_continues(hibali: Any, double: OpenNeuro, tmp_path: Path) -> None:
    files = {f"scan-{number}.nii": os.urandom(5 * MIB) for number in range(6)}
    folder = plant(tmp_path / "data", files)
    add(hibali, double)
    double.cut = lambda key, size: len(double.posts) >= 3 and bool(time.sleep(0.5))  # noqa: ARG005
    process = hibali.start("push", folder, "mine:", "--json")
    wait_for(lambda: len(double.posts) >= 3)
    process.kill()
    process.wait()
    assert tree_of(double) == {}
    double.cut = lambda key, size: False  # noqa: ARG005
    wait_for(
        lambda: not double.arriving
    )  # as the worker does, it replaces a content with what arrived of a later end
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == files
    whole = [key for key, status in double.posts if status == 200]
    assert len(whole) == len(set(whole)) == 6


@pytest.mark.heavy
def test_git_annex_itself_finds_all_contents_whole(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    environment = {**os.environ, "PATH": f"{REPOSITORY}/.venv/bin:{os.environ['PATH']}", "HOME": str(folder)}
    printed = []
    for words in (["init", "--quiet"], ["fsck", "--json"], ["find", "--in=here", "--json"]):
        ended = subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "annex", *words],
            cwd=double.repository,
            env=environment,
            capture_output=True,
            check=True,
        )
        printed.append([json.loads(line) for line in ended.stdout.splitlines()])
    assert [each["success"] for each in printed[1]] == [True] * 3
    assert {each["key"] for each in printed[2]} == {key for key, _ in double.posts}


@pytest.mark.heavy
def test_the_commands_of_the_page_work(hibali: Any, double: OpenNeuro, tmp_path: Path) -> None:
    folder = plant(tmp_path / "bids", FILES)
    lines = lines_to_type(page("openneuro"))
    assert len(lines) == 3
    for line in lines:
        words = shlex.split(line.replace("pass openneuro/key", f"cat {double.key_file}"))[1:]
        more = ["--set", f"openneuro.url={double.url}"] if words[0] == "sites" else []
        hibali(*words, *more, exit=0, cwd=folder.parent)
    assert tree_of(double) == FILES


GIB = 1 << 30


@pytest.mark.heavy
@pytest.mark.timeout(2400)
def test_thousands_of_files_and_a_large_one_survive_resets_and_ended_tokens(
    hibali: Any, double: OpenNeuro, tmp_path: Path
) -> None:
    """3000 files and one of 4 GiB, 10 resets, 5 ended tokens: nothing that is finished is sent twice."""
    count, size = 3000, 4 * GIB
    folder = tmp_path / "data"
    for number in range(count):
        plant(folder, {f"sub-{number // 50:02}/scan-{number:04}.nii.gz": os.urandom(2000 + number)})
    with (folder / "large.nii").open("wb") as large:
        for offset in range(0, size, size // 32):
            large.seek(offset)
            large.write(os.urandom(MIB))
        large.truncate(size)
    wanted = {path.name: digest_of(path) for path in folder.rglob("*") if path.is_file()}
    resets = dict.fromkeys(range(8), 0)  # of small files, and two of the large one
    ended = [count * part // 6 for part in range(5, 0, -1)]

    def cut(key: str, sent: int) -> bool:
        if f"-s{size}-" in key:
            number = next((n for n in (8, 9) if resets.get(n) is None and sent > size * (n - 7) // 3), None)
        else:
            number = next(
                (n for n in range(8) if not resets[n] and len(double.posts) > n * count // 10), None
            )
        if number is None:
            return False
        resets[number] = 1
        return True

    def end_tokens(request: Any, when: str) -> bool:
        if when == "before" and request.method == "POST" and ended and len(double.posts) >= ended[-1]:
            ended.pop()
            double.expire_tokens()
        return False

    double.cut, double.watch = cut, end_tokens
    add(hibali, double)
    began = time.monotonic()
    receipt = hibali("push", folder, "mine:", "--json", exit=0, timeout=2000).last
    seconds = time.monotonic() - began
    finished = [key for key, status in double.posts if status == 200]
    broken = [key for key, status in double.posts if status == 0]
    found = {path.name: digest_of(double.object_path(key)) for path, key in pointers(double, folder)}
    print(
        f"\n{receipt['files_moved']} files, {receipt['bytes_moved']} bytes in {seconds:.0f} s, proof {receipt['proof_moved']};"
        f" uploads {len(double.posts)}: {len(finished)} whole, {len(broken)} reset, {len(double.posts) - len(finished) - len(broken)} refused;"
        f" tokens issued {double.logins}; commits {len(double.git('log', '--format=%h', 'main').splitlines()) - 1}"
    )
    assert found == wanted
    assert len(finished) == len(set(finished))
    assert len(broken) == 10
    assert not ended
    assert double.logins >= 6
    posts = len(double.posts)
    assert hibali("push", folder, "mine:", "--json", exit=0, timeout=600).last["files_moved"] == 0
    assert len(double.posts) == posts


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pointers(double: OpenNeuro, folder: Path) -> list[tuple[Path, str]]:
    """Return the files of a folder and the keys at which the draft points for them."""
    lines = double.git("ls-tree", "-r", "-z", "main").split("\0")[:-1]
    blobs = {line.partition("\t")[2]: line.split()[2] for line in lines}
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    asked = "".join(f"{blobs[name]}\n" for name in names)
    links = double.git("cat-file", "--batch=", stdin=asked.encode()).split("\n")[1::2]
    return [(Path(name), Path(link).name) for name, link in zip(names, links, strict=False)]


@pytest.mark.heavy
def test_a_file_never_replaces_a_folder_of_others(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    (double.repository / "README").mkdir()
    (double.repository / "README/notes").write_text("by another person\n")
    (double.repository / "sub-01").write_text("by another person\n")
    double.commit("by another person")
    add(hibali, double)
    failed = hibali("push", folder, "mine:", "--json", exit=6)
    codes = {each["path"]: each["code"] for each in failed.lines if each["kind"] == "failed"}
    below = dict.fromkeys((name for name in FILES if name.startswith("sub-01/")), "file-in-the-way")
    assert codes == {"README": "folder-in-the-way", **below}
    assert tree_of(double) == {
        "README/notes": b"by another person\n",
        "sub-01": b"by another person\n",
        **{name: FILES[name] for name in ("dataset_description.json", ".bidsignore", "empty.nii")},
    }


@pytest.mark.heavy
def test_a_saved_plan_replaces_only_what_it_saw(
    hibali: Any, double: OpenNeuro, folder: Path, tmp_path: Path
) -> None:
    add(hibali, double)
    hibali("plan", folder, "mine:", "-o", tmp_path / "plan", exit=0)
    (double.repository / "README").write_text("by another person\n")
    double.commit("by another person")
    hibali("apply", tmp_path / "plan", exit=8)
    assert tree_of(double)["README"] == b"by another person\n"


@pytest.mark.heavy
def test_what_an_archive_recorded_is_compared_before_it_is_committed(hibali: Any, double: OpenNeuro) -> None:
    wanted = {"small.nii": os.urandom(3000), "large.nii": os.urandom(9 * MIB), "whole.nii": b"whole"}
    archive = ARCHIVES["dandi"]([Published(name, content) for name, content in wanted.items()])
    add(hibali, double)
    address = ("--doi", archive.doi, "--set", f"doi.url={archive.url}")
    hibali("sites", "add", "there", *address, exit=0)
    whole = dict(archive.blobs.contents)
    for number in ("0", "1"):
        archive.blobs.contents[number] = b"x" + whole[number][1:]
    failed = hibali("sync", "there:", "mine:", "--json", exit=6).last
    assert (failed["files_failed"], failed["proof_moved"]) == (2, "recorded")
    assert tree_of(double) == {"whole.nii": b"whole"}
    archive.blobs.contents.update(whole)
    assert hibali("sync", "there:", "mine:", "--json", exit=0).last["proof_moved"] == "recorded"
    assert tree_of(double) == wanted
    archive.close()


@pytest.mark.heavy
def test_submodules_and_folders_of_hidden_files_are_never_replaced(
    hibali: Any, double: OpenNeuro, tmp_path: Path
) -> None:
    (double.repository / "code").mkdir()
    (double.repository / "code/.gitattributes").write_text("* annex.largefiles=nothing\n")
    double.commit("by another person")
    head = double.git("rev-parse", "HEAD").strip()
    for path in ("sourcedata/raw", "derivatives"):
        double.git("update-index", "--add", "--cacheinfo", f"160000,{head},{path}")
    double.git("commit", "--quiet", "-m", "with submodules")
    before = double.git("ls-tree", "-r", "main")
    folder = plant(tmp_path / "data", dict.fromkeys(("sourcedata/raw/a.json", "derivatives", "code"), b"x"))
    add(hibali, double)
    failed = hibali("push", folder, "mine:", "--json", exit=6)
    codes = [each["code"] for each in failed.lines if each["kind"] == "failed"]
    assert codes == ["folder-in-the-way"] * 3
    assert double.git("ls-tree", "-r", "main") == before


@pytest.mark.heavy
@pytest.mark.parametrize("theirs", ["README/notes", "sub-01"])
def test_a_folder_or_file_that_comes_meanwhile_is_never_replaced(
    hibali: Any, double: OpenNeuro, folder: Path, theirs: str
) -> None:
    others = [theirs]

    def overtake(request: Any, when: str) -> bool:
        if when == "before" and "receive-pack" in request.query.get("service", "") and others:
            plant(double.repository, {others.pop(): b"by another person"})
            double.commit("by another person")
        return False

    double.watch = overtake
    add(hibali, double)
    refused = hibali("push", folder, "mine:", "--json", exit=6).last
    assert (refused["code"], "nothing was committed" in refused["message"]) == ("target-changed", True)
    assert tree_of(double) == {theirs: b"by another person"}


@pytest.mark.heavy
def test_a_commit_that_others_overtook_after_a_lost_answer_is_not_denied(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    lost = [True]

    def lose(request: Any, when: str) -> bool:
        is_push = request.method == "POST" and "receive-pack" in request.path
        if when != "after" or not is_push or not lost:
            return False
        (double.repository / "README").write_text("by another person\n")
        double.commit("by another person")
        return lost.pop()

    double.watch = lose
    add(hibali, double)
    refused = hibali("push", folder, "mine:", "--json", exit=6).last
    assert (refused["code"], "the commit was made" in refused["message"]) == ("target-changed", True)
    assert tree_of(double) == {**FILES, "README": b"by another person\n"}


@pytest.mark.heavy
def test_what_a_killed_push_left_is_removed_by_the_next_one(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    state, reached, go_on = Path(hibali.env["HIBALI_STATE"]), threading.Event(), threading.Event()

    def hold(request: Any, when: str) -> bool:
        if when == "before" and "receive-pack" in request.path and not reached.is_set():
            reached.set()
            go_on.wait(60)
        return False

    double.watch = hold
    add(hibali, double)
    process = hibali.start("push", folder, "mine:", "--json")
    assert reached.wait(60)
    (left,) = state.glob("openneuro-*")
    assert "extraHeader" in (left / "config").read_text()
    hibali("ls", "mine:", exit=0)
    assert left.exists()  # its process lives
    process.kill()
    process.wait()
    go_on.set()
    hibali("ls", "mine:", exit=0)
    assert not list(state.glob("openneuro-*"))


@pytest.mark.heavy
def test_a_file_whose_content_the_server_lost_is_in_the_plan(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    for key in (LARGE_KEY, SMALL_KEY):
        double.object_path(key).unlink()
    (folder / SMALL).unlink()
    hibali("push", folder, "mine:", "--delete", exit=0)
    assert tree_of(double) == {name: content for name, content in FILES.items() if name != SMALL}


@pytest.mark.heavy
def test_the_accounts_own_attributes_do_not_decide_and_a_denial_is_one(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    attributes = Path(hibali.env["HOME"], ".config/git/attributes")
    attributes.parent.mkdir(parents=True, exist_ok=True)
    attributes.write_text("*.nii annex.largefiles=nothing\n")
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    assert len(double.posts) == 3
    double.fail("status", "GET", "/git/0/.*/info/refs", times=9, status=403)
    assert hibali("ls", "mine:", "--json", exit=4).last["code"] == "denied"


@pytest.mark.heavy
@pytest.mark.parametrize(("theirs", "mine"), [("notes", "notes/one.tsv"), ("notes/one.tsv", "notes")])
def test_a_file_becomes_a_folder_and_the_reverse_by_two_pushes(
    hibali: Any, double: OpenNeuro, tmp_path: Path, theirs: str, mine: str
) -> None:
    plant(double.repository, {theirs: b"old"})
    double.commit("by another person")
    new, without = {mine: b"new", "README": b"r"}, {"README": b"r"}
    add(hibali, double)
    hibali("push", plant(tmp_path / "new", new), "mine:", "--delete", exit=6)
    assert tree_of(double).get(theirs) == b"old"
    hibali("push", plant(tmp_path / "without", without), "mine:", "--delete", exit=0)
    hibali("push", tmp_path / "new", "mine:", exit=0)
    assert tree_of(double) == new


@pytest.mark.heavy
def test_an_unlocked_file_is_read_from_the_annex(hibali: Any, double: OpenNeuro, tmp_path: Path) -> None:
    content = os.urandom(5000)
    key = key_of("scan.nii", content)
    double.object_path(key).parent.mkdir(parents=True)
    double.object_path(key).write_bytes(content)
    (double.repository / "scan.nii").write_text(f"/annex/objects/{key}\n")
    double.commit("unlocked by another person")
    add(hibali, double)
    hibali("pull", "mine:", tmp_path / "back", exit=0)
    assert (tmp_path / "back/scan.nii").read_bytes() == content
    hibali("verify", tmp_path / "back", "mine:", exit=0)
    double.object_path(key).write_bytes(b"x" * 5000)
    hibali("verify", tmp_path / "back", "mine:", exit=6)


@pytest.mark.heavy
def test_a_text_like_an_unlocked_file_is_kept_as_it_is(
    hibali: Any, double: OpenNeuro, tmp_path: Path
) -> None:
    files = {"a.json": f"/annex/objects/{SMALL_KEY}\n".encode()}
    add(hibali, double)
    hibali("push", plant(tmp_path / "data", files), "mine:", exit=0)
    hibali("pull", "mine:", tmp_path / "back", exit=0)
    assert (tmp_path / "back/a.json").read_bytes() == files["a.json"]


@pytest.mark.heavy
def test_a_single_file_whose_content_was_cut_off_at_the_server_is_not_kept(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    add(hibali, double)
    push = "push", folder / SMALL, "mine:scan.nii.gz", "--json"
    hibali(*push, exit=0)
    content = double.object_path(SMALL_KEY)
    content.write_bytes(FILES[SMALL][:100])
    refused = hibali(*push, exit=6)
    assert [each["code"] for each in refused.lines if each["kind"] == "failed"] == ["corrupt"]
    content.unlink()
    assert hibali(*push, exit=0).last["files_moved"] == 1
    assert content.read_bytes() == FILES[SMALL]


@pytest.mark.heavy
@pytest.mark.parametrize("path", [".datalad", "sub/.git/annex", "sub/.hidden"])
def test_nothing_is_pushed_into_folders_of_git_and_datalad(
    hibali: Any, double: OpenNeuro, folder: Path, path: str
) -> None:
    before = double.git("ls-tree", "-r", "main")
    add(hibali, double)
    for source in (folder, folder / "README"):
        assert hibali("push", source, f"mine:{path}", "--json", exit=8).last["code"] == "unsafe-name"
    assert not double.posts
    assert double.git("ls-tree", "-r", "main") == before


@pytest.mark.heavy
def test_bidsignore_is_taken_at_the_top_only(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    add(hibali, double)
    refused = hibali("push", folder, "mine:copy", "--json")
    assert "begins with a dot" in str(refused.lines)
    assert not double.posts
    hibali("push", folder / ".bidsignore", "mine:.bidsignore", exit=0)
    assert tree_of(double) == {".bidsignore": FILES[".bidsignore"]}


@pytest.mark.heavy
@pytest.mark.parametrize("path", ["", "new/folder"])
def test_packs_are_refused_before_anything_is_sent(
    hibali: Any, double: OpenNeuro, folder: Path, path: str
) -> None:
    add(hibali, double)
    refused = hibali("push", folder, f"mine:{path}", "--pack", "--json", exit=8).last
    assert refused["code"] == "cannot-keep-packs"
    assert not double.posts


def folders_of_several(tmp_path: Path) -> list[Path]:
    """Return folders with a file of their own each, and one that all have."""
    return [
        plant(tmp_path / f"data-{number}", {f"a{number}.nii": b"%d" % number, "same.nii": b"same"})
        for number in range(3)
    ]


@pytest.mark.heavy
def test_pushes_at_once_from_this_machine_all_arrive(hibali: Any, double: OpenNeuro, tmp_path: Path) -> None:
    together, pushing = threading.Barrier(3), threading.Semaphore(3)

    def meet(request: Any, when: str) -> bool:
        """Let all pushes begin before one of them ends, unless they wait for each other."""
        if when == "before" and "git-receive-pack" in request.path and pushing.acquire(blocking=False):
            try:
                together.wait(5)
            except threading.BrokenBarrierError:
                return False
        return False

    double.watch = meet
    add(hibali, double)
    folders = folders_of_several(tmp_path)
    processes = [hibali.start("push", folder, "mine:", "--json") for folder in folders]
    assert [process.wait(300) for process in processes] == [0, 0, 0]
    assert tree_of(double) == {"a0.nii": b"0", "a1.nii": b"1", "a2.nii": b"2", "same.nii": b"same"}
    assert not double.git("diff", "--cached", "--name-only")


@pytest.mark.heavy
def test_what_others_committed_with_the_same_content_is_no_conflict(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    others = [True]

    def overtake(request: Any, when: str) -> bool:
        if when == "before" and "receive-pack" in request.query.get("service", "") and others:
            others.pop()
            (double.repository / "README").write_bytes(FILES["README"])
            double.commit("by another person")
        return False

    double.watch = overtake
    add(hibali, double)
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == FILES


@pytest.mark.heavy
def test_a_server_whose_work_tree_is_mixed_up_is_told(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    (double.repository / "left").write_text("by a push at the same moment\n")
    double.git("add", "left")
    add(hibali, double)
    refused = hibali("push", folder, "mine:", "--json", exit=6).last
    assert (refused["code"], "support" in refused["hint"]) == ("commit-refused", True)
    double.git("reset", "--quiet", "--hard")
    hibali("push", folder, "mine:", exit=0)
    assert len(double.posts) == 3


@pytest.mark.heavy
def test_a_push_that_waits_for_another_one_can_be_ended(
    hibali: Any, double: OpenNeuro, tmp_path: Path
) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def hold(request: Any, when: str) -> bool:
        if when == "before" and "git-receive-pack" in request.path and not reached.is_set():
            reached.set()
            go_on.wait(120)
        return False

    double.watch = hold
    add(hibali, double)
    first, second, _ = folders_of_several(tmp_path)
    pushing = hibali.start("push", first, "mine:", "--json")
    assert reached.wait(60)
    waiting = hibali.start("push", second, "mine:", "--json")
    wait_for(lambda: len(double.posts) == 3)  # same.nii is sent once
    time.sleep(1)
    waiting.terminate()
    assert waiting.wait(60) == 143
    go_on.set()
    assert pushing.wait(120) == 0
    assert tree_of(double) == {"a0.nii": b"0", "same.nii": b"same"}


@pytest.mark.heavy
def test_a_content_that_is_read_back_does_not_outlast_max_time(
    hibali: Any, double: OpenNeuro, folder: Path
) -> None:
    pieces = [FILES[LARGE][start : start + (1 << 16)] for start in range(0, len(FILES[LARGE]), 1 << 16)]
    left = list(reversed(pieces))

    def slowly() -> Iterator[bytes]:
        while left:
            yield left.pop()
            time.sleep(0.2)

    def answer(key: str, reply: Reply) -> Reply:
        is_sent = key == LARGE_KEY and reply.status == 200
        return Reply(200, slowly(), reply.headers, size=len(FILES[LARGE])) if is_sent else reply

    double.answer = answer
    add(hibali, double)
    assert hibali("push", folder, "mine:", "--json", "--max-time", "4s", exit=5).last["code"] == "max-time"
    assert left
    assert tree_of(double) == {}


@pytest.mark.heavy
def test_an_upload_does_not_outlast_max_time(hibali: Any, double: OpenNeuro, folder: Path) -> None:
    double.cut = lambda key, size: key == LARGE_KEY and bool(time.sleep(0.2))  # noqa: ARG005
    add(hibali, double)
    assert hibali("push", folder, "mine:", "--json", "--max-time", "4s", exit=5).last["code"] == "max-time"
    assert (LARGE_KEY, 200) not in double.posts
    assert tree_of(double) == {}
    double.cut = lambda key, size: False  # noqa: ARG005
    wait_for(lambda: not double.arriving)
    hibali("push", folder, "mine:", exit=0)
    assert tree_of(double) == FILES

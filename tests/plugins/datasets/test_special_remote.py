"""Test that git-annex and DataLad store contents at any site through `git-annex-remote-hibali`."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hibali.annex_key import place_of
from tests.support.annex import AnnexRepository, annex_environment, make_repository
from tests.support.annex_protocol import AnnexRemoteClient
from tests.support.backends import add_site
from tests.support.restartable_server import restartable_server
from tests.support.strace import LINK, SYNC, require_strace
from tests.support.transfers import Transfers
from tests.support.waiting import wait_for
from transfers.agent.lease import process_start

MIB = 1 << 20
SMALL = random.Random(1).randbytes(100_001)  # noqa: S311 - the same content each time
LARGE = random.Random(2).randbytes(MIB + 1) * 24  # noqa: S311 - the same
SMALL_KEY = f"SHA256E-s{len(SMALL)}--{hashlib.sha256(SMALL).hexdigest()}"
KEY = f"SHA256E-s{len(LARGE)}--{hashlib.sha256(LARGE).hexdigest()}.bin"

TransfersTo = Callable[..., Transfers]

pytestmark = pytest.mark.timeout(
    600
)  # git-annex and DataLad start dozens of processes for each of their commands
heavy = pytest.mark.heavy
each_kind = pytest.mark.parametrize(
    "word", ["local", *(pytest.param(one, marks=heavy) for one in ("ssh", "s3", "sftp"))]
)


@contextmanager
def start_conversation(
    there: Transfers, location: str = "there:annex", before: Sequence[str] = ()
) -> Iterator[AnnexRemoteClient]:
    conversation = AnnexRemoteClient(there.hibali.env, there.hibali.home.home, location, before)
    try:
        yield conversation
    finally:
        conversation.kill()


def repository_of(there: Transfers, name: str = "repository") -> AnnexRepository:
    return make_repository(there.folder / name, there.hibali.env, there.hibali.home.home)


def add_remote(repository: AnnexRepository, *more: str, location: str = "there:annex") -> None:
    words = more if any(word.startswith("encryption=") for word in more) else ("encryption=none", *more)
    repository.run(
        "annex", "initremote", "store", "type=external", "externaltype=hibali", f"location={location}", *words
    )


def add_file(repository: AnnexRepository, name: str, content: bytes) -> str:
    path = repository.folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    repository.run("annex", "add", "--quiet", "--", name)
    repository.run("commit", "--quiet", "-m", "one more")
    return repository.key_of(name)


@pytest.mark.heavy
@each_kind
def test_contents_are_stored_and_retrieved_at_documented_paths(word: str, transfers_to: TransfersTo) -> None:
    there = transfers_to(word)
    repository = repository_of(there)
    add_remote(repository)
    keys = {add_file(repository, "a.tar.gz", SMALL): SMALL, add_file(repository, "b c.bin", LARGE): LARGE}
    repository.run("annex", "copy", "--quiet", "--to", "store")
    assert there.place.files("annex") == {place_of(key).encode(): content for key, content in keys.items()}
    assert not [name for name in there.place.names("annex") if b".hibali" in name]
    assert f"there:annex/{place_of(next(iter(keys)))}" in repository.run("annex", "whereis").decode()
    repository.run("annex", "drop", "--quiet")
    assert not (repository.folder / "a.tar.gz").exists()
    repository.run("annex", "get", "--quiet")
    assert (repository.folder / "a.tar.gz").read_bytes() == SMALL
    assert (repository.folder / "b c.bin").read_bytes() == LARGE
    repository.run("annex", "drop", "--quiet", "--from", "store")
    assert there.place.files("annex") == {}
    assert not [name for name in there.place.names("annex") if b".hibali" in name]
    assert b"location: there:annex" in repository.run("annex", "info", "store")


@heavy
@pytest.mark.parametrize("word", ["local", "ssh", "s3", "sftp"])
def test_testremote_passes_with_an_exported_tree(word: str, transfers_to: TransfersTo) -> None:
    repository = repository_of(transfers_to(word))
    add_remote(repository, "exporttree=yes")
    tried = repository.run("annex", "testremote", "--fast", "--size=5MiB", "store")
    assert b"FAIL" not in tried
    assert b"retrieve export" in tried


# The time depends on the number of chunks, a hundred of each content, and not on their size.
@heavy
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("word", ["local", "ssh", "s3", "sftp"])
def test_testremote_passes_with_every_option(word: str, transfers_to: TransfersTo) -> None:
    repository = repository_of(transfers_to(word))
    add_remote(repository)
    tried = repository.run("annex", "testremote", "--size=200", "store", timeout=1100)
    assert b"FAIL" not in tried
    for variant in (
        b"chunksize=2 encryption=none",
        b"chunksize=2 encryption=shared",
        b"chunksize=0 encryption=shared",
    ):
        assert variant in tried


@heavy
@pytest.mark.timeout(600)
def test_a_short_testremote_passes_with_webdav(transfers_to: TransfersTo) -> None:
    repository = repository_of(transfers_to("webdav"))
    add_remote(repository)
    tried = repository.run("annex", "testremote", "--fast", "--size=200", "store", timeout=500)
    assert b"FAIL" not in tried


@heavy
@pytest.mark.timeout(600)
@pytest.mark.parametrize("word", ["local", "ssh", "s3"])
@pytest.mark.parametrize(
    "more", [(), ("chunk=1MiB",), ("encryption=shared",), ("chunk=1MiB", "encryption=shared")]
)
def test_testremote_passes_with_large_contents(
    word: str, more: tuple[str, ...], transfers_to: TransfersTo
) -> None:
    there = transfers_to(word)
    repository = repository_of(there)
    add_remote(repository, *more)
    assert b"FAIL" not in repository.run("annex", "testremote", "--fast", "--size=9MiB", "store", timeout=500)
    add_file(repository, "large", LARGE)
    repository.run("annex", "copy", "--quiet", "--to", "store")
    kept = there.place.files("annex")
    assert len(kept) == (25 if "chunk=1MiB" in more else 1)
    assert (b"".join(kept.values()).find(LARGE[:64]) >= 0) is ("encryption=shared" not in more)
    repository.run("annex", "drop", "--quiet")
    repository.run("annex", "get", "--quiet")
    assert (repository.folder / "large").read_bytes() == LARGE


@pytest.mark.parametrize("word", ["local", pytest.param("ssh", marks=heavy)])
def test_a_killed_store_is_resumed_in_the_file(word: str, transfers_to: TransfersTo) -> None:
    slow = '[sites.there.limits]\nbandwidth = "24M"\n' if word == "local" else 'bandwidth = "24M"\n'
    there = transfers_to(word, slow)
    file = there.folder / "large"
    file.write_bytes(LARGE)
    place = place_of(KEY)
    folder = there.place.at("annex") / Path(place).parent  # type: ignore[attr-defined]
    with start_conversation(there) as conversation:
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        conversation.send(f"TRANSFER STORE {KEY} {file}")
        wait_for(lambda: recorded_bytes(folder) >= 8 * MIB)
        assert there.place.read("annex", place.encode()) is None
    wait_until_unlocked(folder)
    with start_conversation(there) as conversation:
        assert conversation.request(f"CHECKPRESENT {KEY}") == f"CHECKPRESENT-FAILURE {KEY}"
        assert conversation.request(f"TRANSFER STORE {KEY} {file}") == f"TRANSFER-SUCCESS STORE {KEY}"
        assert min(conversation.progress) >= 8 * MIB
        assert conversation.request(f"CHECKPRESENT {KEY}") == f"CHECKPRESENT-SUCCESS {KEY}"
    assert there.place.files("annex") == {place.encode(): LARGE}
    assert not [name for name in there.place.names("annex") if b".hibali" in name]


def small_contents(count: int) -> dict[str, bytes]:
    contents = [random.Random(number).randbytes(1000) for number in range(count)]  # noqa: S311 - the same each time
    return {f"SHA256E-s1000--{hashlib.sha256(content).hexdigest()}": content for content in contents}


def test_small_contents_need_no_lock_and_few_syncs(transfers_to: TransfersTo) -> None:
    require_strace()
    there = transfers_to("local")
    contents, trace = small_contents(20), there.folder / "trace"
    file = there.folder / "content"
    with start_conversation(
        there, before=["strace", "-f", "-qqq", "-o", str(trace), "-e", f"trace={SYNC},{LINK}"]
    ) as conversation:
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        for key, content in contents.items():
            file.write_bytes(content)
            assert conversation.request(f"TRANSFER STORE {key} {file}") == f"TRANSFER-SUCCESS STORE {key}"
            assert (
                conversation.request(f"TRANSFER RETRIEVE {key} {file}") == f"TRANSFER-SUCCESS RETRIEVE {key}"
            )
            assert file.read_bytes() == content
            assert conversation.request(f"REMOVE {key}") == f"REMOVE-SUCCESS {key}"
        conversation.end()
    calls = [line for line in trace.read_text().splitlines() if "lock" in line]
    assert calls == []
    # the file, its two new folders, and the location itself
    assert len([line for line in trace.read_text().splitlines() if "sync(" in line]) <= 4 * len(contents) + 4
    assert not [name for name in there.place.names("annex") if b".hibali" in name]


@each_kind
def test_a_stored_content_with_other_bytes_is_replaced(word: str, transfers_to: TransfersTo) -> None:
    there = transfers_to(word)
    ((key, content),) = small_contents(1).items()
    place, file = place_of(key).encode(), there.folder / "content"
    file.write_bytes(content)
    with start_conversation(there) as conversation:
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        there.place.plant("annex", {place: b"cut short"})
        assert conversation.request(f"CHECKPRESENT {key}") == f"CHECKPRESENT-FAILURE {key}"
        assert conversation.request(f"TRANSFER STORE {key} {file}") == f"TRANSFER-SUCCESS STORE {key}"
    assert there.place.files("annex") == {place: content}


def recorded_bytes(folder: Path) -> int:
    """Return the number of bytes that the journal of a folder records of its partial file."""
    try:
        lines = [json.loads(line) for line in (folder / ".hibali" / "begun").read_bytes().splitlines()]
    except (FileNotFoundError, ValueError):
        return 0
    return max((line.get("to", 0) for line in lines), default=0)


def wait_until_unlocked(folder: Path) -> None:
    """Wait until the process that holds the lock of a folder has ended."""

    def gone() -> bool:
        try:
            return not process_start(json.loads((folder / ".hibali" / "lock").read_bytes())["pid"])
        except (FileNotFoundError, ValueError):
            return True

    wait_for(gone)


@each_kind
def test_an_interrupted_retrieve_is_resumed(word: str, transfers_to: TransfersTo) -> None:
    there = transfers_to(word)
    file, fetched = there.folder / "large", there.folder / "fetched"
    file.write_bytes(LARGE)
    with start_conversation(there) as conversation:
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        assert conversation.request(f"TRANSFER STORE {KEY} {file}").startswith("TRANSFER-SUCCESS")
        for beginning in (LARGE[: 9 * MIB], LARGE[: 9 * MIB - 1] + b"?", LARGE, LARGE + b"?", b""):
            fetched.write_bytes(beginning)
            conversation.progress.clear()
            assert (
                conversation.request(f"TRANSFER RETRIEVE {KEY} {fetched}")
                == f"TRANSFER-SUCCESS RETRIEVE {KEY}"
            )
            assert fetched.read_bytes() == LARGE
            assert conversation.progress
            if beginning == LARGE[: 9 * MIB]:
                assert min(conversation.progress) > 9 * MIB


@heavy
def test_damaged_content_is_not_retrieved(transfers_to: TransfersTo) -> None:
    there = transfers_to("local")
    repository = repository_of(there)
    add_remote(repository)
    key = add_file(repository, "a", SMALL)
    repository.run("annex", "copy", "--quiet", "--to", "store")
    there.place.corrupt("annex", place_of(key).encode())
    repository.run("annex", "drop", "--quiet")
    assert repository.run_unchecked("annex", "get").returncode == 1
    there.place.plant("annex", {place_of(key).encode(): SMALL[:-1]})
    assert repository.run_unchecked("annex", "fsck", "--fast", "--from", "store").returncode == 1
    assert b"[store]" not in repository.run_unchecked("annex", "whereis").stdout


@heavy
def test_an_unreachable_server_does_not_count_as_missing_content(hibali: Any, tmp_path: Path) -> None:
    with restartable_server("ssh", tmp_path) as server:
        add_site(hibali.home.config, "there", server.place)
        there = Transfers(hibali, server.place, tmp_path)
        repository = repository_of(there)
        add_remote(repository)
        key = add_file(repository, "a", SMALL)
        repository.run("annex", "copy", "--quiet", "--to", "store")
        with start_conversation(there) as conversation:
            assert conversation.request(f"CHECKPRESENT {key}") == f"CHECKPRESENT-SUCCESS {key}"
            server.stop()
            assert conversation.request(f"CHECKPRESENT {key}").startswith(f"CHECKPRESENT-UNKNOWN {key} far: ")
            assert conversation.request(f"REMOVE {key}").startswith(f"REMOVE-FAILURE {key} far: ")
            assert repository.run_unchecked("annex", "drop").returncode == 1
            assert (repository.folder / "a").read_bytes() == SMALL
            server.start()
            # over a connection of its own, without an error for git-annex
            assert conversation.request(f"CHECKPRESENT {key}") == f"CHECKPRESENT-SUCCESS {key}"
            server.stop()
            server.start()
            assert conversation.request(f"CHECKPRESENT {key}") == f"CHECKPRESENT-SUCCESS {key}"
        repository.run("annex", "drop", "--quiet")


def test_a_missing_location_is_not_an_empty_one(transfers_to: TransfersTo) -> None:
    there = transfers_to("local")
    with start_conversation(there) as conversation:
        assert conversation.request(f"CHECKPRESENT {KEY}").startswith(
            f"CHECKPRESENT-UNKNOWN {KEY} there:annex: the location"
        )
        assert conversation.request(f"REMOVE {KEY}").startswith(f"REMOVE-FAILURE {KEY} ")
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        assert conversation.request(f"CHECKPRESENT {KEY}") == f"CHECKPRESENT-FAILURE {KEY}"
        assert conversation.request(f"REMOVE {KEY}") == f"REMOVE-SUCCESS {KEY}"


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("nowhere:annex", "nowhere: no site with this name is configured"),
        ("/tmp/annex", "SITE:PATH"),
        ("annex", "SITE:PATH"),
        ("there:../../etc", "'..' would leave the root"),
        ("", "no location"),
        (":annex", "must be SITE:PATH"),
    ],
)
def test_only_configured_sites_are_accepted(location: str, words: str, local_there: Transfers) -> None:
    with start_conversation(local_there, location) as conversation:
        for request in ("INITREMOTE", "PREPARE"):
            answer = conversation.request(request)
            assert answer.startswith(f"{request}-FAILURE ")
            assert words in answer
        assert conversation.request("GETCOST") == "COST 200"
        assert conversation.request(f"CHECKPRESENT {KEY}").startswith("CHECKPRESENT-UNKNOWN ")


def test_unknown_settings_are_refused(local_there: Transfers) -> None:
    repository = repository_of(local_there)
    words = ["annex", "initremote", "store", "type=external", "externaltype=hibali", "encryption=none"]
    refused = repository.run_unchecked(*words, "location=there:annex", "colour=blue")
    assert refused.returncode == 1
    assert b"colour" in refused.stderr
    listed = repository.run(*words, "--whatelse")
    assert b"SITE:PATH" in listed


def test_each_reply_is_one_line_and_stdout_has_nothing_else(local_there: Transfers) -> None:
    with start_conversation(local_there) as conversation:
        assert conversation.request("EXTENSIONS INFO ASYNC GETGITREMOTENAME") == "EXTENSIONS INFO"
        assert conversation.request("CLAIMURL http://example.com/") == "UNSUPPORTED-REQUEST"
        assert conversation.request("NEVER HEARD OF") == "UNSUPPORTED-REQUEST"
        assert conversation.request("GETAVAILABILITY") == "AVAILABILITY LOCAL"
        assert conversation.request("GETCOST") == "COST 100"
        assert conversation.request("PREPARE") == "PREPARE-SUCCESS"
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        failed = conversation.request(f"TRANSFER STORE {KEY} /no such\tfile")
        assert failed.startswith(f"TRANSFER-FAILURE STORE {KEY} ")
        failed = conversation.request(f"TRANSFER RETRIEVE {KEY} {local_there.folder}/x")
        assert failed.startswith(f"TRANSFER-FAILURE RETRIEVE {KEY} there:annex: this content does not exist")
        assert conversation.request("CHECKPRESENT ../../etc/passwd").startswith(
            "CHECKPRESENT-UNKNOWN ../../etc/passwd "
        )
        assert conversation.request("WHEREIS nothing") == "WHEREIS-FAILURE"
        assert conversation.end() == b""
    with start_conversation(local_there) as conversation:
        assert conversation.request("TRANSFER STORE").startswith("ERROR ")
        assert conversation.process.wait(60) == 1


HOSTILE = ["-rf", "a b", "ä\udcff", "x" * 255, "$(id)", "a/ b/-c", "back\\slash", "tab\there"]
REFUSED = [
    "..",
    "../x",
    "a/../../x",
    "/etc/x",
    "a//b",
    ".hibali/lock",
    "a/.hibali/x",
    "." + "hibali-" + 32 * "0",
    "x" * 256,
]


def test_hostile_names_of_a_tree_stay_below_the_location(local_there: Transfers) -> None:
    there = local_there
    file = there.folder / "file"
    file.write_bytes(SMALL)
    with start_conversation(there) as conversation:
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        assert conversation.request("EXPORTSUPPORTED") == "EXPORTSUPPORTED-SUCCESS"
        for name in (*HOSTILE, *REFUSED):
            conversation.send(f"EXPORT {name}")
            word = conversation.request(f"TRANSFEREXPORT STORE {SMALL_KEY} {file}").split()[0]
            assert word == ("TRANSFER-SUCCESS" if name in HOSTILE else "TRANSFER-FAILURE"), name
        assert there.place.files("annex") == {os.fsencode(name): SMALL for name in HOSTILE}
        for name in HOSTILE:
            conversation.send(f"EXPORT {name}")
            assert (
                conversation.request(f"CHECKPRESENTEXPORT {SMALL_KEY}") == f"CHECKPRESENT-SUCCESS {SMALL_KEY}"
            )
            assert conversation.request(f"REMOVEEXPORT {SMALL_KEY}") == f"REMOVE-SUCCESS {SMALL_KEY}"
        there.place.plant("annex", {b"a/mine": b"not git-annex's"})
        assert conversation.request("REMOVEEXPORTDIRECTORY a") == "REMOVEEXPORTDIRECTORY-SUCCESS"
        assert there.place.files("annex") == {b"a/mine": b"not git-annex's"}
        there.place.remove("annex", b"a/mine")
        for _ in range(2):
            assert conversation.request("REMOVEEXPORTDIRECTORY a") == "REMOVEEXPORTDIRECTORY-SUCCESS"
    assert there.place.names("annex") == set()


@heavy
@pytest.mark.parametrize("word", ["local", "ssh", "s3", "sftp"])
def test_a_tree_is_exported_under_its_own_names(word: str, transfers_to: TransfersTo) -> None:
    there = transfers_to(word)
    repository = repository_of(there)
    add_remote(repository, "exporttree=yes")
    add_file(repository, "sub-01/anat/T1w.nii.gz", SMALL)
    add_file(repository, "two words", b"2")
    repository.run("annex", "export", "HEAD", "--to", "store")
    assert there.place.files("annex") == {b"sub-01/anat/T1w.nii.gz": SMALL, b"two words": b"2"}
    repository.run("mv", "sub-01", "sub-02")
    repository.run("rm", "--quiet", "two words")
    repository.run("commit", "--quiet", "-m", "another tree")
    repository.run("annex", "export", "HEAD", "--to", "store")
    assert there.place.files("annex") == {b"sub-02/anat/T1w.nii.gz": SMALL}
    assert not any(name.startswith((b"sub-01", b".hibali")) for name in there.place.names("annex"))
    repository.run("annex", "drop", "--force", "--quiet")
    repository.run("annex", "get", "--quiet")
    assert (repository.folder / "sub-02/anat/T1w.nii.gz").read_bytes() == SMALL


@heavy
@pytest.mark.parametrize("word", ["local", "ssh"])
def test_several_remotes_work_concurrently(word: str, transfers_to: TransfersTo) -> None:
    there = transfers_to(word)
    repository = repository_of(there)
    add_remote(repository)
    contents = {f"file {number}": SMALL[: 1000 + number] for number in range(24)}
    for name, content in contents.items():
        (repository.folder / name).write_bytes(content)
    repository.run("annex", "add", "--quiet", ".")
    repository.run("commit", "--quiet", "-m", "many")
    repository.run("annex", "copy", "--quiet", "--jobs=4", "--to", "store")
    assert sorted(there.place.files("annex").values()) == sorted(contents.values())
    repository.run("annex", "drop", "--quiet", "--jobs=4")
    repository.run("annex", "get", "--quiet", "--jobs=4")
    repository.run("annex", "fsck", "--quiet", "--jobs=4")


@heavy
@pytest.mark.parametrize("word", ["local", "ssh", "s3"])
def test_datalad_pushes_gets_and_drops_contents(word: str, transfers_to: TransfersTo) -> None:
    there = transfers_to(word)
    env = annex_environment(there.hibali.env, there.hibali.home.home)

    def datalad(folder: str, *words: str) -> None:
        ended = subprocess.run(
            ["datalad", *words],
            cwd=there.folder / folder,
            env=env,
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == 0, (words, ended.stdout, ended.stderr)

    datalad("", "create", "dataset")
    repository = AnnexRepository(there.folder / "dataset", env)
    (repository.folder / "a.bin").write_bytes(SMALL)
    datalad("dataset", "save", "-m", "a file")
    add_remote(repository, "autoenable=true")
    repository.run("init", "--quiet", "--bare", str(there.folder / "bare"))
    datalad(
        "dataset",
        "siblings",
        "add",
        "--name",
        "bare",
        "--url",
        str(there.folder / "bare"),
        "--publish-depends",
        "store",
    )
    datalad("dataset", "push", "--to", "bare")
    assert there.place.files("annex") == {place_of(repository.key_of("a.bin")).encode(): SMALL}
    datalad("", "clone", "bare", "clone")
    fetched = there.folder / "clone" / "a.bin"
    assert not fetched.exists()
    datalad("clone", "get", "a.bin")
    assert fetched.read_bytes() == SMALL
    datalad("clone", "drop", "a.bin")
    assert not fetched.exists()
    datalad("dataset", "drop", "a.bin")
    assert there.place.files("annex") == {place_of(repository.key_of("a.bin")).encode(): SMALL}


@each_kind
def test_a_file_of_an_exported_tree_is_renamed_at_the_site(word: str, transfers_to: TransfersTo) -> None:
    there = transfers_to(word)
    file = there.folder / "file"
    file.write_bytes(LARGE)
    with start_conversation(there) as conversation:
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        conversation.send("EXPORT a/b/old name")
        assert conversation.request(f"TRANSFEREXPORT STORE {KEY} {file}") == f"TRANSFER-SUCCESS STORE {KEY}"
        renamed = conversation.request(f"RENAMEEXPORT {KEY} a/c/new name")
        if word == "sftp":
            assert renamed == "UNSUPPORTED-REQUEST"
            return
        assert renamed == f"RENAMEEXPORT-SUCCESS {KEY}"
        assert there.place.files("annex") == {b"a/c/new name": LARGE}
        assert conversation.request(f"RENAMEEXPORT {KEY} elsewhere") == f"RENAMEEXPORT-FAILURE {KEY}"
        conversation.send("EXPORT a/c/new name")
        assert conversation.request(f"RENAMEEXPORT {KEY} ../outside") == f"RENAMEEXPORT-FAILURE {KEY}"
        assert conversation.request(f"RENAMEEXPORT {KEY} top") == f"RENAMEEXPORT-SUCCESS {KEY}"
        assert there.place.files("annex") == {b"top": LARGE}
    assert not [name for name in there.place.names("annex") if b".hibali" in name]


@heavy
@pytest.mark.parametrize("word", ["local", "ssh", "s3", "sftp", "url"])
def test_changes_of_a_tree_are_imported(word: str, transfers_to: TransfersTo) -> None:
    there = transfers_to(word)
    there.place.plant("annex", {b"sub/a.bin": SMALL, b"two words": b"2"})
    repository = repository_of(there)
    repository.run("commit", "--quiet", "--allow-empty", "-m", "nothing")
    branch = repository.run("branch", "--show-current").decode().strip()
    words = ["annex", "initremote", "store", "type=external", "externaltype=hibali", "encryption=none"]
    started = repository.run_unchecked(*words, "importtree=yes", "location=there:annex")
    if b"importtree" in started.stderr:
        pytest.skip("this git-annex does not import from external special remotes")
    assert started.returncode == 0, started.stderr

    def imported() -> dict[str, bytes]:
        repository.run("annex", "import", branch, "--from", "store")
        repository.run("merge", "--quiet", "--allow-unrelated-histories", "--no-edit", f"store/{branch}")
        names = repository.run("ls-files").decode().splitlines()
        return {name: (repository.folder / name).read_bytes() for name in names}

    assert imported() == {"sub/a.bin": SMALL, "two words": b"2"}
    there.place.plant("annex", {b"sub/a.bin": SMALL[::-1], b"three": b"3"})
    there.place.remove("annex", b"two words")
    assert imported() == {"sub/a.bin": SMALL[::-1], "three": b"3"}
    assert repository.run("annex", "find", "--in", "store").decode().splitlines() == ["sub/a.bin", "three"]

"""Test push, pull and verify at WebDAV servers, and servers that misbehave."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.end_to_end.test_overlap import TREE as OVERLAP_TREE
from tests.end_to_end.test_overlap import refused
from tests.support.backends import DavBackend, dav_servers
from tests.support.faulty_proxy import Exchange, FaultyHttpProxy
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers, failed
from tests.support.trees import Folder, Tree, make_tree, read_tree

LARGE = os.urandom((1 << 20) + 1) * 20
TREE: Tree = {
    b"large": LARGE,
    b"empty": b"",
    b"sub/two words & more": b"2",
    b"sub/folder": Folder(),
    "ä/ö".encode(): b"umlauts",
    **{b"many/%03d" % number: b"%d" % number * 100 for number in range(100)},
}
FILES = sum(isinstance(leaf, bytes) for leaf in TREE.values())


@pytest.fixture(params=dav_servers())
def there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Return Apache, and in the complete tests also a server that differs from it as much as the standard allows."""
    made = transfers_to(request.param)
    assert isinstance(made, Transfers)
    return made


@pytest.fixture
def apache(transfers_to: MakeTransfers) -> Transfers:
    """Return Apache only."""
    made = transfers_to("webdav")
    assert isinstance(made, Transfers)
    return made


def test_pushed_files_are_verified_and_nothing_is_sent_twice(there: Transfers) -> None:
    there.make(TREE)
    receipt = there.push().last
    assert (receipt["proof_moved"], receipt["files_moved"], receipt["files_failed"]) == ("digest", FILES, 0)
    assert there.place.tree("data") == read_tree(there.source)
    if there.place.word == "webdav":  # the other server stores neither times nor properties
        again = there.push().last
        assert (again["files_moved"], again["files_kept"], again["bytes_sent"]) == (0, FILES, 0)
    again = there.push("--checksum").last
    assert (again["files_moved"], again["files_kept"]) == (0, FILES)
    there.check_no_own_files()


def test_pulled_files_equal_those_on_the_server(there: Transfers) -> None:
    there.place.plant("data", TREE)
    back = there.folder / "back"
    receipt = there.pull(back).last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (FILES, "size")
    assert read_tree(back) == TREE
    assert there.pull(back).last["files_moved"] == 0
    names = [
        line["path"] for line in there.hibali("ls", "there:data", "--json", exit=0).lines if "path" in line
    ]
    assert names == ["empty", "large", "many", "sub", "ä"]


@pytest.mark.heavy
def test_pushed_files_are_pulled_with_their_time_and_digest(apache: Transfers) -> None:
    apache.make(TREE)
    (apache.source / "sub/two words & more").chmod(0o755)
    apache.push()
    back = apache.folder / "back"
    assert apache.pull(back).last["proof_moved"] == "recorded"
    assert read_tree(back) == TREE
    for name in ("large", "sub/two words & more"):
        mine, theirs = (apache.source / name).stat(), (back / name).stat()
        assert (mine.st_mtime_ns, mine.st_mode) == (theirs.st_mtime_ns, theirs.st_mode)


@pytest.mark.heavy
def test_a_name_that_the_server_cannot_store_is_refused_before_the_transfer(there: Transfers) -> None:
    names = (b"a?b", b"a#b", b"new\nline", b"\xff")
    there.make({b"plain": b"1"})
    there.push()  # now the server's limits are known
    there.make(dict.fromkeys(names, b"2"))
    if there.place.word == "webdav":
        there.push()
        assert there.there() == {b"plain": b"1", **dict.fromkeys(names, b"2")}
    else:
        assert there.push(exit=8).last["code"] == "unsafe-name"
        assert there.there() == {b"plain": b"1"}


@pytest.mark.heavy
def test_delete_removes_only_files_that_are_not_in_the_source(there: Transfers) -> None:
    there.make(TREE)
    there.push()
    shutil.rmtree(there.source / "many")
    (there.source / "sub/folder").rmdir()
    (there.source / "large").write_bytes(b"smaller")
    receipt = there.push("--delete", "--max-delete", "100%", "--checksum").last
    assert (receipt["files_moved"], receipt["files_deleted"]) == (1, 100)
    assert there.place.tree("data") == read_tree(there.source)
    there.check_no_own_files()


@pytest.mark.heavy
def test_a_tree_is_removed_completely_and_nothing_else(there: Transfers) -> None:
    there.make({b"a/b/c": b"1", b"a/d": b"2", b"e": b"3"})
    there.push()
    there.place.plant("data", {b"a/.hibali/journal": b"{}", b"kept/x": b"4"})
    there.hibali("mkdir", "there:data/new/folder", exit=0)
    assert b"new/folder" in there.place.names("data")
    assert there.hibali("cat", "there:data/a/b/c", exit=0).out == b"1"
    there.hibali("rm", "there:data/e", "--json", exit=0)
    there.hibali("rm", "there:data/a", "--recursive", "--yes", "--json", exit=0)
    assert there.there() == {b"kept/x": b"4"}
    assert b"a" not in there.place.names("data")
    there.check_no_own_files()


@pytest.mark.heavy
def test_verify_reads_the_stored_files(apache: Transfers) -> None:
    apache.make(TREE)
    apache.push()
    assert apache.verify().last["proof_tree"] == "digest"
    apache.verify(apache.source, "there:data")
    apache.place.corrupt("data", b"many/007")
    assert apache.verify(exit=6).last["exit"] == 6
    assert apache.push("--checksum").last["files_moved"] == 1
    assert apache.verify(apache.source, "there:data").last["exit"] == 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.heavy)])
def test_a_killed_push_is_resumed_by_the_same_command(apache: Transfers, number: int) -> None:
    apache.make({**TREE, **{b"more/%04d" % one: b"x" * 1000 for one in range(600)}})
    process = apache.hibali.start("push", apache.source, "there:data", env=apache.place.env)
    wait_for(lambda: len(apache.committed_files()) > 20)
    process.send_signal(number)
    process.wait(60)
    committed = len(apache.committed_files())
    assert committed < FILES + 600
    receipt = apache.push().last
    assert receipt["files_kept"] >= committed - 16
    assert receipt["files_moved"] + receipt["files_kept"] == FILES + 600
    assert apache.place.tree("data") == read_tree(apache.source)
    apache.check_no_own_files()


def test_a_full_server_is_reported_and_received_files_stay(apache: Transfers) -> None:
    root = apache.root
    apache.make({**{b"%03d" % number: b"x" * 100_000 for number in range(20)}, b"large": b"y" * 6_000_000})
    with small_filesystem(root, "size=1m"):
        answer = apache.push(exit=6)
        # The last file may fit although Apache's properties of it do not.
        assert {"no-space"} <= set(failed(answer).values()) <= {"no-space", "no-property"}
        assert 0 < answer.last["files_moved"] < 12
        assert len(apache.committed_files()) == answer.last["files_moved"]


def test_a_folder_in_place_of_a_file_is_never_replaced_without_a_request(there: Transfers) -> None:
    """Check that no MOVE replaces a folder, because it would delete its content (RFC 4918, 9.9.3)."""
    there.make({b"a": b"a file now", b"b": b"1"})
    there.place.plant("data", {b"a/precious": b"1", b"a/deep/er": b"2"})
    assert failed(there.push(exit=6)) == {b"a": "folder-in-the-way"}
    assert there.place.files("data") == {b"a/precious": b"1", b"a/deep/er": b"2", b"b": b"1"}
    there.push("--delete", "--max-delete", "100%", "--checksum")
    assert there.place.files("data") == {b"a": b"a file now", b"b": b"1"}


@pytest.fixture
def faulty(apache: Transfers) -> Iterator[Callable[[Callable[[Exchange], None]], FaultyHttpProxy]]:
    """Return a function that puts a proxy with a given fault in front of Apache."""
    made: list[FaultyHttpProxy] = []

    def start(fault: Callable[[Exchange], None]) -> FaultyHttpProxy:
        proxy = FaultyHttpProxy(int(apache.place.endpoint.rpartition(":")[2]), fault)
        made.append(proxy)
        config = apache.hibali.home.config
        config.write_text(config.read_text().replace(apache.place.endpoint, f"dav://127.0.0.1:{proxy.port}"))
        return proxy

    yield start
    for proxy in made:
        proxy.close()


def once_each(methods: set[str], name: str, most: int) -> Callable[[Exchange], None]:
    """Return a fault for the first requests of these methods about each name, at most `most` times in all."""
    seen: set[tuple[str, str]] = set()

    def fault(exchange: Exchange) -> None:
        key = (exchange.method, exchange.target)
        wanted = exchange.method in methods and ".hibali/" not in exchange.target
        if wanted and key not in seen and len(seen) < most:
            seen.add(key)
            setattr(exchange, name, True)

    return fault


@pytest.mark.parametrize(
    ("methods", "name", "most"),
    [
        ({"MOVE", "DELETE", "MKCOL", "PROPPATCH"}, "lose_answer", 100),
        pytest.param({"PUT", "MOVE", "DELETE", "MKCOL", "PROPFIND"}, "refuse", 100, marks=pytest.mark.heavy),
        pytest.param({"PUT"}, "flip_request", 4, marks=pytest.mark.heavy),
    ],
)
def test_requests_that_failed_are_retried(
    apache: Transfers, faulty: Any, methods: set[str], name: str, most: int
) -> None:
    tree: Tree = {b"a/%d" % number: b"%d" % number * 1000 for number in range(4)}
    apache.place.plant("data", {b"old": b"1", b"a/0": b"to be replaced"})
    apache.make(tree)
    faulty(once_each(methods, name, most))
    apache.push("--delete", "--max-delete", "100%")
    assert apache.there() == tree
    apache.check_no_own_files()


def test_a_site_is_added_checked_and_shown_without_its_login(apache: Transfers) -> None:
    hibali, place = apache.hibali, apache.place
    table = place.table()
    words, _ = json.JSONDecoder().raw_decode(table[table.index("[") :])
    hibali(
        "sites",
        "add",
        "lab",
        "--url",
        place.url,
        "--credentials-command",
        " ".join(map(quoted, words)),
        exit=0,
    )
    found = {line["kind"]: line for line in hibali("sites", "check", "lab", "--json", exit=0).lines}
    facts = found["site-check"]["facts"]
    assert (facts["writable"], facts["locks"], facts["properties"], facts["ranges"]) == (
        True,
        True,
        True,
        True,
    )
    assert facts["access"] == "with a login"
    assert place.names("") == set(), "files were left"
    secret = place.env["TEST_DAV_SECRET"].encode()
    make_tree(apache.folder / "one", {b"x": b"1"})
    pushed = hibali("push", apache.folder / "one", "lab:", "-v", exit=0)
    state = b"".join(path.read_bytes() for path in hibali.home.folder.rglob("*") if path.is_file())
    assert secret not in state + pushed.out + pushed.err
    denied = hibali("ls", "lab:", "--json", env={"TEST_DAV_SECRET": "wrong"}, exit=4)
    assert denied.last["code"] == "denied"


def quoted(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("dav://192.0.2.1/x", "must start with davs://"),
        ("davs://me:secret@example.org/x", "login"),
        ("davs:///x", "must name a host"),
    ],
)
def test_an_unsafe_url_is_rejected(hibali: Any, url: str, words: str) -> None:
    answer = hibali("sites", "add", "lab", "--url", url, "--no-check", "--json", exit=2)
    assert words in answer.last["message"]


@pytest.mark.parametrize(
    "protocol", ["gs", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("abfs", "swift"))]
)
def test_other_clouds_are_reported_as_unsupported(hibali: Any, protocol: str) -> None:
    hibali("sites", "add", "cloud", "--url", f"{protocol}://bucket", "--no-check", exit=0)
    answer = hibali("ls", "cloud:", "--json", exit=2)
    assert answer.last["code"] == "not-built"
    assert protocol in answer.last["message"]


def test_folders_of_one_webdav_server_are_compared(transfers_to: MakeTransfers) -> None:
    there = transfers_to("webdav")
    place = there.place
    assert isinstance(place, DavBackend)
    place.plant("data", OVERLAP_TREE)
    config = there.hibali.home.config
    table = place.table().replace("{name}", "again").replace(place.url, f"{place.url}/data/")
    config.write_text(f"{config.read_text()}[sites.again]\n{table.replace('127.0.0.1', 'localhost')}\n")
    before = place.versions("data")
    for source, target in (
        ("there:data/a", "there:data"),
        ("there:data", "there:data/b"),
        ("again:a", "there:data"),
        ("there:data", "again:new"),
        ("again:four", "there:data/four"),
    ):
        refused(there.hibali, "sync", source, target)
    assert place.versions("data") == before
    there.hibali("sync", "again:a", "there:data/a2", exit=0)

"""Test XRootD sites: checksums of the server, listings that it cuts off, names and redirections that mislead its client."""

from __future__ import annotations

import hashlib
import os
import shlex
import socketserver
import struct
import subprocess
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pytest

from hibali.config.settings import load_sites
from hibali.errors import HibaliError, RefusedError
from hibali.locations import read_location
from hibali_plugins.fsspec_sites.files import FsspecFiles, XRootDFiles, open_files
from hibali_plugins.fsspec_sites.xrootd import ThirdPartyCopy, XRootDServer
from tests.contracts.subjects import ROOT, SITE, Subject, subjects
from tests.plugins.fsspec_sites.test_fsspec import run
from tests.services.fixtures import START
from tests.services.fsspec_servers import CloudServer
from tests.services.serving import serve_in_thread
from tests.support.documentation_home import lines_to_type, page
from tests.support.payloads import put
from tests.support.trees import make_tree, read_tree
from transfers.stores.server.checksums import ALGORITHMS, Checksum

LARGE = os.urandom(9 << 20)
_STREAM, _ANSWER, _REDIRECT = b"\0\0", 0, 4004  # of XProtocol.hh
_PROTOCOL, _LOGIN, _OPEN = 3006, 3007, 3010


class _Redirecting(socketserver.StreamRequestHandler):
    """A server that redirects every open to a file of the client's machine, which the client follows; real servers do that only with plugins."""

    def handle(self) -> None:
        if len(self.rfile.read(20)) < 20:
            return
        self._answer(_STREAM, _ANSWER, struct.pack(">ii", 0x310, 1))  # the handshake: a data server
        while len(request := self.rfile.read(24)) == 24:
            stream, number, length = request[:2], *struct.unpack(">H16xi", request[2:])
            self.rfile.read(length)
            if number == _OPEN:
                url = f"file://localhost{self.server.path}"  # type: ignore[attr-defined]
                self._answer(stream, _REDIRECT, struct.pack(">i", -1) + url.encode())
            else:
                answers = {_PROTOCOL: struct.pack(">ii", 0x310, 1), _LOGIN: bytes(16)}
                self._answer(stream, _ANSWER, answers.get(number, b""))

    def _answer(self, stream: bytes, status: int, body: bytes) -> None:
        self.wfile.write(stream + struct.pack(">Hi", status, len(body)) + body)


def test_checksums_are_those_of_the_libraries() -> None:
    for algorithm in ALGORITHMS:
        checksum = Checksum(algorithm)
        checksum.update(b"some ")
        checksum.update(memoryview(b"content"))
        wanted = (
            f"{getattr(zlib, algorithm)(b'some content'):08x}"
            if hasattr(zlib, algorithm)
            else hashlib.new(algorithm, b"some content", usedforsecurity=False).hexdigest()
        )
        assert checksum.text == f"{algorithm}:{wanted}"
    assert Checksum("adler32").text == "adler32:00000001"


@pytest.mark.parametrize(("offered", "wanted"), [(["crc32", "adler32"], "adler32"), (["crc32"], "")])
def test_the_crc32_of_xrootd_is_not_that_of_zlib(offered: list[str], wanted: str) -> None:
    """It is that of POSIX cksum (XrdCksCalccrc32.cc), so every file would seem to be damaged."""
    server = SimpleNamespace(algorithms=lambda: offered)
    files = XRootDFiles(server, "/data", "grid", "", compares=True)
    assert (files.algorithm, files.compares) == (wanted, bool(wanted))


@pytest.fixture
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects("fsspec-xrootd", request, tmp_path, monkeypatch)


@pytest.fixture
def files(subject: Subject) -> FsspecFiles:
    """Return the files of the site, whose folder is empty."""
    return open_files(subject.location().site)


def without_read_back(subject: Subject) -> None:
    subject.config.write_text(subject.config.read_text() + "read_back = false\n")


@pytest.mark.heavy
def test_what_the_server_computes_replaces_reading_back_and_is_named(
    subject: Subject, tmp_path: Path
) -> None:
    without_read_back(subject)
    source = make_tree(tmp_path / "source", {b"a": b"1", b"empty": b"", b"large": LARGE})
    receipt = run(subject, "push", source, f"{SITE}:{ROOT}")
    assert (receipt["files_moved"], receipt["proof_moved"]) == (3, "claimed")


@pytest.mark.heavy
def test_a_file_that_differs_from_what_was_sent_is_not_committed(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server stores another byte than it received."""
    without_read_back(subject)
    store = subject.fresh()
    write = XRootDServer.pipe_file

    def damaged(server: XRootDServer, path: str, content: bytes, **more: Any) -> None:
        write(server, path, content.replace(b"precious", b"previous"), **more)

    monkeypatch.setattr(XRootDServer, "pipe_file", damaged)
    (result,) = put(store, {b"a": b"precious"})
    assert result.problem is not None
    assert (result.problem.code, result.problem.retryable) == ("corrupt", True)
    assert subject.files() == {}


@pytest.mark.heavy
def test_a_pull_finds_damage_since_the_server_computed_its_checksum(subject: Subject, tmp_path: Path) -> None:
    subject.plant({b"a": b"1" * 100, b"large": LARGE})
    assert run(subject, "pull", f"{SITE}:{ROOT}", tmp_path / "one")["proof_moved"] == "claimed"
    subject.backend.corrupt(ROOT, b"large")
    run(subject, "pull", f"{SITE}:{ROOT}", tmp_path / "two", code=6)
    assert not (tmp_path / "two" / "large").exists()
    assert (tmp_path / "two" / "a").exists()


@pytest.mark.heavy
def test_a_listing_that_the_server_cuts_off_is_complete(subject: Subject) -> None:
    """A server that lists names with their properties stops at a link to itself."""
    subject.plant({b"%d" % number: b"1" for number in range(60)})
    folder = subject.backend.at(ROOT)  # type: ignore[attr-defined]
    (folder / "loop").symlink_to("loop")
    subject.plant({b"%d" % number: b"1" for number in range(60, 120)})
    short = subprocess.run(
        ["xrdfs", subject.backend.endpoint, "ls", "-l", f"/{folder.parent.parent.name}/{ROOT}"],
        capture_output=True,
        check=True,
    )
    assert len(short.stdout.splitlines()) < 120, (
        "the server no longer does, so names need not be listed twice"
    )
    assert sum(name.isdigit() for name in subject.listed()) == 120


@pytest.mark.heavy
def test_nothing_is_deleted_because_of_links_to_nothing(subject: Subject, tmp_path: Path) -> None:
    """The disk to which the links of a dataset lead may be away."""
    names = [b"%d" % number for number in range(5)]
    subject.plant({b"pool/" + name: name for name in names} | {b"study/real": b"1"})
    pool = subject.backend.at(ROOT) / "pool"  # type: ignore[attr-defined]
    for name in names:
        (pool.parent / "study" / name.decode()).symlink_to(pool / name.decode())
    run(subject, "pull", f"{SITE}:{ROOT}/study", tmp_path / "back")
    kept = read_tree(tmp_path / "back")
    assert len(kept) == 6
    pool.rename(pool.with_name("away"))
    failed = run(subject, "pull", f"{SITE}:{ROOT}/study", tmp_path / "back", "--delete", code=6)
    assert failed["files_deleted"] == 0
    assert read_tree(tmp_path / "back") == kept


@pytest.mark.heavy
def test_nothing_is_deleted_because_of_a_listing_by_webdav(
    subject: Subject, xrootd: CloudServer, tmp_path: Path
) -> None:
    """It is cut off at a link to itself, which WebDAV cannot tell."""
    subject.plant({b"%d" % number: b"1" for number in range(9)})
    folder = subject.backend.at(ROOT)  # type: ignore[attr-defined]
    kept = make_tree(tmp_path / "kept", read_tree(folder))
    (folder / "loop").symlink_to("loop")
    url = f"{xrootd.web.replace('http', 'dav')}/{folder.relative_to(xrootd.root)}"
    table = f'\n[sites.web]\nkind = "url"\nurl = "{quote(url, safe=":/")}"\n'
    subject.config.write_text(subject.config.read_text() + table)
    assert run(subject, "pull", "web:", kept, "--delete", code=8)["code"] == "listing-unproven"
    assert run(subject, "sync", "web:", kept, "--delete", code=8)["code"] == "listing-unproven"
    assert len(read_tree(kept)) == 9


@pytest.mark.heavy
def test_a_metalink_is_a_file(subject: Subject, tmp_path: Path) -> None:
    """The client would otherwise read what such a file names, which is here a file of this machine."""
    secret = tmp_path / "secret"
    secret.write_text("planted-secret")
    link = (
        '<?xml version="1.0"?><metalink xmlns="urn:ietf:params:xml:ns:metalink"><file name="x">'
        f"<url>file://localhost{secret}</url></file></metalink>"
    ).encode()
    subject.plant({b"x.meta4": link, b"x.metalink": link})
    run(subject, "pull", f"{SITE}:{ROOT}", tmp_path / "pulled")
    assert (tmp_path / "pulled" / "x.meta4").read_bytes() == link
    assert (tmp_path / "pulled" / "x.metalink").read_bytes() == link


@pytest.mark.heavy
def test_names_that_the_protocol_misreads_are_refused(
    subject: Subject, files: FsspecFiles, tmp_path: Path
) -> None:
    subject.plant({b"a": b"1", b"a?b": b"22", b"folder/b\nc": b"3"})
    with pytest.raises(RefusedError):
        files.stat(f"{ROOT}/a?b".encode())
    with pytest.raises(HibaliError) as problem:
        files.children(f"{ROOT}/folder".encode())
    assert problem.value.code == "listing-violation"
    ended = run(subject, "pull", f"{SITE}:{ROOT}", tmp_path / "pulled", code=6)
    assert ended["files_moved"] <= 1
    source = make_tree(tmp_path / "source", {b"a?b": b"1"})
    run(subject, "push", source, f"{SITE}:{ROOT}", code=8)


@pytest.mark.heavy
def test_names_with_a_number_sign_are_stored(subject: Subject, tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {b"a#b": b"1", b"#": b"22", b"c/#d#/e": b"333"})
    run(subject, "push", source, f"{SITE}:{ROOT}")
    run(subject, "pull", f"{SITE}:{ROOT}", tmp_path / "back")
    assert read_tree(tmp_path / "back") == read_tree(source)


@pytest.mark.heavy
def test_a_replaced_file_is_read_as_it_is_now(subject: Subject, files: FsspecFiles) -> None:
    """A handle that stays open shows the old file."""
    subject.plant({b"a": b"old"})
    path = f"{ROOT}/a".encode()
    assert files.read(path, 0, 10) == b"old"
    files.put(f"{ROOT}/b".encode(), b"newer")
    files.move(f"{ROOT}/b".encode(), path)
    assert files.read(path, 0, 10) == b"newer"


@pytest.mark.heavy
def test_other_accounts_can_read_what_is_written(subject: Subject, files: FsspecFiles) -> None:
    files.make_folder(b"made")
    files.put(b"made/a", b"1")
    folder = subject.backend.at("made")  # type: ignore[attr-defined]
    assert [path.stat().st_mode & 0o777 for path in (folder, folder / "a")] == [0o755, 0o644]


@pytest.mark.heavy
def test_one_folder_by_two_spellings_is_one_folder(subject: Subject) -> None:
    """Else `sync --delete` between them would remove what it just copied."""
    url = str(subject.location().site.own.url)
    other = url.replace("root://", "root://me@").replace("127.0.0.1", "LOCALHOST") + "//"
    table = f'\n[sites.again]\nkind = "fsspec"\nfsspec.url = "{other}"\n'
    subject.config.write_text(subject.config.read_text() + table)
    subject.plant({b"a": b"1"})
    ended = run(subject, "sync", f"{SITE}:{ROOT}", f"again:{ROOT}", code=8)
    assert "overlap" in str(ended)


@pytest.mark.heavy
@pytest.mark.usefixtures("xrootd")
def test_a_redirection_to_a_file_of_this_machine_is_refused(hibali_home: Any, tmp_path: Path) -> None:
    """Else a server could get any file of the account, or have one written."""
    secret, missing = tmp_path / "secret", tmp_path / "missing"
    secret.write_text("planted-secret")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Redirecting) as server:
        server.daemon_threads = True
        thread = serve_in_thread(server)
        url = f"root://127.0.0.1:{server.server_address[1]}//data"
        hibali_home.config.write_text(f'version = 1\n[sites.bad]\nkind = "fsspec"\nfsspec.url = "{url}"\n')
        hibali_home.config.chmod(0o600)
        found = open_files(read_location("bad:", load_sites(str(hibali_home.config))).site)
        server.path = str(secret)  # type: ignore[attr-defined]
        with pytest.raises(HibaliError) as problem:
            found.read(b"a", 0, 5)
        assert problem.value.code == "wrong-endpoint"
        with pytest.raises(HibaliError):
            found.put(b"a", b"other")
        assert secret.read_text() == "planted-secret"
        server.path = str(missing)  # type: ignore[attr-defined]
        with pytest.raises(HibaliError) as problem:
            found.put(b"a", b"other")
        assert problem.value.code == "wrong-endpoint"
        assert not missing.exists() or missing.read_bytes() == b""
        server.shutdown()
        thread.join()


@pytest.mark.heavy
@pytest.mark.parametrize("ends", ["source", "target"])
def test_a_third_party_copy_reaches_no_file_of_this_machine(
    subject: Subject, xrootd: CloudServer, tmp_path: Path, ends: str
) -> None:
    """A redirection to one is followed by the client, which then finds that it is no server."""
    subject.plant({b"a": b"1"})
    real = f"{xrootd.url}//{subject.backend.at(ROOT).relative_to(xrootd.root)}"  # type: ignore[attr-defined]
    secret, missing = tmp_path / "secret", tmp_path / "missing"
    secret.write_text("planted-secret")
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), _Redirecting) as server:
        server.daemon_threads = True
        thread = serve_in_thread(server)
        url = f"root://127.0.0.1:{server.server_address[1]}//data/b"
        for path in (secret, missing):
            server.path = str(path)  # type: ignore[attr-defined]
            urls = (url, f"{real}/copy") if ends == "source" else (f"{real}/a", url)
            with pytest.raises(OSError):  # noqa: PT011  # the number is the client's
                ThirdPartyCopy(*urls, 1, threading.Event()).run()
        server.shutdown()
        thread.join()
    assert secret.read_text() == "planted-secret"
    assert not missing.exists() or missing.read_bytes() == b""
    assert subject.files().get(b"copy", b"") == b""


@pytest.mark.heavy
def test_the_commands_of_the_page_work(subject: Subject, xrootd: CloudServer, tmp_path: Path) -> None:
    """The second server is the same one by WebDAV, as an origin of a Pelican federation is."""
    study = Path(xrootd.root) / subject.backend.table().rpartition("/")[2].rstrip('"\n')
    make_tree(study, {b"raw/a": b"1"})
    make_tree(tmp_path / "results", {b"a": b"1", b"b/c": b"22"})
    replaced = {
        "root://store.example.org//data/study": f"{xrootd.url}//{study.name}",
        "davs://origin.example.org:8443/study": f"{xrootd.web.replace('http', 'dav')}/{study.name}",
    }
    lines = lines_to_type(page("xrootd"))
    assert len(lines) == 13
    for line in lines:
        for shown, actual in replaced.items():
            line = line.replace(shown, actual)  # noqa: PLW2901
        ended = subprocess.run(
            [*START, *shlex.split(line)[1:]],
            cwd=tmp_path,
            env=subject.environment(),
            capture_output=True,
            timeout=100,
            check=False,
        )
        assert ended.returncode == 0, f"{line}\n{ended.stdout.decode()}{ended.stderr.decode()}"
    assert (tmp_path / "raw" / "a").read_bytes() == b"1"
    assert (tmp_path / "copy" / "b" / "c").read_bytes() == b"22"


def test_a_federation_of_pelican_is_refused_with_what_to_do(hibali: Any) -> None:
    for url in ("osdf:///ospool/a", "pelican://osg-htc.org/ospool/a"):
        assert b"--url davs://" in hibali("sites", "add", "two", "--fsspec", url, exit=2).err


@pytest.mark.parametrize("word", ["roots", "xroot"])
def test_another_word_for_xrootd_adds_no_site(hibali: Any, word: str) -> None:
    refused = hibali("sites", "add", "two", "--fsspec", f"{word}://store.example.org//data", exit=2)
    assert b"root://HOST//PATH" in refused.err
    assert not hibali.home.config.exists() or b"two" not in hibali.home.config.read_bytes()


@pytest.mark.heavy
def test_packs_are_kept_although_there_is_no_lock(subject: Subject, tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {b"a": b"1", b"sub/b": b"2"})
    assert run(subject, "push", source, f"{SITE}:{ROOT}", "--pack")["files_moved"] == 2
    run(subject, "pull", f"{SITE}:{ROOT}", tmp_path / "back")
    assert read_tree(tmp_path / "back") == read_tree(source)

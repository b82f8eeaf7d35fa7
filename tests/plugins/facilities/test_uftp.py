"""Test that contents of files at a UNICORE site go over UFTP, with hibali's commands, and survive kills, cuts, damage and hostile servers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import HibaliError
from hibali.events import ignore
from hibali.http.login import Authorization
from hibali.request_limits import RequestLimit
from hibali_plugins.facilities.unicore import uftp as client
from tests.plugins.facilities.test_data import CONTENTS, digest_of, make_tree, read_tree
from tests.services.rest import Request
from tests.services.session import REPOSITORY
from tests.services.uftp import UftpSite
from tests.services.unicore import Unicore
from tests.support.requirements import require_prepared
from tests.support.rest_sites import NAME, SiteCommands, open_site
from transfers.engine.routes.base import MAX_ATTEMPTS

MIB = 1024 * 1024
SIZE = 72 * MIB


class Place(SiteCommands):
    """hibali with a UNICORE site and its UFTP server, behind a relay."""

    def __init__(self, hibali: Any, unicore: Unicore, uftp: UftpSite, table: str) -> None:
        head = "[sites.far.unicore]\n"
        super().__init__(hibali, table.replace(head, head + uftp.setting))
        self.unicore = unicore
        self.uftp = uftp
        self.relay, self.auth = uftp.relay, uftp.auth


@pytest.fixture
def place(request: pytest.FixtureRequest, unicore: Unicore, uftp: UftpSite) -> Place:
    table = open_site(request, "unicore").table()  # sets variables that hibali inherits
    return Place(request.getfixturevalue("hibali"), unicore, uftp, table)


@pytest.fixture
def direct(uftp: UftpSite) -> Iterator[client.Uftp]:
    """Return the client itself."""
    login = Authorization(lambda _: f"Bearer {uftp.auth.token}")
    uftp.auth.accepts = lambda token: token == uftp.auth.token
    found = client.Uftp(uftp.url, "far", login, RequestLimit("far", 0, 0), ignore)
    yield found
    found.close()


def make_large(path: Path, size: int = SIZE) -> str:
    path.parent.mkdir(parents=True)
    path.write_bytes(os.urandom(size))
    return digest_of(path)


def contents_over_rest(unicore: Unicore) -> int:
    """Return the bytes of users' files that the API sent and received."""
    moved = [*unicore.sent.items(), *unicore.received.items()]
    return sum(size for name, size in moved if ".hibali/" not in name)


def test_contents_go_over_uftp_and_all_else_by_the_api(place: Place, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {**CONTENTS, "large": os.urandom(20 * MIB + 5)})
    contents = read_tree(tree)
    answer = place.hibali("push", tree, f"{NAME}:data/set", exit=0)
    assert b"without encryption" in answer.err
    assert read_tree(place.unicore.home / "data/set") == contents
    assert {
        path.stat().st_mode & 0o777 for path in (place.unicore.home / "data/set").rglob("*") if path.is_file()
    } == {0o600}
    assert place.relay.bytes["up"] == sum(map(len, contents.values()))
    assert place.relay.bytes["down"] == 0, "the server hashed what was written"
    place.hibali("push", tree, f"{NAME}:data/set", exit=0)
    assert place.relay.bytes["up"] == sum(map(len, contents.values())), "nothing is sent twice"
    place.hibali("pull", f"{NAME}:data/set", tmp_path / "back", exit=0)
    assert read_tree(tmp_path / "back") == contents
    assert place.relay.bytes["down"] == sum(map(len, contents.values()))
    place.hibali("verify", tree, f"{NAME}:data/set", exit=0)
    place.hibali("rm", "--recursive", "--yes", f"{NAME}:data/set", exit=0)
    assert contents_over_rest(place.unicore) == 0


def test_small_files_need_no_requests_of_the_api(place: Place, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {f"scan{number}": os.urandom(1000) for number in range(30)})
    asked: list[str] = []

    def watch(request: Request, when: str) -> bool:
        if when == "before" and re.search(r"/data/(scan|\.hibali-)|/rename", request.path):
            asked.append(request.path)
        return False

    place.unicore.watch = watch
    place.hibali("push", tree, f"{NAME}:data", exit=0)
    assert len(asked) <= 4 + 8, "hibali's own files, and for each session the first file of the folder"
    asked.clear()
    os.utime(place.unicore.home / "data/scan0", (0, 0))
    place.hibali("pull", f"{NAME}:data", tmp_path / "back", exit=0)
    assert asked == []
    assert read_tree(tmp_path / "back") == read_tree(tree)


def test_names_that_the_server_would_misread_go_by_the_api(place: Place, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {"ends with a space ": b"1", "dir /a": b"2", "plain": b"3"})
    place.hibali("push", tree, f"{NAME}:data", exit=0)
    assert read_tree(place.unicore.home / "data") == read_tree(tree)
    place.hibali("pull", f"{NAME}:data", tmp_path / "back", exit=0)
    assert read_tree(tmp_path / "back") == read_tree(tree)
    assert b"ends with a space" not in b"".join(place.relay.lines)


@pytest.mark.heavy
def test_a_large_file_uses_several_sessions(place: Place, tmp_path: Path) -> None:
    digest = make_large(tmp_path / "source/large")
    seen: list[int] = []
    place.relay.damage = lambda _, content: seen.append(place.relay.open) or content
    place.hibali("push", tmp_path / "source/large", f"{NAME}:data/", exit=0)
    assert max(seen) > 2
    seen.clear()
    place.hibali("pull", f"{NAME}:data/large", f"{tmp_path}/target/", exit=0)
    assert max(seen) > 2
    assert digest_of(tmp_path / "target/large") == digest


@pytest.mark.heavy
def test_the_connections_of_the_site_limit_the_sessions(place: Place, tmp_path: Path) -> None:
    place.set_table(f"{place.table}connections = 2\n")
    digest = make_large(tmp_path / "source/large")
    seen: list[int] = []
    place.relay.damage = lambda _, content: seen.append(place.relay.open) or content
    place.hibali("push", tmp_path / "source/large", f"{NAME}:data/", exit=0)
    place.hibali("pull", f"{NAME}:data/large", f"{tmp_path}/target/", exit=0)
    assert max(seen) == 2
    assert digest_of(tmp_path / "target/large") == digest


@pytest.mark.heavy
def test_fewer_sessions_are_used_where_the_server_allows_fewer(place: Place, tmp_path: Path) -> None:
    place.auth.sessions = 2
    digest = make_large(tmp_path / "source/large")
    place.hibali("push", tmp_path / "source/large", f"{NAME}:data/", exit=0)
    assert digest_of(place.unicore.home / "data/large") == digest


@pytest.mark.heavy
def test_a_large_file_resumes_after_kills(place: Place, tmp_path: Path) -> None:
    large, target = tmp_path / "source/large", tmp_path / "target"
    digest = make_large(large)
    moved = place.relay.bytes
    # slow enough that kills come in the middle
    place.relay.damage = lambda _, content: time.sleep(0.002) or content
    for direction, words in (
        ("up", ("push", large, f"{NAME}:data/")),
        ("down", ("pull", f"{NAME}:data/large", f"{target}/")),
    ):
        for step in (1, 2):
            enough = step * SIZE // 3
            assert place.kill_when(lambda: moved[direction] >= enough, *words) == -signal.SIGKILL  # noqa: B023
            assert not (place.unicore.home / "data/large").exists() or direction == "down"
            assert not (target / "large").exists()
        place.hibali(*words, exit=0)
        # the parts under way at each kill are sent again
        assert SIZE <= moved[direction] <= SIZE + 2 * 64 * MIB
    assert digest_of(place.unicore.home / "data/large") == digest_of(target / "large") == digest
    assert moved["up"] < 2 * SIZE + 32 * MIB, "what was complete was not sent again"


@pytest.mark.heavy
def test_a_cut_connection_is_replaced(place: Place, tmp_path: Path) -> None:
    digest = make_large(tmp_path / "source/large")
    once: list[int] = []

    def break_once(_: str, content: bytes) -> bytes:
        if place.relay.bytes.total() > SIZE // 2 and not once:
            once.append(1)
            raise OSError
        return content

    place.relay.damage = break_once
    place.hibali("push", tmp_path / "source/large", f"{NAME}:data/", exit=0)
    assert once
    once.clear()
    place.hibali("pull", f"{NAME}:data/large", f"{tmp_path}/target/", exit=0)
    assert once
    assert digest_of(tmp_path / "target/large") == digest


def written_in(uftp: UftpSite) -> int:
    """Return how often a small file was written: an empty file is made first."""
    return b"".join(uftp.relay.lines).count(b"\nSTOR ") // 2


def put_small(direct: client.Uftp, home: Path, act: Callable[[], None] = lambda: None) -> None:
    """Replace the file `final` of other content."""
    (home / "final").write_bytes(b"old")
    name, path = bytes(home / ".hibali-partial"), bytes(home / "final")
    found = direct.put_renamed(name, path, b"new content", lambda *_: act())
    assert found.size == len(b"new content")


@pytest.mark.parametrize("reply", [True, False], ids=["the reply is lost", "it comes late"])
def test_a_rename_without_a_reply_is_awaited_and_not_repeated(
    direct: client.Uftp, uftp: UftpSite, unicore: Unicore, *, reply: bool
) -> None:
    home = unicore.home
    late = threading.Timer(1, lambda: (home / ".hibali-partial").rename(home / "final"))
    asked: list[bytes] = []

    def ask(lines: bytes) -> bytes:
        if b"RNTO" in lines:
            asked.append(lines)
            if not reply:
                late.start()
                raise OSError
        return lines

    def answer(line: bytes) -> bytes:
        if reply and len(asked) == 1 and line == b"200 OK\n":
            asked.append(line)
            raise OSError
        return line

    uftp.relay.ask, uftp.relay.answer = ask, answer
    put_small(direct, home)
    assert (home / "final").read_bytes() == b"new content"
    assert written_in(uftp) == 1
    assert len(asked) == 1 + reply


def test_a_rename_whose_outcome_stays_unknown_is_an_error_and_not_repeated(
    direct: client.Uftp, uftp: UftpSite, unicore: Unicore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_RENAME_SECONDS", 1, raising=False)

    def cut(lines: bytes) -> bytes:
        if b"RNTO" in lines:
            raise OSError
        return lines

    uftp.relay.ask = cut
    with pytest.raises(HibaliError) as raised:
        put_small(direct, unicore.home)
    assert raised.value.code == "connection-lost"
    assert written_in(uftp) == 1
    assert (unicore.home / "final").read_bytes() == b"old"
    assert (unicore.home / ".hibali-partial").read_bytes() == b"new content", "as it may still be renamed"


def test_a_rename_has_time_of_its_own(direct: client.Uftp, uftp: UftpSite, unicore: Unicore) -> None:
    approved: list[int] = []

    def take_all_time() -> None:
        approved.append(1)
        for each in direct._sessions:
            each._until = 0

    def slowly(lines: bytes) -> bytes:
        if b"RNTO" in lines:
            time.sleep(0.2)
        return lines

    uftp.relay.ask = slowly
    put_small(direct, unicore.home, take_all_time)
    assert (approved, len(uftp.auth.issued)) == ([1], 1)


def test_a_session_that_is_opened_while_all_are_closed_writes_nothing(
    direct: client.Uftp, uftp: UftpSite, unicore: Unicore
) -> None:
    opening, closed = threading.Event(), threading.Event()

    def wait_at_login(line: bytes) -> bytes:
        if line.startswith(b"230 "):
            opening.set()
            closed.wait(60)
        return line

    uftp.relay.answer = wait_at_login
    with ThreadPoolExecutor(1) as pool:
        written = pool.submit(direct.write, bytes(unicore.home / "late"), 0, b"1", create=True)
        assert opening.wait(60)
        direct.close()
        closed.set()
        with pytest.raises(HibaliError, match="closed"):
            written.result()
    assert not (unicore.home / "late").exists()
    assert direct._sessions == set()


def test_no_part_is_submitted_after_the_end(direct: client.Uftp) -> None:
    direct.close()
    for _ in range(client.SESSIONS + 1):  # a place that is not given back is waited for without end
        with pytest.raises(HibaliError, match="closed"):
            direct.submit(lambda: None)


def test_no_more_connections_wait_than_the_server_queues(
    direct: client.Uftp, uftp: UftpSite, unicore: Unicore
) -> None:
    (unicore.home / "a").write_bytes(b"1")
    greeted: list[int] = []
    waiting: list[int] = []

    def slowly(line: bytes) -> bytes:
        if line.startswith(b"220 "):
            waiting.append(uftp.relay.open - len(greeted))
            time.sleep(0.3)
            waiting.append(uftp.relay.open - len(greeted))
            greeted.append(1)
        return line

    uftp.relay.answer = slowly
    uftp.relay.damage = lambda _, content: time.sleep(1) or content
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: direct.read(bytes(unicore.home / "a"), 0, 1), range(8)))
    assert len(greeted) > 2
    assert max(waiting) == 2


def test_a_refused_file_ends_no_other_session(direct: client.Uftp, uftp: UftpSite, unicore: Unicore) -> None:
    path = bytes(unicore.home / "a")
    (unicore.home / "a").write_bytes(b"1")
    uftp.relay.damage = lambda _, content: time.sleep(0.5) or content
    with ThreadPoolExecutor(4) as pool:
        for most in (4, 5):
            assert {content for content, _ in pool.map(lambda _: direct.read(path, 0, 1), range(4))} == {b"1"}
            assert len(uftp.auth.issued) <= most
            with pytest.raises(HibaliError, match="does not exist"):
                direct.read(path + b"-missing", 0, 1)


def test_an_auth_server_elsewhere_cannot_name_this_machine(
    direct: client.Uftp, uftp: UftpSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(direct, "_service", "https://192.0.2.1/")
    anywhere = "0.0.0.0"  # noqa: S104  # here it is an address to connect to
    for host in ("127.0.0.1", "localhost", anywhere, "127.1", "2130706433", "::ffff:127.0.0.1"):
        uftp.auth.address = (host, uftp.relay.address[1])
        with pytest.raises(HibaliError) as raised:
            direct.version()
        assert raised.value.code == "unsafe-address"
    assert uftp.relay.lines == []


@pytest.mark.heavy
def test_a_hash_ends_in_a_time_that_fits_the_size(
    direct: client.Uftp, uftp: UftpSite, unicore: Unicore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (unicore.home / "a").write_bytes(b"1")
    monkeypatch.setattr(client, "RESPONSE_SECONDS", 0.5, raising=False)
    uftp.relay.answer = lambda line: line.replace(b"213 ", b"213-")  # the lines of a server that still hashes
    began = time.monotonic()
    with pytest.raises(HibaliError, match="cannot be reached"):
        direct.digest(bytes(unicore.home / "a"), 1)
    assert time.monotonic() - began < 45


@pytest.mark.heavy
def test_a_file_that_becomes_shorter_while_it_is_read_is_not_waited_for(place: Place, tmp_path: Path) -> None:
    make_tree(place.unicore.home / "data", {"a": b"12345"})
    once: list[int] = []

    def shorten(lines: bytes) -> bytes:
        if b"RETR" in lines:
            (place.unicore.home / "data/a").write_bytes(b"123")
        return lines

    def tell_old_size(line: bytes) -> bytes:
        if once or not line.startswith(b" -"):
            return line
        once.append(1)
        return re.sub(rb"^ (\S+) 3 ", rb" \1 5 ", line)

    place.relay.ask, place.relay.answer = shorten, tell_old_size
    began = time.monotonic()
    answer = place.hibali("pull", f"{NAME}:data", tmp_path / "back", "--json", exit=6)
    assert "source-changed" in {line.get("code") for line in answer.lines}
    assert once
    assert time.monotonic() - began < 60


@pytest.mark.heavy
@pytest.mark.parametrize("size", [1000, 20 * MIB])
def test_damaged_bytes_are_found(place: Place, tmp_path: Path, size: int) -> None:
    digest = make_large(tmp_path / "source/scan", size)
    place.relay.damage = lambda _, content: bytes([content[0] ^ 1]) + content[1:]
    answer = place.hibali("push", tmp_path / "source/scan", f"{NAME}:data/", "--json")
    assert answer.exit == 6, answer
    assert not (place.unicore.home / "data/scan").exists()
    place.relay.damage = lambda _, content: content
    place.hibali("push", tmp_path / "source/scan", f"{NAME}:data/", exit=0)
    assert digest_of(place.unicore.home / "data/scan") == digest
    place.relay.damage = lambda _, content: bytes([content[0] ^ 1]) + content[1:]
    answer = place.hibali("pull", f"{NAME}:data/scan", f"{tmp_path}/target/", "--json")
    assert answer.exit in {5, 6}, answer
    assert not (tmp_path / "target/scan").exists()
    place.relay.damage = lambda _, content: content
    place.hibali("pull", f"{NAME}:data/scan", f"{tmp_path}/target/", exit=0)
    assert digest_of(tmp_path / "target/scan") == digest


@pytest.mark.heavy
def test_a_refused_secret_and_a_missing_server_are_named(place: Place, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {"a": b"1"})
    place.auth.secret = lambda secret: "planted" + secret[7:]
    denied = place.hibali("push", tree, f"{NAME}:data", "--json", exit=4)
    assert denied.last["code"] == "uftp-denied"
    place.auth.secret = lambda secret: secret
    place.relay.cut()
    gone = place.hibali("push", tree, f"{NAME}:data", "--json", exit=5)
    assert gone.last["code"] == "unreachable"
    place.set_table(place.table.replace("/JUDAC", "/OTHER"))
    unknown = place.hibali("push", tree, f"{NAME}:data", "--json", exit=4)
    assert (unknown.last["code"], "No such server: 'OTHER'" in unknown.last["message"]) == (
        "uftp-denied",
        True,
    )
    place.auth.refused.clear()
    assert not (place.unicore.home / "data/a").exists()


def test_secrets_are_in_no_output_and_no_file(place: Place, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {"a": b"1"})
    # the server repeats the secret in an error
    place.relay.answer = lambda line: re.sub(
        rb"^213 SHA.*", lambda _: b"500 " + place.auth.issued[-1].encode(), line
    )
    answer = place.hibali("push", tree, f"{NAME}:data", "--json")
    assert answer.exit == 6, answer
    secret = place.auth.issued[-1].encode()
    assert any(secret in line for line in place.relay.lines)
    assert secret not in answer.out + answer.err
    kept = [path for path in place.hibali.home.folder.rglob("*") if path.is_file()]
    assert not [path for path in kept if secret in path.read_bytes()]


@pytest.mark.parametrize(
    ("pattern", "answer"),
    [
        *(
            pytest.param(*each, marks=pytest.mark.heavy)
            for each in (
                (rb"^220 .*", b"220 ProFTPD\n"),
                (rb"^220 .*", b"x" * 100_000),
                (rb"^331 .*", b"nonsense\n"),
                (rb"^229 .*", b"229 (|||99999|)\n"),
                (rb"^ HASH .*", b" HASH MD5*\n"),
            )
        ),
        (rb"^213 SHA.*", b"213 SHA-256 0-0 none\n"),
        (rb"^ (-\S+) [0-9]+ ", b" -rw- -1 "),
        (rb"^226 .*", b"226-\n" * 200_000),
    ],
)
def test_hostile_answers_end_with_an_error(
    place: Place, tmp_path: Path, pattern: bytes, answer: bytes
) -> None:
    tree = make_tree(tmp_path / "tree", {"a": b"1"})
    place.hibali("push", tree, f"{NAME}:data", exit=0)
    place.relay.answer = lambda line: re.sub(pattern, lambda _: answer, line, flags=re.DOTALL)
    ended = place.hibali("pull", f"{NAME}:data", tmp_path / "back", "--json")
    assert ended.exit in {4, 5, 6}, ended
    assert b"Traceback" not in ended.err
    assert not (tmp_path / "back/a").exists()


@pytest.mark.heavy
@pytest.mark.parametrize("folder", ["", "data"], ids=["no folder", "the same folder"])
def test_a_server_with_other_files_is_found(place: Place, tmp_path: Path, folder: str) -> None:
    tree = make_tree(tmp_path / "tree", {"a": b"1"})
    (place.unicore.home / "elsewhere" / folder).mkdir(parents=True)
    home = os.fsencode(place.unicore.home)
    place.relay.ask = lambda lines: lines.replace(home, home + b"/elsewhere")
    answer = place.hibali("push", tree, f"{NAME}:data", "--json", exit=6)
    assert next(line["code"] for line in answer.lines if "code" in line) == "uftp-elsewhere", answer
    assert not [*place.unicore.home.rglob("a")]
    assert written_in(place.uftp) == MAX_ATTEMPTS, "what waits for the API is not written again"


def test_a_rename_that_finds_no_file_blames_no_server(place: Place, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree", {"a": b"1"})
    asked: list[bytes] = []
    place.relay.ask = lambda lines: (asked.append(lines) if b"RNTO" in lines else None) or lines
    place.relay.answer = lambda line: (
        b"550 Directory/file does not exist\n" if asked and line == b"200 OK\n" else line
    )
    answer = place.hibali("push", tree, f"{NAME}:data", "--json")
    assert next(line["code"] for line in answer.lines if "code" in line) == "vanished", answer


def test_a_file_with_another_time_than_unicore_listed_is_not_pulled(place: Place, tmp_path: Path) -> None:
    for folder in ("data", "elsewhere/data"):
        make_tree(place.unicore.home / folder, {"a": folder[:1].encode()})
    os.utime(place.unicore.home / "data/a", (0, 0))
    home = os.fsencode(place.unicore.home)
    place.relay.ask = lambda lines: lines.replace(home, home + b"/elsewhere")
    answer = place.hibali("pull", f"{NAME}:data", tmp_path / "back", "--json", exit=6)
    assert "source-changed" in {line.get("code") for line in answer.lines}
    assert not (tmp_path / "back/a").exists()


def test_the_site_is_checked(place: Place) -> None:
    facts = place.hibali("sites", "check", NAME, "--json", exit=0).last["facts"]
    assert facts["uftp"].startswith("UFTPD ")


@pytest.mark.heavy
def test_pyuftp_and_hibali_read_what_the_other_wrote(place: Place, tmp_path: Path) -> None:
    """The unmodified pyuftp 1.1.1 uses one session for each thread, PASV and MD5; several streams where the server allows them."""
    program = REPOSITORY / ".cache" / "rest" / "bin" / "pyuftp"
    require_prepared(program, "rest")
    there = f"{place.uftp.url}:{place.unicore.home}/data"
    place.auth.address = place.uftp.server  # PASV names a port that the relay does not pass on

    def pyuftp(command: str, *words: object) -> str:
        argv = [program, command, "-A", place.unicore.token, *map(str, words)]
        ended = subprocess.run(argv, capture_output=True, timeout=120, check=False)
        assert ended.returncode == 0, ended.stderr.decode()
        return ended.stdout.decode()

    tree = make_tree(tmp_path / "tree", {"a b": os.urandom(3 * MIB), "large": os.urandom(20 * MIB)})
    place.hibali("push", tree, f"{NAME}:data", exit=0)
    (tmp_path / "theirs").mkdir()
    pyuftp("cp", "-r", "-t", 2, f"{there}/*", f"{tmp_path}/theirs/")
    assert read_tree(tmp_path / "theirs") == read_tree(tree)
    assert digest_of(tree / "large") in pyuftp("checksum", "-a", "SHA-256", f"{there}/large")
    pyuftp("cp", "-n", 2, tree / "large", f"{there}/uploaded")
    place.hibali("pull", f"{NAME}:data/uploaded", f"{tmp_path}/ours/", exit=0)
    assert digest_of(tmp_path / "ours/uploaded") == digest_of(tree / "large")

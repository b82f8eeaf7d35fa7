"""Test `datasets check`: each source that does not work is named in seconds, and nothing prompts or hangs."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.services.object_store import ObjectStore
from tests.services.sshd import SshServer
from tests.services.webdav import DavServer, _sha1
from tests.support.annex import AnnexRepository, make_repository
from tests.support.terminal import Terminal
from tests.support.web_server import WebServer

_HOSTILE = "11111111-2222-3333-4444-555555555558"
_EXTERNAL = """#!/bin/sh
# A special remote of git-annex that keeps nothing: its protocol is on its page "external special remote protocol".
echo VERSION 1
while read -r word rest; do
    case "$word" in
    INITREMOTE) echo INITREMOTE-SUCCESS ;;
    PREPARE) echo PREPARE-SUCCESS ;;
    CHECKPRESENT) echo "CHECKPRESENT-SUCCESS $rest" ;;
    TRANSFER) echo "TRANSFER-SUCCESS ${rest% *}" ;;
    *) echo UNSUPPORTED-REQUEST ;;
    esac
done
"""


class Study:
    """A dataset with annexed files whose contents are only at its sources; `check` checks it."""

    def __init__(self, hibali: Any, repository: AnnexRepository, tools: Path) -> None:
        self.hibali = hibali
        self.repository = repository
        self.git = repository.run
        self.folder = repository.folder
        self.tools = tools

    def add(self, **files: bytes) -> None:
        """Annex and commit files."""
        for name, content in files.items():
            (self.folder / name).write_bytes(content)
            self.git("annex", "add", "-q", "--", name)
        self.git("commit", "-q", "-m", "files")

    def add_url(self, name: str, url: str, *, size: int = 5) -> None:
        """Annex a file of which only the size and a URL are known."""
        key = f"MD5E-s{size}--{'%032x' % (len(url) * 7919 + size)}.nii"
        self.git("annex", "fromkey", "--force", key, name)
        self.git("annex", "registerurl", key, url)
        self.git("commit", "-q", "-m", name)

    def tool(self, name: str, text: str) -> Path:
        """Put a program on the PATH."""
        path = self.tools / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def use_ssh(self, server: SshServer) -> None:
        """Let every program find the server as the host `far`, as a user's ~/.ssh/config does."""
        self.tool("ssh", f'#!/bin/sh\nexec {shutil.which("ssh")} -F {server.config} "$@"\n')

    def allow_loopback(self) -> None:
        """Allow git-annex what it refuses by default: servers of this machine, and sftp URLs."""
        self.git("config", "annex.security.allowed-ip-addresses", "127.0.0.1")
        self.git("config", "annex.security.allowed-url-schemes", "http https ftp sftp")

    def check(self, *words: str | Path, exit: int) -> Report:  # noqa: A002 - the term that users know
        """Check the dataset without a terminal."""
        return Report(self.hibali("datasets", "check", self.folder, "--json", *words, exit=exit).lines)

    def check_on_terminal(self, *words: str | Path) -> tuple[int, str]:
        """Check the dataset on a terminal with typed text, and make sure that nothing reads it; return exit code and output."""
        command = self.hibali.command("datasets", "check", self.folder, *words)
        script = '"$@"; code=$?; read -r line; echo "unread: $line, code: $code"'
        terminal = Terminal(["sh", "-c", script, "sh", *command], self.hibali.env, columns=400, rows=60)
        terminal.press(b"typed-before\n")
        terminal.end()
        text = terminal.written.decode()
        end = text.rindex("unread: typed-before, code: ")
        assert not any(
            word in text.lower() for word in ("'s password", "username for", "enter passphrase", "(yes/no")
        )
        return int(text[end:].split("code: ")[1].split()[0]), text


class Report:
    """The JSON lines of a check."""

    def __init__(self, lines: list[dict[str, Any]]) -> None:
        self.lines = lines
        self.last = lines[-1]
        self.sources = {line["name"]: line for line in lines if line["kind"] == "source"}
        self.codes = [problem["code"] for problem in self.last["problems"]]

    def problem(self, code: str) -> dict[str, Any]:
        """Return the problem with this code."""
        return next(problem for problem in self.last["problems"] if problem["code"] == code)


@pytest.fixture
def study(hibali: Any, tmp_path: Path) -> Study:
    tools = tmp_path / "tools"
    tools.mkdir()
    hibali.env["PATH"] = f"{tools}:{hibali.env['PATH']}"
    repository = make_repository(tmp_path / "my study", hibali.env, hibali.home.home)
    hibali.env = repository.env
    return Study(hibali, repository, tools)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Callable[..., WebServer]]:
    """Return a function that starts a web server for files."""
    started: list[WebServer] = []

    def serve(**files: bytes) -> WebServer:
        root = tmp_path / f"served{len(started)}"
        root.mkdir()
        for name, content in files.items():
            (root / name).write_bytes(content)
        started.append(WebServer(root))
        return started[-1]

    yield serve
    for server in started:
        server.close()


def state_of(study: Study) -> tuple[bytes, ...]:
    """Return what a check must not change."""
    config = (study.folder / ".git/config").read_bytes()
    refs, status = study.git("for-each-ref"), study.git("status", "--porcelain")
    objects = b"\n".join(
        sorted(os.fsencode(path) for path in (study.folder / ".git/annex/objects").rglob("*"))
    )
    journal = b"\n".join(
        sorted(os.fsencode(path) for path in (study.folder / ".git/annex/journal").rglob("*"))
    )
    return config, refs, status, objects, journal


@pytest.mark.heavy
def test_a_dataset_whose_sources_work_is_not_changed(
    study: Study, served: Any, tmp_path: Path, ssh_server: SshServer
) -> None:
    study.use_ssh(ssh_server)
    study.allow_loopback()
    for number, kind in enumerate(("directory", "rsync")):
        where = tmp_path / f"store{number}"
        where.mkdir()
        place = f"directory={where}" if kind == "directory" else f"rsyncurl={where}"
        study.git("annex", "initremote", kind, f"type={kind}", "encryption=none", place)
        study.add(**{f"in {kind}": kind.encode() * 100})
        study.git("annex", "move", "-q", "--to", kind, f"in {kind}")
    study.add_url("from web", f"{served(scan=b'12345').url}/scan")
    study.git("clone", "-q", "--bare", str(study.folder), str(ssh_server.home / "copy.git"))
    study.git("remote", "add", "origin", f"ssh://far{ssh_server.home}/copy.git")
    study.git("config", "remote.origin.annex-ignore", "true")
    before = state_of(study)

    report = study.check(exit=0)

    assert {name: source["state"] for name, source in report.sources.items()} == dict.fromkeys(
        ("directory", "rsync", "web", "origin"), "ok"
    )
    counts = {name: report.last[f"files_{name}"] for name in ("here", "available", "unavailable", "unknown")}
    assert counts == {"here": 0, "available": 3, "unavailable": 0, "unknown": 0}
    assert report.last["problems"] == []
    assert state_of(study) == before
    code, text = study.check_on_terminal()
    assert code == 0
    assert "3 annexed files: 0 here, 3 can be fetched. All sources work." in text


@pytest.mark.heavy
@pytest.mark.parametrize("terminal", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_dead_sources_are_named_and_their_files_are_counted(
    study: Study, served: Any, tmp_path: Path, *, terminal: bool
) -> None:
    study.allow_loopback()
    server = served()
    for number in range(12):
        study.add_url(f"file{number}", f"{server.url}/{'x' * number}")
    server.close()
    study.git("remote", "add", "origin", str(tmp_path / "removed"))
    if terminal:
        code, text = study.check_on_terminal("-v")
        assert code == 6
        assert f"{server.url}: the server cannot be reached: Connection refused" in text
        assert "12 files cannot be fetched now, because their sources fail: " + server.url in text
        assert text.count(f"  {server.url}\r\n") == 12
        return
    report = study.check("-v", exit=6)
    assert report.codes == ["unreachable", "source-gone", "files-unavailable"]
    assert report.sources["web"]["files"] == report.last["files_unavailable"] == 12
    assert report.problem("unreachable")["about"] == server.url
    listed = {line["path"]: line["because"] for line in report.lines if line["kind"] == "unavailable"}
    assert listed == {f"file{number}": server.url for number in range(12)}


@pytest.fixture
def account(webdav_server: DavServer) -> Iterator[Callable[[str], None]]:
    """Return a function that sets the password of the account `lab` of the WebDAV server."""
    users = Path(webdav_server.root).parent / "users"

    def set_password(password: str) -> None:
        others = [line for line in users.read_text().splitlines() if not line.startswith("lab:")]
        changed = [*others, *([f"lab:{{SHA}}{_sha1(password)}"] if password else []), ""]
        users.write_text("\n".join(changed))

    yield set_password
    set_password("")


@pytest.mark.parametrize("terminal", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_a_reset_password_is_named_with_the_command_that_stores_a_new_one(
    study: Study, webdav_server: DavServer, account: Callable[[str], None], *, terminal: bool
) -> None:
    account("first")
    study.allow_loopback()
    url = f"{webdav_server.url}/annex-{'terminal' if terminal else 'pipe'}"
    login = {**study.repository.env, "WEBDAV_USERNAME": "lab", "WEBDAV_PASSWORD": "first"}
    AnnexRepository(study.folder, login).run(
        "annex", "initremote", "store", "type=webdav", f"url={url}", "encryption=none"
    )
    study.add(scan=b"scan" * 100)
    study.git("annex", "move", "-q", "--to", "store", "scan")
    assert study.check(exit=0).sources["store"]["state"] == "ok"

    account("second")
    if terminal:
        code, text = study.check_on_terminal()
        assert code == 4
        assert "store: it refused the stored credentials" in text
    else:
        report = study.check(exit=4)
        assert report.codes == ["credentials-refused", "files-unavailable"]
        hint = report.problem("credentials-refused")["hint"]
        assert hint.endswith(f"git -C '{study.folder}' annex enableremote store")
        command = hint.partition(": ")[2]
        typed = {**study.repository.env, "LC_ALL": "C.UTF-8"}
        subprocess.run(
            ["bash", "-c", command], input=b"lab\nsecond\n", env=typed, check=True, capture_output=True
        )
        assert study.check(exit=0).sources["store"]["state"] == "ok"


def unlocked_clone(study: Study, tmp_path: Path) -> Study:
    """Return a clone with an unlocked file, whose content is only in the first repository."""
    study.add(**{"scan.nii": b"voxel" * 1000})
    study.git("annex", "unlock", "-q", "scan.nii")
    study.git("commit", "-q", "-m", "unlocked")
    folder = tmp_path / "clone"
    study.git("clone", "-q", str(study.folder), str(folder))
    clone = Study(study.hibali, AnnexRepository(folder, study.repository.env), study.tools)
    clone.git("annex", "init", "-q", "clone")
    return clone


@pytest.mark.parametrize("terminal", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_pointer_text_in_place_of_content_is_named(study: Study, tmp_path: Path, *, terminal: bool) -> None:
    clone = unlocked_clone(study, tmp_path)
    assert (clone.folder / "scan.nii").read_bytes().startswith(b"/annex/objects/")
    if terminal:
        code, text = clone.check_on_terminal()
        assert code == 6
        assert "scan.nii: it has the text of a pointer in place of the data" in text
        return
    report = clone.check(exit=6)
    assert report.codes == ["pointer-text"]
    assert report.sources["origin"]["state"] == "ok"
    assert report.problem("pointer-text")["about"] == "scan.nii"
    command = report.problem("pointer-text")["hint"].partition(": ")[2]
    subprocess.run(["sh", "-c", command], env=clone.repository.env, check=True, capture_output=True)
    clone.check(exit=0)


def test_pages_and_pointers_of_git_lfs_in_place_of_content_are_named(study: Study) -> None:
    key = "MD5E-s11057707--6248ded9a528636072aba8b4ec857dfb.nii.gz"
    study.add(
        lfs=b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 9\n",
        page=b"data",
    )
    study.git("annex", "fromkey", "--force", key, "scan.nii.gz")
    study.git("commit", "-q", "-m", "scan")
    place = study.folder / (study.folder / "scan.nii.gz").readlink()
    place.parent.mkdir(parents=True)
    place.write_bytes(b"<!DOCTYPE html>\n<html><title>Sign in</title></html>")
    report = study.check(exit=6)
    assert report.codes == ["wrong-content"]
    problem = report.problem("wrong-content")
    assert (problem["about"], problem["message"]) == (
        "lfs",
        "it and 1 other file have a pointer of git-lfs in place of the data",
    )


@pytest.mark.parametrize("terminal", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_a_special_remote_whose_program_is_not_installed_is_named(study: Study, *, terminal: bool) -> None:
    program = study.tool("git-annex-remote-lab", _EXTERNAL)
    study.git("annex", "initremote", "lab", "type=external", "externaltype=lab", "encryption=none")
    study.add(scan=b"scan" * 100)
    study.git("annex", "copy", "-q", "--to", "lab", "scan")
    assert study.check(exit=0).sources["lab"]["state"] == "ok"
    program.unlink()
    study.git("annex", "drop", "-q", "--force", "scan")
    if terminal:
        code, text = study.check_on_terminal()
        assert code == 6
        assert "lab: the program git-annex-remote-lab, which this source needs, is not installed" in text
        return
    report = study.check(exit=6)
    assert report.codes == ["special-remote-not-installed", "files-unavailable"]
    assert "command -v git-annex-remote-lab" in report.problem("special-remote-not-installed")["hint"]


@pytest.mark.parametrize("terminal", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_sources_that_ask_for_a_password_over_ssh_are_named(
    study: Study, password_server: SshServer, *, terminal: bool
) -> None:
    study.use_ssh(password_server)
    study.allow_loopback()
    asks = Terminal(["sh", "-c", "ssh -s far sftp"], study.hibali.env, columns=300)
    asks.until(lambda screen: "password:" in screen)  # without hibali, the server does ask
    asks.process.kill()
    asks.end()
    study.git("remote", "add", "origin", "ssh://far/data/study")
    study.git("config", "remote.store.annex-rsyncurl", "far:store")
    study.git("config", "remote.store.annex-uuid", "11111111-2222-3333-4444-555555555555")
    study.add_url("scan", "sftp://far/data/scan")
    if terminal:
        code, text = study.check_on_terminal()
        assert code == 4
        assert text.count("far: the login was refused, or needs a password or code") == 3
        return
    report = study.check(exit=4)
    assert report.codes == ["login-refused"] * 3 + ["files-unavailable"]
    assert {source["code"] for source in report.sources.values()} == {"login-refused"}
    assert report.problem("login-refused")["hint"] == "Log in once yourself: ssh far"


@pytest.mark.parametrize("terminal", [False, pytest.param(True, marks=pytest.mark.heavy)])
def test_sources_that_never_answer_are_named_at_the_deadline(study: Study, *, terminal: bool) -> None:
    study.allow_loopback()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        study.git("remote", "add", "origin", f"http://127.0.0.1:{port}/study")
        study.git("config", "remote.origin.annex-ignore", "true")
        study.add_url("scan", f"http://localhost:{port}/scan")
        study.git("config", "annex.security.allowed-ip-addresses", "all")
        if terminal:
            code, text = study.check_on_terminal("--timeout", "2s")
            assert code == 6
            assert "origin: it did not answer within 2 s" in text
        else:
            report = study.check("--timeout", "2s", exit=6)
            assert report.codes == ["timed-out", "timed-out", "files-unavailable"]


def test_revoked_keys_of_an_object_store_are_named(study: Study, object_store: ObjectStore) -> None:
    study.allow_loopback()
    address = urlsplit(object_store.endpoint)
    keys = {"AWS_ACCESS_KEY_ID": object_store.access_key, "AWS_SECRET_ACCESS_KEY": object_store.secret_key}
    AnnexRepository(study.folder, {**study.repository.env, **keys}).run(
        *("annex", "initremote", "bucket", "type=S3", "encryption=none", "signature=v2", "requeststyle=path"),
        *(
            f"host={address.hostname}",
            f"port={address.port}",
            "protocol=http",
            f"bucket={object_store.bucket().name}",
        ),
    )
    study.add(scan=b"scan" * 100)
    study.git("annex", "move", "-q", "--to", "bucket", "scan")
    assert study.check(exit=0).sources["bucket"]["state"] == "ok"
    (stored,) = (study.folder / ".git/annex/creds").iterdir()
    stored.write_text(f"{object_store.access_key}\nrevoked\n")
    report = study.check(exit=4)
    assert report.codes == ["credentials-refused", "files-unavailable"]
    assert "AWS_SECRET_ACCESS_KEY" in report.problem("credentials-refused")["hint"]


@pytest.mark.heavy
def test_a_key_with_a_passphrase_opens_no_window(study: Study, tmp_path: Path) -> None:
    home = Path(tempfile.mkdtemp(prefix="gpg-"))  # the path of a socket is at most 108 bytes long
    asked = tmp_path / "asked"
    window = study.tool("pinentry", f"#!/bin/sh\ntouch {asked}\nexit 1\n")
    (home / "gpg-agent.conf").write_text(f"pinentry-program {window}\nmax-cache-ttl 0\n")
    study.hibali.env |= {"GNUPGHOME": str(home), "DISPLAY": ":0"}
    study.repository.env["GNUPGHOME"] = str(home)
    words = ["gpg", "--batch", "--pinentry-mode", "loopback", "--passphrase", "planted"]
    subprocess.run(
        [*words, "--quick-gen-key", "lab@example.org", "default", "default", "never"],
        env=study.repository.env,
        check=True,
        capture_output=True,
    )
    (tmp_path / "disk").mkdir()
    try:
        study.git(
            *("annex", "initremote", "disk", "type=directory", f"directory={tmp_path}/disk"),
            *("encryption=hybrid", "keyid=lab@example.org"),
        )
        study.add(scan=b"scan" * 100)
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=study.repository.env, check=True)
        report = study.check(exit=4)
    finally:
        subprocess.run(["gpgconf", "--kill", "gpg-agent"], env=study.repository.env, check=False)
        shutil.rmtree(home)
    assert report.codes == ["credentials-refused"]
    assert "passphrase" in report.problem("credentials-refused")["hint"]
    assert not asked.exists()


@pytest.mark.heavy
def test_answers_of_web_servers_that_are_not_the_data_are_named(study: Study, served: Any) -> None:
    study.allow_loopback()
    page = b"<!DOCTYPE html><title>Sign in</title>"
    study.add_url("page", f"{served(**{'login.html': page}).url}/login.html")
    study.add_url("shorter", f"{served(scan=b'12').url}/scan")
    study.add_url("deleted", f"{served().url}/scan")
    moved = served()
    moved.redirect = f"{served(**{'portal.html': page}).url}/portal.html"
    study.add_url("moved", f"{moved.url}/scan?token=secret")
    partly = served(**{str(number): b"12345" for number in range(3)})
    for number in range(6):
        study.add_url(f"partly{number}", f"{partly.url}/{number}")
    before = len(partly.seen)

    report = study.check("-v", exit=6)

    told = {problem["about"]: problem for problem in report.last["problems"]}
    assert {told[about]["code"] for about in told if "login.html" in about} == {"wrong-content"}
    assert told[f"{moved.url}/scan?..."]["message"] == (
        f"it answers an HTML page in place of the data, after a redirect to {moved.redirect.rpartition('/')[0]}:"
        " a login page, or it was moved"
    )
    assert any(
        found["message"] == "it has 2 bytes there, but 5 bytes are recorded" for found in told.values()
    )
    assert report.codes.count("dead-url") >= 1
    assert len(partly.seen) - before <= 6, "only a few URLs of each server are requested"
    assert "secret" not in json.dumps(report.lines)
    assert {"page", "shorter", "deleted", "moved"} <= {
        line["path"] for line in report.lines if line["kind"] == "unavailable"
    }


def test_what_git_annex_itself_refuses_is_named_with_the_setting_that_allows_it(
    study: Study, served: Any
) -> None:
    server = served(scan=b"12345")
    study.add_url("private", f"{server.url}/scan")
    study.add_url("scheme", "sftp://127.0.0.1:9/scan")
    report = study.check(exit=6)
    assert report.codes == ["private-address", "url-scheme-refused", "files-unavailable"]
    assert server.seen == [], "a dataset does not choose which servers of this network get requests"
    for code in report.codes[:2]:
        command = report.problem(code)["hint"].partition(": ")[2]
        subprocess.run(["sh", "-c", command], env=study.repository.env, check=True)
    assert study.check(exit=6).codes[0] == "unreachable"  # the sftp server of which nothing runs
    assert server.seen


@pytest.mark.heavy
def test_a_remote_that_is_not_enabled_and_files_without_a_source_are_named(
    study: Study, tmp_path: Path
) -> None:
    (tmp_path / "disk").mkdir()
    study.git(
        "annex", "initremote", "disk", "type=directory", f"directory={tmp_path}/disk", "encryption=none"
    )
    study.add(stored=b"stored" * 100, lost=b"lost" * 100)
    study.git("annex", "move", "-q", "--to", "disk", "stored")
    clone = tmp_path / "clone"
    study.git("clone", "-q", str(study.folder), str(clone))
    other = Study(study.hibali, AnnexRepository(clone, study.repository.env), study.tools)
    fresh = other.check(exit=6)
    assert (fresh.codes, fresh.last["files_unknown"]) == (
        ["remote-not-enabled", "files-unavailable", "not-initialised"],
        1,
    )
    before = state_of(other)
    assert other.check("--path", "lost", exit=6).codes == ["not-initialised"]
    assert state_of(other) == before
    other.git("annex", "init", "-q", "--no-autoenable")
    other.git("remote", "remove", "origin")
    report = other.check(exit=6)
    assert report.codes == ["remote-not-enabled", "files-unavailable", "no-copy"]
    assert "others have copies: here" in report.problem("no-copy")["message"]
    command = report.problem("remote-not-enabled")["hint"].partition(": ")[2]
    subprocess.run(["sh", "-c", f"{command} directory={tmp_path}/disk"], env=other.repository.env, check=True)
    unverified = other.check(exit=6)
    if "remote-not-verified" in unverified.codes:  # git-annex of 2026
        command = unverified.problem("remote-not-verified")["hint"].partition(": ")[2]
        shown = subprocess.run(
            ["sh", "-c", command], env=other.repository.env, check=True, capture_output=True
        )
        other.git(
            "annex", *re.findall(r"git-annex (verifyremote) (disk) (--safe) (\d+)", shown.stdout.decode())[0]
        )
    assert other.check(exit=6).codes == ["no-copy"]
    shutil.rmtree(tmp_path / "disk")
    assert other.check(exit=6).codes == ["source-gone", "files-unavailable", "no-copy"]


def test_a_dataset_without_the_branch_of_git_annex_is_named(study: Study, tmp_path: Path) -> None:
    study.add(scan=b"scan" * 100)
    study.git("init", "-q", "--bare", str(tmp_path / "published"))
    study.git("push", "-q", str(tmp_path / "published"), "HEAD:main")
    study.git("clone", "-q", "-b", "main", str(tmp_path / "published"), str(tmp_path / "clone"))
    answer = study.hibali("datasets", "check", tmp_path / "clone", "--json", exit=2)
    assert answer.last["code"] == "no-dataset"
    AnnexRepository(tmp_path / "clone", study.repository.env).run("annex", "init", "-q")
    answer = study.hibali("datasets", "check", tmp_path / "clone", "--json", exit=6)
    assert [problem["code"] for problem in answer.last["problems"]] == ["no-copy"]


def test_copies_that_are_recorded_but_missing_are_named(study: Study, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    study.git(
        "annex", "initremote", "disk", "type=directory", f"directory={tmp_path}/disk", "encryption=none"
    )
    study.add(one=b"1" * 100, two=b"2" * 100)
    study.git("annex", "move", "-q", "--to", "disk", ".")
    key = study.repository.key_of("one")
    (found,) = (path for path in (tmp_path / "disk").rglob(key) if path.is_file())
    found.parent.chmod(0o755)
    found.unlink()
    report = study.check("-v", exit=6)
    assert report.codes == ["copies-missing", "files-unavailable"]
    assert report.problem("copies-missing")["message"].startswith(
        "1 content of 2 that were tested are not there"
    )
    assert (report.last["files_available"], report.last["files_unavailable"]) == (1, 1)


@pytest.mark.heavy
def test_a_hostile_dataset_runs_and_prompts_nothing(study: Study, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    option = f"-oProxyCommand=touch {marker}"
    study.git("config", f"remote.{option}.url", f"ssh://{option}/x")
    study.git("config", f"remote.{option}.annex-uuid", "11111111-2222-3333-4444-555555555555")
    study.git("config", "remote.option.annex-rsyncurl", "-oProxyCommand=touch${IFS}ran:x")
    study.git("config", "remote.option.annex-uuid", "11111111-2222-3333-4444-555555555556")
    study.git("config", "remote.path.annex-externaltype", "x/../../run")
    study.git("config", "remote.path.annex-uuid", "11111111-2222-3333-4444-555555555557")
    study.tool("git-annex-remote-x", f"#!/bin/sh\ntouch {marker}\n")
    study.add(**{"new\nline": b"1" * 100, "-dash": b"2" * 100, "plain": b"3" * 100})
    record_branch(
        study,
        {
            "remote.log": f"{_HOSTILE} name=a&10;\x1b[31mred type=external externaltype=run/x timestamp=1s\n",
            "trust.log": "no line of git-annex\n\0\0\n",
        },
        url="http://host.invalid/\x1b[2Jscan",
    )
    for name in ("-dash", "plain", "new\nline"):
        study.git("annex", "drop", "-q", "--force", "--", name)
    report = study.check("--timeout", "3s", exit=6)
    assert report.codes.count("unsafe-remote") == 4
    assert "bad-url" in report.codes
    code, text = study.check_on_terminal("-v", "--timeout", "3s")
    assert code == 6
    assert "\x1b[31m" not in text.replace("\x1b[31mhibali:", "")
    assert "\x1b[2J" not in text
    assert "new\\nline" in text
    assert not marker.exists()


def record_branch(study: Study, files: dict[str, str], *, url: str = "") -> None:
    """Write records into the branch git-annex, as anyone who publishes a dataset can."""
    tree = study.git("ls-tree", "-r", "-z", "git-annex").split(b"\0")[:-1]
    entries = {entry.partition(b"\t")[2]: entry.partition(b"\t")[0].split()[2] for entry in tree}
    added: dict[bytes, bytes] = {os.fsencode(name): text.encode() for name, text in files.items()}
    if url:
        for name in [name for name in entries if name.endswith(b".log") and b"SHA256E" in name]:
            added[name + b".web"] = f"9999999999s 1 {url}\n".encode()
            copies = ("00000000-0000-0000-0000-000000000001", _HOSTILE)
            added[name] = "".join(f"9999999999s 1 {uuid}\n" for uuid in copies).encode()
    index = study.folder / ".git/hostile-index"

    def plumbing(*words: str | bytes, stdin: bytes = b"") -> bytes:
        env = {**study.repository.env, "GIT_INDEX_FILE": str(index)}
        ended = subprocess.run(
            ["git", *words], cwd=study.folder, env=env, input=stdin, capture_output=True, check=True
        )
        return ended.stdout.strip()

    entries |= {name: plumbing("hash-object", "-w", "--stdin", stdin=text) for name, text in added.items()}
    lines = b"".join(b"100644 %b\t%b\0" % (blob, name) for name, blob in entries.items())
    plumbing("update-index", "-z", "--index-info", stdin=lines)
    commit = plumbing("commit-tree", "-m", "records", "-p", "git-annex", plumbing("write-tree"))
    plumbing("update-ref", "refs/heads/git-annex", commit)
    index.unlink()
    (study.folder / ".git/annex/index").unlink(missing_ok=True)


def test_a_huge_branch_is_read_only_where_it_is_needed(study: Study) -> None:
    study.add(scan=b"scan" * 100)
    huge = {f"{number:03x}/{number:03x}/MD5-s1--{number:032x}.log": "x" * 300_000 for number in range(40)}
    names = study.git("ls-tree", "-r", "--name-only", "git-annex").decode().splitlines()
    log = next(name for name in names if name.endswith(".log") and "SHA256E" in name)
    record_branch(study, {**huge, log: "x" * 300_000})
    report = study.check(exit=6)
    assert report.codes == ["records-too-large"]
    assert report.problem("records-too-large")["message"].startswith("1 record")


def test_only_the_chosen_files_and_fields_are_shown(study: Study, tmp_path: Path) -> None:
    study.add(here=b"1" * 100)
    (study.folder / "sub").mkdir()
    study.add(**{"sub/there": b"2" * 100})
    study.git("annex", "drop", "-q", "--force", "sub/there")
    assert study.check("--path", "here", exit=0).last["files"] == 1
    inside = study.hibali("datasets", "check", "--json", cwd=study.folder / "sub", exit=6).last
    assert (inside["files"], inside["files_unavailable"]) == (1, 1)
    assert (
        study.hibali("datasets", "check", study.folder, "--path", "gone", "--json", exit=3).last["code"]
        == "no-such-place"
    )
    outside = study.hibali("datasets", "check", study.folder, "--path", "../x", "--json", exit=2)
    assert outside.last["code"] == "outside-dataset"
    assert study.hibali("datasets", "check", tmp_path, "--json", exit=2).last["code"] == "no-dataset"
    study.git("remote", "add", "origin", str(tmp_path / "removed"))
    shown = study.hibali("datasets", "check", study.folder, "--fields", "name,code", exit=6)
    assert shown.out.splitlines() == [b"NAME    CODE", b"origin  source-gone"]

"""Test that -vv and --log-file show requests, programs and messages, without secrets, and never break a transfer (S16)."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.support.secret_search import check_secrets_absent
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers

_SECRET = re.compile(r"SECRET|PASSWORD|TOKEN|CONNECTION|ACCESS_KEY_ID")
_STAMP = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z \d+ "
_HTTP = r"request  (PUT|POST|GET|HEAD|PROPFIND|DELETE) http://\S+ \d{3} \d+\.\d{3} s"
# each kind of store, with what its requests look like
SHOWN = {
    "local": r"agent    \S* ?\w+ /\S+ \d+\.\d{3} s",
    "ssh": r"program  ssh .*",
    "sftp": r"sftp     \S+ OPEN /\S+",
    "s3": _HTTP,
    "webdav": _HTTP,
    "cbrain": _HTTP,
    "ebrains": _HTTP,
    "globus": _HTTP,
    "fsspec-s3": _HTTP,
    "firecrest": _HTTP,
    "unicore": _HTTP,
}
_ONLY_LISTED = {"cbrain", "globus"}  # whose folders need more than a path


def _stores() -> list[Any]:
    light = {"s3", "sftp"}
    return [word if word in light else pytest.param(word, marks=pytest.mark.heavy) for word in SHOWN]


@pytest.mark.parametrize("word", _stores())
def test_requests_are_shown_without_secrets(word: str, transfers_to: Any, tmp_path: Path) -> None:
    there: Transfers = transfers_to(word)
    hibali, log = there.hibali, tmp_path / "nightly.log"
    hibali.forks = False
    secrets = [value for name, value in there.place.env.items() if _SECRET.search(name) and len(value) > 3]
    there.make({b"a": b"1" * 100, b"b/c": b"2"})
    push, pull = ("push", there.source, "there:data"), ("pull", "there:data", tmp_path / "back")
    if word in _ONLY_LISTED:
        push = pull = ("ls", "there:")
    pushed = hibali(*push, "-vv", "--log-file", log, exit=0)
    quiet = hibali(*pull, "-vv", "--quiet", "--log-file", log, exit=0)
    found = [line for line in pushed.err.decode().splitlines() if re.fullmatch(SHOWN[word], line)]
    assert found, str(pushed)
    lines = log.read_text().splitlines()
    assert all(re.match(_STAMP, line) for line in lines)
    assert any(line.endswith(found[0]) for line in lines)
    assert sum(line.endswith("ended    exit 0") for line in lines) == 2
    assert not re.search(rb"request|program|agent |sftp ", quiet.err), str(quiet)
    assert log.stat().st_mode & 0o777 == 0o600
    check_secrets_absent(secrets, hibali, pushed, quiet)
    for text in (pushed.err.decode(), log.read_text()):
        assert not any(secret in text for secret in secrets)
        assert not re.search(r"(?i)authorization|signature=[^*]|token=[^*]|credential=[^*]|bearer [^*]", text)


@pytest.mark.heavy
def test_a_refused_login_is_logged_without_the_keys(transfers_to: Any, tmp_path: Path) -> None:
    there: Transfers = transfers_to("s3")
    there.make({b"a": b"1"})
    planted = {"AWS_SECRET_ACCESS_KEY": "PLANTED0secret0that0is0wrong", "AWS_SESSION_TOKEN": "PLANTEDtoken"}
    log = tmp_path / "log"
    answer = there.hibali(
        "push", there.source, "there:data", "-vv", "--log-file", log, "--json", env=planted, exit=4
    )
    check_secrets_absent(list(planted.values()), there.hibali, answer)
    text = log.read_text()
    assert "PLANTED" not in text
    assert re.search(r"error    .*\[denied\]|error    .*\[", text)
    assert "ended    exit 4" in text


def test_a_presigned_link_on_the_command_line_is_not_logged(hibali: Any, tmp_path: Path) -> None:
    log = tmp_path / "log"
    link = "https://me:pass0word@example.invalid/data?X-Amz-Signature=PLANTEDsign&X-Amz-Credential=PLANTEDkey"
    hibali("pull", link, tmp_path / "back", "--log-file", log)
    text = log.read_text()
    assert "example.invalid/data?X-Amz-Signature=***&X-Amz-Credential=***" in text
    assert not re.search("PLANTED|pass0word", text)


def test_v_alone_shows_no_requests(local_there: Transfers) -> None:
    local_there.make({b"a": b"1"})
    answer = local_there.hibali("push", local_there.source, "there:data", "-v", exit=0)
    assert b"moved    a\n" in answer.err
    assert not re.search(rb"(?m)^(request|program|agent|sftp|command) ", answer.err)


def test_the_log_has_every_file_where_nothing_is_shown(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make({b"a": b"1", b"line\nbreak": b"2"})
    log = tmp_path / "log"
    log.write_text("before\n")
    local_there.push("--quiet", "--log-file", str(log))
    first, command, *lines = log.read_text().splitlines()
    assert first == "before"
    assert re.fullmatch(rf"{_STAMP}command  hibali push .* --log-file \S+/log", command)
    assert {line.split(" ", 2)[2] for line in lines} >= {"moved    a", r"moved    line\nbreak"}
    assert not any("agent    " in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "code", "exit_code"),
    [
        ("symlink", "not-private", 8),
        ("writable", "not-private", 8),
        ("fifo", "not-a-file", 2),
        ("folder", "not-a-file", 2),
        ("missing", "no-such-folder", 3),
    ],
)
def test_an_unsafe_log_is_refused_before_anything_moves(
    local_there: Transfers, tmp_path: Path, kind: str, code: str, exit_code: int
) -> None:

    log, other = tmp_path / "log", tmp_path / "other"
    other.write_text("mine")
    if kind == "symlink":
        log.symlink_to(other)
    elif kind == "writable":
        log.write_text("")
        log.chmod(0o666)
    elif kind == "fifo":
        os.mkfifo(log, 0o600)
    elif kind == "folder":
        log.mkdir()
    else:
        log = tmp_path / "missing" / "log"
    local_there.make({b"a": b"1"})
    answer = local_there.push("--log-file", str(log), exit=exit_code)
    assert answer.last["code"] == code
    assert other.read_text() == "mine"
    assert not local_there.there()


def test_a_full_disk_under_the_log_breaks_nothing(local_there: Transfers, tmp_path: Path) -> None:
    local_there.make({f"{number:03d}".encode(): b"1" for number in range(200)})
    with small_filesystem(tmp_path / "small", "size=8k"):
        log = tmp_path / "small" / "log"
        answer = local_there.hibali(
            "push", local_there.source, "there:data", "-vv", "--log-file", log, exit=0
        )
        assert answer.err.count(b"the log could not be written: no space is left") == 1, str(answer)
        full = log.read_bytes()
        again = local_there.hibali(
            "push", local_there.source, "there:data", "--log-file", tmp_path / "small" / "new", exit=0
        )
        assert again.err.count(b"the log could not be written") == 1, str(again)
    assert full.startswith(b"20")
    assert len(local_there.there()) == 200


@pytest.mark.heavy
def test_commands_of_the_scheduler_are_shown_with_their_exit_code(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali)
    bench.add_slurm_site(slurm)
    submitted = bench.run(bench.answers(), "-vv", exit=0)
    polled = hibali("runs", "wait", submitted.last["id"], "-vv", exit=0)
    shown = r"(?m)^command  cluster {} .*{}.* exit 0 \d+\.\d{{3}} s$"
    assert re.search(shown.format("run_once", "sbatch"), submitted.err.decode()), str(submitted)
    assert re.search(shown.format("run", "squeue"), polled.err.decode()), str(polled)

"""Test what the file of --log-file accepts, and that no line ends a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hibali.config.model import Site
from hibali.errors import RefusedError, UsageError
from hibali.locations import Location
from hibali_cli.log_file import LogFile, check_log_apart, open_log
from transfers.engine.request import Members, Request
from transfers.model.rules import Rules


@pytest.mark.parametrize(
    "line",
    ["see https://[help page]", "http://a\u2100b/", "\ud800\udcff://x", "://@://", "https://h:port/\x00"],
)
def test_every_line_can_be_written(tmp_path: Path, line: str) -> None:
    lost: list[str] = []
    log = LogFile(tmp_path / "log", lost.append)
    log.write(line)
    log.write("next")
    assert (tmp_path / "log").read_text().count("\n") == 2
    assert not lost


def test_a_line_that_cannot_be_written_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(text: str) -> str:
        raise KeyError(text)

    lost: list[str] = []
    log = LogFile(tmp_path / "log", lost.append)
    monkeypatch.setattr("hibali_cli.log_file.shown_urls", fail)
    for _ in range(2):
        log.write("https://host.test")
    assert len(lost) == 1
    assert "KeyError. The command continues." in lost[0]


def test_a_file_with_two_names_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    (tmp_path / "log").hardlink_to(tmp_path / "mine")
    with pytest.raises(RefusedError, match="hard link") as raised:
        LogFile(tmp_path / "log", print)
    assert raised.value.code == "not-private"
    assert (tmp_path / "mine").read_text() == "kept"


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(UsageError, match="empty"):
        open_log("")


_ELSEWHERE = Location(Site("there", kind="sftp"), "/data", "there:/data")


@pytest.mark.parametrize(
    ("rules", "is_refused"),
    [
        (Rules(), True),
        (Rules(min_size=1000), True),
        (Rules(exclude=("log",)), False),
        (Rules(exclude=("sub/",)), False),
        (Rules(files_from=frozenset({b"a"})), False),
        (Rules(files_from=frozenset({b"sub"})), True),
    ],
)
def test_a_log_that_would_be_transferred_is_refused(tmp_path: Path, rules: Rules, is_refused: bool) -> None:
    log = str(tmp_path / "sub" / "log")
    here = Location(Site("local", kind="local"), str(tmp_path), "data")
    requests = Request("push", here, _ELSEWHERE, rules), Request("pull", _ELSEWHERE, here, rules)
    deleting = replace(requests[1], rules=replace(rules, delete=True))
    for request in (requests[0], deleting):
        if is_refused:
            with pytest.raises(UsageError, match="the log is in data"):
                check_log_apart(log, request)
        else:
            check_log_apart(log, request)
    check_log_apart(log, requests[1])
    check_log_apart(str(tmp_path) + "2/log", requests[0])


def test_a_log_beside_several_sources_is_accepted(tmp_path: Path) -> None:
    here = Location(Site("local", kind="local"), str(tmp_path), "a b")
    request = Request("push", here, _ELSEWHERE, members=Members("a b", {b"a": b"a", b"b": b"x/b"}))
    check_log_apart(str(tmp_path / "log"), request)
    with pytest.raises(UsageError):
        check_log_apart(str(tmp_path / "x" / "b" / "log"), request)

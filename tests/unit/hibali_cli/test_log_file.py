"""Test what the file of --log-file accepts, and that no line ends a command."""

from __future__ import annotations

from pathlib import Path

import pytest

from hibali.errors import RefusedError, UsageError
from hibali_cli.log_file import LogFile, open_log


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

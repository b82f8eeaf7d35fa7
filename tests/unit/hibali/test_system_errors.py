"""Test that errors of the operating system have plain messages and the same code everywhere."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hibali.errors import Exit
from hibali.system_errors import EXPLANATIONS, code_of, explain, reason_of, transient_error, unreadable
from transfers.agent import protocol

STATE = Path("/home/me/state")


def error(number: int, name: str | None = "/some/file") -> OSError:
    return OSError(number, os.strerror(number), name)


@pytest.mark.parametrize(
    ("number", "code", "exit_code"),
    [
        (errno.ENOTDIR, "not-a-folder", 6),
        (errno.ENAMETOOLONG, "name-too-long", 6),
        (errno.ELOOP, "symlink-in-the-way", 6),
        (errno.ENOTEMPTY, "folder-not-empty", 6),
        (errno.EISDIR, "folder-in-the-way", 6),
        (errno.EROFS, "read-only", 6),
        (errno.ENOSPC, "no-space", 6),
        (errno.EDQUOT, "no-quota", 6),
        (errno.EFBIG, "file-too-large", 6),
        (errno.EMLINK, "too-many-names", 6),
        (errno.EXDEV, "other-device", 6),
        (errno.EMFILE, "too-many-open-files", 5),
        (errno.ENFILE, "too-many-open-files", 5),
        (errno.ENOMEM, "no-memory", 5),
        (errno.EAGAIN, "too-many-processes", 5),
        (errno.ETXTBSY, "file-busy", 5),
        (errno.ESTALE, "stale", 5),
        (errno.EIO, "input-output-error", 5),
        (errno.ENOENT, "vanished", 3),
        (errno.EACCES, "denied", 4),
        (errno.EPERM, "denied", 4),
        (errno.EKEYEXPIRED, "key-expired", 4),
    ],
)
def test_common_errors_have_a_code_a_message_and_an_exit_code(number: int, code: str, exit_code: int) -> None:
    explained = explain(error(number))
    assert explained is not None
    assert (explained.code, int(explained.exit), explained.subject) == (code, exit_code, "/some/file")
    assert os.strerror(number).lower() not in {explained.message, ""} or code == "denied"
    assert not explained.transient


def test_the_agent_uses_the_same_error_codes() -> None:
    for number in errno.errorcode:
        assert protocol.code_of(number) == code_of(number)
        assert bool(protocol.message_of(number)) == (code_of(number) not in EXPLANATIONS)


def test_unknown_system_errors_keep_the_message_of_the_system() -> None:
    explained = explain(error(errno.EL2HLT))
    assert explained is not None
    assert (explained.code, explained.message, explained.exit) == (
        "errno-el2hlt",
        os.strerror(errno.EL2HLT),
        Exit.INCOMPLETE,
    )
    assert reason_of(OSError("no usable folder")) == "no usable folder"


def test_errors_caused_by_hibali_stay_bugs() -> None:
    assert explain(error(errno.EBADF, None)) is None
    assert explain(ValueError("x")) is None
    assert explain(RuntimeError("x")) is None


def test_limits_of_the_machine_are_not_reported_as_bugs() -> None:
    codes = [
        explained.code
        for one in (MemoryError(), RuntimeError("can't start new thread"))
        if (explained := explain(one))
    ]
    assert codes == ["no-memory", "too-many-processes"]


def test_the_hint_mentions_the_state_folder() -> None:
    own = explain(error(errno.EROFS, f"{STATE}/runs/x.jsonl"), state=STATE)
    unknown = explain(error(errno.ENOSPC, None), state=STATE)
    other = explain(error(errno.EROFS), state=STATE)
    assert own is not None
    assert unknown is not None
    assert other is not None
    assert "HIBALI_STATE" in own.hint
    assert "TMPDIR" in unknown.hint
    assert "HIBALI_STATE" not in other.hint


def test_temporary_read_errors_exit_5_and_others_2() -> None:
    assert unreadable(error(errno.ESTALE), "f").exit is Exit.TRY_LATER
    assert unreadable(error(errno.EISDIR), "f").exit is Exit.USAGE
    assert transient_error(error(errno.ENOENT), "f") is None

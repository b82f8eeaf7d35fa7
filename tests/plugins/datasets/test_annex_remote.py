"""Test lines of the external special remote protocol: names are unchanged, and a reply is always one line."""

from __future__ import annotations

import pytest

from hibali.errors import TryLaterError, UsageError
from hibali_plugins.datasets.annex_remote import AnnexRequest, error_line, one_line, read_request


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (b"PREPARE\n", AnnexRequest("PREPARE", ())),
        (b"TRANSFER STORE KEY a b  c \n", AnnexRequest("TRANSFER", ("STORE", "KEY", "a b  c "))),
        (b"EXPORT  leading\n", AnnexRequest("EXPORT", (" leading",))),
        (b"EXPORT \xff\n", AnnexRequest("EXPORT", ("\udcff",))),
        (b"RENAMEEXPORT KEY new name\n", AnnexRequest("RENAMEEXPORT", ("KEY", "new name"))),
        (b"EXTENSIONS INFO ASYNC\n", AnnexRequest("EXTENSIONS", ("INFO ASYNC",))),
        (b"CLAIMURL x\n", None),
        (b"\n", None),
    ],
)
def test_requests_are_parsed(line: bytes, expected: AnnexRequest | None) -> None:
    assert read_request(line) == expected


@pytest.mark.parametrize("line", [b"TRANSFER STORE KEY\n", b"TRANSFER STORE  file\n", b"RENAMEEXPORT KEY\n"])
def test_requests_with_missing_arguments_are_refused(line: bytes) -> None:
    with pytest.raises(UsageError):
        read_request(line)


def test_replies_are_always_one_line() -> None:
    assert one_line("INFO", "a\nb\rc\0\udcff") == b"INFO a\\nb\\rc\\0\xff\n"
    problem = TryLaterError("x", "first\nsecond\x1b[31m", subject="site", hint="do this")
    assert error_line(problem) == "site: first; second\\x1b[31m (do this)"

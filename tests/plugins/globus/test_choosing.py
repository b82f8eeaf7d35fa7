"""Test when Globus is used, when a stalled task is cancelled, and how listings are read."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from hibali.config.model import GlobusSettings, Limits, Site
from hibali.errors import AccessError, HibaliError, IncompleteError, TryLaterError, UsageError
from hibali_plugins.globus.choosing import CollectionRoot, RouteRequest, find_collections
from hibali_plugins.globus.errors import error_of, fault_of
from hibali_plugins.globus.paths import (
    CollectionPair,
    Piece,
    below,
    deadline_after,
    delete_body,
    is_supported_path,
    transfer_body,
)
from hibali_plugins.globus.store import list_below
from hibali_plugins.globus.tasks import HOPELESS_SECONDS, ProgressTimeout
from transfers.model.entry import Kind
from transfers.model.units import ListingIncompleteError

LOCAL = Site("near", "local", globus=GlobusSettings("uuid-near", {"/data": "/"}))
REMOTE = Site(
    "remote", "ssh", globus=GlobusSettings("uuid-remote", {"/p/scratch": "/scratch", "/p": "/project"})
)
VAULT = Site("vault", "globus", globus=GlobusSettings("uuid-vault"))
PLAIN = Site("plain", "ssh")


def _collections(
    source: tuple[Site, bytes], target: tuple[Site, bytes], via: str = "auto", *unsupported: str
) -> CollectionPair | None:
    return find_collections(RouteRequest(via, unsupported), CollectionRoot(*source), CollectionRoot(*target))


def test_use_globus_if_both_collections_contain_the_paths() -> None:
    local, host = (LOCAL, b"/data/a b"), (REMOTE, b"/p/scratch/x")
    assert _collections(local, host) == CollectionPair("uuid-near", "/a b", "uuid-remote", "/scratch/x")
    assert _collections(host, (VAULT, b"~/y")) == CollectionPair(
        "uuid-remote", "/scratch/x", "uuid-vault", "/~/y"
    )
    limited = [
        (replace(site, limits=Limits(globus_tasks=most)), path)
        for (site, path), most in ((local, 3), (host, 2))
    ]
    for source, target, most in ((*limited, 2), (limited[0], host, 3), (local, limited[1], 2)):
        assert getattr(_collections(source, target), "most_tasks", None) == most
    assert _collections(local, host, "stream") is None
    for other in (
        (PLAIN, b"/x"),
        (REMOTE, b"/q"),
        (REMOTE, b"/p/scratch/\xff"),
        (replace(REMOTE, kind="s3"), b"/p"),
    ):
        assert _collections(local, other) is None
        with pytest.raises(UsageError):
            _collections(local, other, "globus")
    assert _collections(local, host, "auto", "--pack") is None
    for via in ("auto", "globus"):
        with pytest.raises(UsageError) as caught:
            _collections((PLAIN, b"/x"), (VAULT, b"/y"), via)
        assert caught.value.subject == "plain"
    with pytest.raises(UsageError) as caught:
        _collections(local, host, "globus", "--pack")
    assert (caught.value.code, caught.value.subject) == ("not-by-globus", "--pack")


def test_names_that_globus_supports() -> None:
    assert below("/", b"a/b") == "/a/b"
    assert below("/x", "é~*".encode()) == "/x/é~*"
    assert [is_supported_path(name) for name in (b"a", b"\xff", b"a\nb", b"a\rb", "\u202e".encode())] == [
        True,
        False,
        False,
        False,
        True,
    ]


def test_submission_requests_verification_and_metadata() -> None:
    body = transfer_body(
        CollectionPair("s", "/", "t", "/"),
        [Piece("/a", "/b", "00ff"), Piece("/c", "/d")],
        submission="id",
        label="l",
    )
    wanted = {
        "verify_checksum": True,
        "preserve_timestamp": True,
        "skip_source_errors": True,
        "fail_on_quota_errors": True,
    }
    assert wanted.items() <= body.items()
    assert [item.get("external_checksum") for item in body["DATA"]] == ["00ff", None]
    assert "filter_rules" not in body
    body_of_deletion = delete_body("c", ["/*"], submission="id", label="l")
    assert (
        body_of_deletion["recursive"],
        body_of_deletion["interpret_globs"],
        body_of_deletion["ignore_missing"],
    ) == (False, False, True)


def test_translate_globus_errors() -> None:
    cases: list[tuple[str, type[HibaliError], str]] = [
        ("QUOTA_EXCEEDED", IncompleteError, "no-quota"),
        ("GC_NOT_CONNECTED", TryLaterError, "collection-offline"),
        ("AUTH", AccessError, "denied"),
        ("\x1b[31m", TryLaterError, "globus-fault"),
    ]
    for code, kind, expected in cases:
        caught = error_of(code, "here", "File: x\nMessage: \x1b[31mred")
        assert isinstance(caught, kind)
        assert caught.code == expected
        assert "\x1b" not in caught.message
        assert "\n" not in caught.message
    assert fault_of("PERMISSION_DENIED").hopeless
    assert not fault_of("GC_NOT_CONNECTED").hopeless


def test_cancel_task_only_after_faults_without_progress() -> None:
    def task(status: str = "OK", moved: int = 0, **more: Any) -> dict[str, Any]:
        return {"status": "ACTIVE", "nice_status": status, "bytes_transferred": moved, **more}

    quiet = ProgressTimeout(10.0)
    assert not any(quiet.is_too_long(float(now), task()) for now in range(100))
    stuck = ProgressTimeout(10.0)
    assert not stuck.is_too_long(0.0, task("GC_NOT_CONNECTED"))
    assert not stuck.is_too_long(9.0, task("GC_NOT_CONNECTED"))
    assert not stuck.is_too_long(11.0, task("GC_NOT_CONNECTED", 5))
    assert stuck.is_too_long(21.0, task("GC_NOT_CONNECTED", 5))
    patient = ProgressTimeout(None)
    assert not any(patient.is_too_long(now * 1e4, task("OK", is_paused=True)) for now in range(9))
    hopeless = ProgressTimeout(None)
    assert not hopeless.is_too_long(0.0, task("PERMISSION_DENIED"))
    assert hopeless.is_too_long(HOPELESS_SECONDS, task("PERMISSION_DENIED"))


def test_listing_is_complete_or_names_missing_folders() -> None:
    def name(text: str, kind: str = "file", **more: Any) -> dict[str, Any]:
        return {
            "name": text,
            "type": kind,
            "size": 3,
            "last_modified": "2026-01-02 03:04:05+00:00",
            "link_target": None,
            **more,
        }

    folders = {
        b"": [name("b", "dir"), name("b-c"), name("b.d"), name("l", link_target="b-c"), name("x", "other")],
        b"b": [name("z"), name("a"), name(".hibali", "dir")],
        b"b/.hibali": [name("lock"), name("mine")],
    }

    def page(folder: bytes, offset: int, limit: int) -> dict[str, Any]:
        found = folders[folder]
        return {"DATA": found[offset : offset + min(limit, 2)], "total": len(found)}

    entries = list(list_below(page, "there"))
    assert [entry.path for entry in entries] == [
        b"b-c",
        b"b.d",
        b"b",
        b"b/.hibali/mine",
        b"b/a",
        b"b/z",
        b"l",
        b"x",
    ]
    assert [entry.path for entry in list_below(page, "there", shallow=True)] == [
        b"b-c",
        b"b.d",
        b"b",
        b"l",
        b"x",
    ]
    assert {entry.kind for entry in entries} == set(Kind)
    assert entries[0].mtime_ns == 1_767_323_045_000_000_000

    def too_many(folder: bytes, offset: int, limit: int) -> dict[str, Any]:
        return {**page(folder, offset, limit), "total": 100_001 if folder else len(folders[folder])}

    with pytest.raises(ListingIncompleteError) as caught:
        list(list_below(too_many, "there"))
    assert [(path, problem.code) for path, problem in caught.value.unlisted] == [(b"b", "folder-too-large")]


def test_a_deadline_is_a_time_of_whole_seconds() -> None:
    found = deadline_after(7 * 86400.0, datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC))
    assert found == "2026-01-09T03:04:05+00:00"

"""Test sites of fsspec filesystems: nothing half after a kill, nothing sent twice, no secret shown."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contracts.subjects import CLOUDS, ROOT, SITE, Subject, subjects
from tests.services.fixtures import START
from tests.support.trees import make_tree, random_bytes, read_tree
from tests.unit.hibali.config.test_settings import problems_of

MIB = 1 << 20
UNITS = 10  # of 4 MiB each: two parts were sent


def large() -> bytes:
    """Return three parts of an upload."""
    return random_bytes(7, 48 * MIB + 5)


@pytest.fixture(params=["fsspec", *(pytest.param(word, marks=pytest.mark.heavy) for word in CLOUDS)])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    yield from subjects(request.param, request, tmp_path, monkeypatch)


def run(subject: Subject, *words: str | Path, code: int = 0) -> dict[str, Any]:
    """Run hibali's command line as a new process; return its last JSON line."""
    ended = subprocess.run(
        [*START, *map(str, words), "--json"],
        env=subject.environment(),
        capture_output=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == code, ended.stdout.decode() + ended.stderr.decode()
    assert b"Traceback" not in ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.heavy
@pytest.mark.parametrize("old", [None, b"the old version"])
def test_a_put_that_is_killed_leaves_nothing_half(
    subject: Subject, tmp_path: Path, old: bytes | None
) -> None:
    """SIGKILL comes while a large file is sent; the same transfer then completes it."""
    source = make_tree(tmp_path / "source", {b"large": large(), b"other": b"1"})
    subject.plant({b"other": b"1"} | ({b"large": old} if old is not None else {}))
    subject.kill_writer(source, UNITS)
    assert subject.read(b"large") == old
    assert {name for name in subject.names() if b".hibali" not in name} == {b"other"} | (
        {b"large"} if old is not None else set()
    )
    receipt = run(subject, "push", source, f"{SITE}:{ROOT}")
    assert receipt["proof_moved"] == "digest"
    assert subject.files() == {b"large": large(), b"other": b"1"}
    assert {name for name in subject.names() if b".hibali" in name} == subject.manifest()
    assert run(subject, "push", source, f"{SITE}:{ROOT}")["files_moved"] == 0
    run(subject, "verify", source, f"{SITE}:{ROOT}")


def test_a_tree_is_sent_once_read_back_and_removed(subject: Subject, tmp_path: Path) -> None:
    tree = {b"a/b": b"1", b"a/empty": b"", "ä ö".encode(): b"22", b"large": large()[: 9 * MIB]}
    source = make_tree(tmp_path / "source", tree)
    receipt = run(subject, "push", source, f"{SITE}:{ROOT}")
    assert (receipt["files_moved"], receipt["proof_moved"]) == (4, "digest")
    assert run(subject, "push", source, f"{SITE}:{ROOT}")["files_moved"] == 0
    run(subject, "verify", source, f"{SITE}:{ROOT}")
    pulled = run(subject, "pull", f"{SITE}:{ROOT}", tmp_path / "pulled")
    assert (pulled["files_moved"], pulled["proof_moved"]) == (4, "recorded")
    assert {
        name: leaf for name, leaf in read_tree(tmp_path / "pulled").items() if isinstance(leaf, bytes)
    } == tree
    run(subject, "rm", f"{SITE}:{ROOT}", "--recursive", "--yes")
    assert subject.names() == set()


def test_no_secret_is_stored_or_shown(subject: Subject, tmp_path: Path) -> None:
    source = make_tree(tmp_path / "source", {b"a": b"1"})
    shown = json.dumps([run(subject, "push", source, f"{SITE}:{ROOT}"), run(subject, "sites", "show", SITE)])
    files = [path.read_bytes() for path in (tmp_path / "hibali").rglob("*") if path.is_file()]
    for secret in subject.secrets():
        assert secret not in shown
        assert not any(secret.encode() in content for content in files)


def test_adding_a_site_creates_no_folder(hibali: Any, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    hibali("sites", "add", "two", "--fsspec", f"file://{missing}", "--json", exit=3)
    assert not missing.exists()


def test_limits_of_requests_do_not_belong_to_a_site() -> None:
    site = 'kind = "fsspec"\nfsspec.url = "gs://b"'
    found = problems_of(f"[sites.xx]\nlimits = {{ requests = 5, connections = 2 }}\n{site}\n")
    assert found == [(2, "sites.xx.limits.connections"), (2, "sites.xx.limits.requests")]

"""Test interrupted uploads: they resume, never mix old and new data, and can be aborted."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_proxy import CuttingProxy
from tests.support.transfers import Transfers
from tests.support.trees import sha256

MIB = 1 << 20
WHOLE = 304 * MIB + 11  # 20 parts of 16 MiB, and more than all kills of a test let through
IN_FLIGHT = 64 * MIB  # the data in transfer at a kill, and in the buffers of the kernel


@pytest.fixture
def counted(transfers_to: Any) -> Iterator[tuple[Transfers, CuttingProxy]]:
    """Return S3 behind a proxy that counts the bytes to the server."""
    there = transfers_to("s3")
    proxy = CuttingProxy(int(there.place.endpoint.rpartition(":")[2]))
    config = there.hibali.home.config
    config.write_text(config.read_text().replace(there.place.endpoint, f"http://127.0.0.1:{proxy.port}"))
    there.hibali("sites", "check", "there", exit=0)
    proxy.sent = 0
    yield there, proxy
    proxy.close()


def large(size: int) -> bytes:
    """Return the same content each time, made on request, because each worker would keep it for all of its other tests."""
    numbers = random.Random(11)  # noqa: S311 - no secret
    # one call makes at most 256 MiB
    return numbers.randbytes(size // 2) + numbers.randbytes(size - size // 2)


def push_and_kill(there: Transfers, proxy: CuttingProxy, after: int, number: int = signal.SIGKILL) -> None:
    """End a push once that many bytes were sent."""
    began = proxy.sent
    process = there.hibali.start("push", there.source, "there:data", "--json")
    while proxy.sent < began + after and process.poll() is None:
        time.sleep(0.005)
    assert process.poll() is None, "the push ended before it could be killed"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
    process.wait(60)


def uploads(there: Transfers) -> list[str]:
    return sorted(name.decode() for name in there.place.unfinished("data"))


@pytest.mark.heavy
def test_a_repeatedly_killed_push_resumes_inside_the_file(counted: Any) -> None:
    there, proxy = counted
    content = large(WHOLE)
    there.make({b"large": content})
    kills = (110 * MIB, 100 * MIB, 90 * MIB)
    for after in kills:
        push_and_kill(there, proxy, after)
        assert there.committed_files() == {}, "an incomplete object is visible"
        assert len(uploads(there)) == 1
    receipt = there.push().last
    assert there.committed_files() == {b"large": content}
    assert uploads(there) == []
    assert proxy.sent <= len(content) * 1.03 + len(kills) * IN_FLIGHT
    assert receipt["bytes_sent"] <= len(content) - sum(kills) + len(kills) * IN_FLIGHT
    assert (receipt["files_moved"], receipt["bytes_moved"]) == (1, len(content))
    assert receipt["proof_moved"] == "recorded", "the first parts were hashed by the server in another call"
    assert there.verify(there.source, "there:data").last["proof_tree"] == "digest"
    again = there.push().last
    assert (again["files_moved"], again["bytes_sent"]) == (0, 0)


@pytest.mark.heavy
def test_an_interruption_keeps_uploaded_parts_for_the_next_call(counted: Any) -> None:
    there, proxy = counted
    content = large(128 * MIB)
    there.make({b"large": content})
    push_and_kill(there, proxy, 110 * MIB, signal.SIGTERM)
    assert there.push().last["bytes_sent"] <= 128 * MIB - 110 * MIB + IN_FLIGHT
    assert there.committed_files() == {b"large": content}


@pytest.mark.heavy
@pytest.mark.parametrize("keep_times", [pytest.param(False, marks=pytest.mark.heavy), True])
def test_a_source_that_changed_is_never_mixed_with_its_old_parts(counted: Any, *, keep_times: bool) -> None:
    there, proxy = counted
    content = large(128 * MIB)
    file = there.make({b"large": content}) / "large"
    push_and_kill(there, proxy, 110 * MIB)
    status = file.stat()
    changed = bytes(reversed(content[:MIB])) + content[MIB:-MIB] + bytes(reversed(content[-MIB:]))
    file.write_bytes(changed)
    if keep_times:  # only the bytes themselves differ
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    receipt = there.push().last
    assert receipt["bytes_sent"] >= (16 * MIB if keep_times else len(changed))
    assert sha256(there.place.read("data", b"large")) == sha256(changed)
    assert uploads(there) == []


@pytest.mark.heavy
def test_lost_and_unrecorded_parts_are_sent_again(counted: Any) -> None:
    there, proxy = counted
    content = large(128 * MIB)
    there.make({b"large": content})
    push_and_kill(there, proxy, 110 * MIB)  # more than the data in transfer: some parts are complete
    client, bucket = there.place.bucket.client, there.place.bucket.name
    (upload,) = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    other = b"x" * (16 * MIB)
    client.upload_part(
        Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"], PartNumber=1, Body=other
    )
    assert there.push().last["bytes_sent"] < len(content)
    assert there.place.read("data", b"large") == content
    there.place.remove("data", b"large")
    push_and_kill(there, proxy, 40 * MIB)
    (upload,) = client.list_multipart_uploads(Bucket=bucket)["Uploads"]
    client.abort_multipart_upload(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    assert there.push().last["bytes_sent"] == len(content)
    assert there.place.read("data", b"large") == content


@pytest.mark.heavy
def test_abandoned_uploads_are_listed_and_aborted(counted: Any) -> None:
    there, proxy = counted
    there.make({b"large": large(64 * MIB)})
    push_and_kill(there, proxy, 40 * MIB)
    client, bucket = there.place.bucket.client, there.place.bucket.name
    client.create_multipart_upload(Bucket=bucket, Key="data/of-another")

    def clean(*words: str) -> dict[str, tuple[bool, str]]:
        answer = there.hibali("sites", "clean", "there", "--json", *words, exit=0)
        assert answer.last["count"] == len(answer.lines) - 1
        return {line["key"]: (line["ours"], line["fate"]) for line in answer.lines[:-1]}

    assert clean() == {"data/large": (True, "kept"), "data/of-another": (False, "kept")}
    young = ("--older-than", "0s")
    assert clean(*young, "--dry-run")["data/large"] == (True, "planned")
    assert clean(*young) == {"data/large": (True, "ended"), "data/of-another": (False, "kept")}
    assert uploads(there) == ["data/of-another"]
    assert (
        b"1 of 1 uncompleted upload " in there.hibali("sites", "clean", "there", "--all", *young, exit=0).err
    )
    assert uploads(there) == []
    assert clean(*young) == {}
    assert there.push().last["bytes_sent"] == 64 * MIB


@pytest.mark.heavy
def test_active_uploads_are_not_aborted(counted: Any) -> None:
    there, proxy = counted
    content = large(96 * MIB)
    there.make({b"large": content})
    process = there.hibali.start("push", there.source, "there:data", "--json")
    while proxy.sent < 32 * MIB:
        time.sleep(0.005)
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        answer = there.hibali("sites", "clean", "there", "--all", "--older-than", "0s", "--json", exit=0)
        assert [line["because"] for line in answer.lines[:-1]] == ["in progress"]
    finally:
        os.killpg(process.pid, signal.SIGCONT)
    assert process.wait(60) == 0
    assert there.committed_files() == {b"large": content}


def test_a_folder_has_nothing_to_clean(hibali: Any, tmp_path: Path) -> None:
    hibali("sites", "add", "here", "--local", tmp_path, "--no-check", exit=0)
    answer = hibali("sites", "clean", "here", "--json", exit=2)
    assert answer.last["code"] == "nothing-to-clean"

"""Test two hosts with clocks ten minutes apart and one target: one writes, the other gets the name of the holder (S6)."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.hosts import Host, two_hosts
from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files
from tests.support.waiting import wait_for

LEASE = 10
TEN_MINUTES = 600
MakePair = Callable[..., tuple[Transfers, Host, Host]]


@pytest.fixture
def pair(transfers_to: Any, tmp_path: Path) -> Iterator[MakePair]:
    """Return a function that makes a site of a kind of store, known to two hosts with this difference of their clocks."""
    opened: list[Any] = []

    def make(word: str, apart: int) -> tuple[Transfers, Host, Host]:
        there = transfers_to(word)
        config = there.hibali.home.config
        text = config.read_text()
        limits = "[sites.there.limits]\n"
        lease = f'lease = "{LEASE}s"\n'
        config.write_text(
            text.replace(limits, limits + lease) if limits in text else f"{text}{limits}{lease}"
        )
        hosts = two_hosts(tmp_path, there.hibali.home.runtime, apart=apart)
        north, south = hosts.__enter__()
        opened.append(hosts)
        for host in (north, south):
            host.relay(port_of(there))
        return there, north, south

    yield make
    for hosts in opened:
        hosts.__exit__(None, None, None)


def port_of(there: Transfers) -> int:
    """Return the port of the site's server."""
    place: Any = there.place
    return int(place.endpoint.rpartition(":")[2]) if place.word == "s3" else place.server.port


def lock_of(there: Transfers) -> dict[str, Any] | None:
    """Return the content of the target's lock."""
    content = there.place.read("data", b".hibali/lock")
    return json.loads(content) if content else None


def begin(there: Transfers, host: Host) -> Any:
    """Start a slow push from a host, and return when it holds the lock of the target."""
    with there.under(*host.words):
        process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "200K")
    wait_for(lambda: lock_of(there) is not None or process.poll() is not None)
    assert process.poll() is None, (there.hibali.home.folder / "0.out").read_text()
    return process


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("word", "apart"),
    [
        ("ssh", TEN_MINUTES),
        *(pytest.param(word, TEN_MINUTES, marks=pytest.mark.heavy) for word in ("s3", "sftp")),
        *(pytest.param(word, -TEN_MINUTES, marks=pytest.mark.heavy) for word in ("ssh", "s3", "sftp")),
    ],
)
def test_one_host_works_and_the_other_gets_the_name_of_the_holder(
    pair: MakePair, word: str, apart: int
) -> None:
    there, north, south = pair(word, apart)
    tree = many_files(40, 300_000)
    there.make(tree)
    process = begin(there, north)
    try:
        with there.under(*south.words):
            answer = there.push(exit=5)
        assert answer.last["code"] == "locked"
        assert f"at north, process {process.pid}" in answer.last["message"]
        assert process.poll() is None, "the other host changed the push of the holder"
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(60)
    with there.under(*south.words):
        moved = counts(there.push())
        assert moved["files_failed"] == 0
    assert there.there() == tree
    with there.under(*north.words):
        assert counts(there.push())["files_moved"] == 0, "the clock changed the committed files"
    there.check_no_own_files()


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["ssh", "s3", "sftp"])
def test_the_lock_of_a_killed_holder_expires_with_its_lease(pair: MakePair, word: str) -> None:
    """Check that, if the holder is on another login node, only the lease shows that it is gone."""
    there, north, south = pair(word, TEN_MINUTES)
    if word == "ssh":
        login_nodes(there, north, south)
    tree = many_files(40, 300_000)
    there.make(tree)
    process = begin(there, north)
    holder = lock_of(there)
    assert holder is not None
    if word == "ssh":
        # the agent: otherwise it would notice the end of its client and release the lock
        os.kill(holder["pid"], signal.SIGKILL)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    last = last_renewal(there)
    waited = False
    deadline = time.monotonic() + 60
    with there.under(*south.words):
        while (answer := there.hibali("push", there.source, "there:data", "--json")).exit == 5:
            assert answer.last["code"] == "locked", str(answer)
            assert time.monotonic() < deadline, "the lease does not expire"
            waited = True
    assert answer.exit == 0, str(answer)
    assert time.time() - last >= LEASE - 1, "a valid lease was broken"
    assert waited or time.time() - last > LEASE
    assert there.there() == tree
    there.check_no_own_files()


def last_renewal(there: Transfers) -> float:
    """Return when the lock was last renewed."""
    place: Any = there.place
    if place.word != "s3":
        return (there.root / ".hibali/lock").stat().st_mtime
    found = place.bucket.client.head_object(Bucket=place.bucket.name, Key="data/.hibali/lock")
    return found["LastModified"].timestamp()


def login_nodes(there: Transfers, *hosts: Host) -> None:
    """Let each host reach a remote machine of another name, as with a round-robin address."""
    config = there.hibali.home.config
    for host in hosts:
        python = there.folder / f"python-{host.name}"
        renamed = f'hostname login-of-{host.name} && exec python3 "$@"'
        python.write_text(f"#!/bin/sh\nexec unshare --uts sh -c '{renamed}' sh \"$@\"\n")
        python.chmod(0o755)
        own = config.with_name(f"{host.name}.toml")
        own.write_text(
            config.read_text().replace("[sites.there.ssh]\n", f'[sites.there.ssh]\npython = "{python}"\n')
        )
        own.chmod(0o600)
        host.words.append(f"HIBALI_CONFIG={own}")

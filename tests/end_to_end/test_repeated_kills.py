"""Test a large file whose transfer is killed repeatedly; its network traffic is counted outside of hibali."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_proxy import CuttingProxy
from tests.support.transfers import Transfers

MIB = 1 << 20
IN_FLIGHT = 64 * MIB  # maximum for each kill
OVERHEAD = 1.03
HEAVY = (pytest.mark.heavy, pytest.mark.timeout(1200))


@pytest.fixture
def counted(transfers_to: Any, request: pytest.FixtureRequest) -> Iterator[tuple[Transfers, CuttingProxy]]:
    """Return a site behind a proxy that counts the bytes to it."""
    there = transfers_to(request.param)
    place: Any = there.place
    config = there.hibali.home.config
    if place.word == "s3":
        proxy = CuttingProxy(int(place.endpoint.rpartition(":")[2]))
        config.write_text(config.read_text().replace(place.endpoint, f"http://127.0.0.1:{proxy.port}"))
        there.hibali("sites", "check", "there", exit=0)
    else:
        proxy = CuttingProxy(place.server.port)
        more = f', "-o", "Port={proxy.port}", "-o", "HostKeyAlias={place.server.host}"]\n'
        config.write_text(
            re.sub(r"(command = \[.*)\]\n", lambda found: found.group(1) + more, config.read_text())
        )
    proxy.sent = 0
    yield there, proxy
    proxy.close()


def write_random(path: Path, size: int) -> None:
    """Write that many MiB that cannot be compressed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = random.Random(size)  # noqa: S311 - the same content each time
    with path.open("wb") as stream:
        for _ in range(size):
            stream.write(numbers.randbytes(MIB))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("counted", "size", "each"),
    [
        ("ssh", 128, 64),
        pytest.param("ssh", 2048, 256, marks=HEAVY),
        pytest.param("s3", 2048, 256, marks=HEAVY),
    ],
    indirect=["counted"],
)
def test_repeated_kills_cause_little_repeated_traffic(
    counted: tuple[Transfers, CuttingProxy], size: int, each: int
) -> None:
    there, proxy = counted
    large = there.source / "large"
    write_random(large, size)
    kills = 0
    while (code := push_until(there, proxy, each * MIB)) != 0:
        assert code in {-signal.SIGKILL, 5}  # 5: the agent of the killed push still held the target
        kills += code != 5
        assert kills <= size // each + 2, "no progress"
        seen = there.place.read("data", b"large")  # the kill may have come right after the commit
        assert seen is None or seen == large.read_bytes(), "a file is visible before it is complete"
    allowed = size * MIB * OVERHEAD + kills * IN_FLIGHT
    print(
        f"\n{there.place.word}: {size} MiB, killed {kills} times, {proxy.sent / MIB:.0f} MiB on the wire,"
        f" {(proxy.sent / MIB - size) / max(kills, 1):.1f} MiB more for each kill; allowed {allowed / MIB:.0f}"
    )
    assert kills >= size // each - 1
    assert proxy.sent <= allowed
    same = there.hibali("verify", there.source, "there:data", "--json", exit=0, timeout=600)
    assert same.last["proof_tree"] == "digest"
    there.check_no_own_files()


def push_until(there: Transfers, proxy: CuttingProxy, size: int) -> int:
    """Push, kill the push after that many bytes on the network, and return its exit code."""
    began = proxy.sent
    process = there.hibali.start("push", there.source, "there:data", "--json")
    while process.poll() is None and proxy.sent < began + size:
        time.sleep(0.002)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return int(process.wait())

"""Test copies between two XRootD servers, which the target's server gets from the source's: what they prove, refusals, kills and lies."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali_api.transfers import sync
from tests.services.fsspec_servers import COPY_FAULTS, CloudServer
from tests.support.backends import XRootDBackend
from tests.support.trees import random_bytes
from transfers.engine.routes import server
from transfers.model.facts import is_partial_name

SIZE = 5 << 20
LARGE = random_bytes(1, SIZE)
TREE = {b"large": LARGE, b"d/b +%\xc3\xa4#=": LARGE[::-1], b"d/small": b"1", b"empty": b""}
COPIED = 2 * SIZE  # bytes of the files that are large enough for a third-party copy


class Pair:
    """The sites `one` and `two` at two servers; their folders have other names for each test."""

    def __init__(self, hibali: Any, servers: tuple[CloudServer, CloudServer]) -> None:
        self.hibali = hibali
        self.one, self.two = (XRootDBackend("fsspec", server) for server in servers)
        self.faults = Path(servers[1].root).parent / COPY_FAULTS / self.two.root.name
        self.faults.mkdir()
        self.configure()

    def configure(self, more: str = "") -> None:
        """Write config.toml with `more` settings of the target."""
        tables = [
            f"[sites.{name}]\n{getattr(self, name).table().format(name=name)}" for name in ("one", "two")
        ]
        config = self.hibali.home.config
        config.write_text("version = 1\n" + "\n".join(tables) + more)
        config.chmod(0o600)

    def sync(self, *words: str, code: int = 0) -> dict[str, Any]:
        """Copy the folder; return the receipt, with all notes."""
        answer = self.hibali("sync", "one:data", "two:data", *words, "--json", exit=code)
        receipt: dict[str, Any] = answer.last
        return receipt | {"notes": answer.err.decode()}

    def check_complete(self, tree: dict[bytes, bytes] = TREE) -> None:
        assert self.two.files("data") == tree
        assert not [name for name in self.two.names("data") if is_partial_name(name)]
        assert b".hibali/journal" not in self.two.names("data")

    def close(self) -> None:
        for each in (self.one, self.two):
            each.close()


@pytest.fixture
def pair(hibali: Any, xrootd: CloudServer, xrootd_second: CloudServer) -> Iterator[Pair]:
    hibali.env["PYTHONPATH"] += os.pathsep + xrootd.packages
    made = Pair(hibali, (xrootd, xrootd_second))
    yield made
    made.close()


@pytest.mark.heavy
def test_foreign_files_are_copied_by_the_servers_and_compared_by_their_checksums(pair: Pair) -> None:
    pair.one.plant("data", TREE)
    receipt = pair.sync()
    assert (receipt["mover"], receipt["files_moved"], receipt["proof_moved"]) == (
        "server",
        len(TREE),
        "claimed",
    )
    assert receipt["bytes_sent"] < 100, "large files do not pass through this machine"
    pair.check_complete()
    again = pair.sync()
    assert (again["files_moved"], again["bytes_sent"]) == (0, 0)
    pair.two.remove("data", b"large")
    assert pair.sync("--via", "stream")["mover"] == "stream"


@pytest.mark.heavy
def test_files_with_a_recorded_digest_are_read_back_where_the_target_is(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "large").write_bytes(LARGE)
    pair.hibali("push", str(tmp_path / "source"), "one:data", exit=0)
    receipt = pair.sync()
    assert (receipt["mover"], receipt["proof_moved"], receipt["bytes_sent"]) == ("server", "recorded", SIZE)
    pair.configure("read_back = false\n")
    pair.two.remove("data", b"large")
    receipt = pair.sync()
    assert (receipt["mover"], receipt["proof_moved"], receipt["bytes_sent"]) == ("server", "claimed", 0)
    pair.check_complete({b"large": LARGE})
    assert pair.hibali("verify", str(tmp_path / "source"), "two:data", "--json", exit=0)


@pytest.mark.heavy
def test_the_proof_that_is_asked_for_is_given(pair: Pair) -> None:
    pair.one.plant("data", {b"large": LARGE})
    receipt = pair.sync("--require-proof", "digest")
    assert (receipt["mover"], receipt["proof_moved"]) == ("server", "digest")
    pair.check_complete({b"large": LARGE})


@pytest.mark.heavy
@pytest.mark.parametrize("fault", ["flip", "grow", "lie"])
@pytest.mark.parametrize("more", ["", "read_back = false\n"])
def test_a_copy_that_is_reported_as_done_and_differs_is_never_seen(pair: Pair, fault: str, more: str) -> None:
    pair.configure(more)
    pair.one.plant("data", TREE)
    pair.two.plant("data", {b"large": b"the old version"})
    (pair.faults / fault).touch()
    receipt = pair.sync()
    assert (receipt["mover"], receipt["files_moved"]) == ("stream", len(TREE))
    assert "the adler32 of the third-party copy is not that of the source" in receipt["notes"]
    pair.check_complete()


@pytest.mark.heavy
@pytest.mark.parametrize("fault", ["refuse", "die"])
def test_a_refused_copy_passes_through_this_machine_and_is_noted(pair: Pair, fault: str) -> None:
    pair.one.plant("data", TREE | {b"x&tpc.src=evil": LARGE})
    (pair.faults / fault).touch()
    receipt = pair.sync()
    assert (receipt["mover"], receipt["bytes_sent"] >= COPIED) == ("stream", True)
    assert receipt["notes"].count("the server did not copy") == 1
    pair.check_complete(TREE | {b"x&tpc.src=evil": LARGE})


@pytest.mark.heavy
@pytest.mark.parametrize("source", [True, False])
def test_a_server_without_third_party_copies_is_no_failure(
    hibali: Any, xrootd: CloudServer, xrootd_without_copies: CloudServer, *, source: bool
) -> None:
    hibali.env["PYTHONPATH"] += os.pathsep + xrootd.packages
    servers = (xrootd_without_copies, xrootd) if source else (xrootd, xrootd_without_copies)
    pair = Pair(hibali, servers)
    pair.one.plant("data", TREE)
    receipt = pair.sync()
    assert receipt["mover"] == "stream"
    assert "the servers refused a third-party copy" in receipt["notes"]
    pair.check_complete()
    pair.close()


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_copy_that_is_ended_midway_leaves_nothing_half(pair: Pair, number: int) -> None:
    pair.one.plant("data", TREE)
    pair.two.plant("data", {b"large": b"the old version"})
    (pair.faults / "slow").touch()
    process = pair.hibali.start("sync", "one:data", "two:data", "--json")
    deadline = time.monotonic() + 60
    while not partials(pair) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert partials(pair), "no copy began"
    began = time.monotonic()
    os.killpg(process.pid, number)
    process.wait(60)
    if number == signal.SIGINT:
        assert time.monotonic() - began < 10
    assert pair.two.files("data").get(b"large") == b"the old version"
    (pair.faults / "slow").unlink()
    receipt = pair.sync()
    assert (receipt["mover"], receipt["proof_moved"]) == ("server", "claimed")
    pair.check_complete()


def partials(pair: Pair) -> list[bytes]:
    """Return the partial files that the server's program began to write."""
    folder = pair.two.at("data")
    return [
        name
        for name in pair.two.names("data")
        if is_partial_name(name) and (folder / os.fsdecode(name)).stat().st_size == 9000
    ]


@pytest.mark.heavy
def test_a_source_with_a_stale_checksum_is_not_copied(pair: Pair) -> None:
    """The source's server stored the checksum before the file was damaged."""
    pair.one.plant("data", {b"large": LARGE})
    pair.sync()
    pair.two.remove("data", b"large")
    pair.one.corrupt("data", b"large")
    receipt = pair.sync(code=6)
    assert receipt["files_moved"] == 0
    assert pair.two.files("data") == {}


@pytest.mark.heavy
def test_files_that_wait_for_the_other_way_are_moved_in_batches(
    pair: Pair, xrootd: CloudServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert xrootd.packages in sys.path
    monkeypatch.setattr(server, "_MOST_LEFT", 2)
    tree = {b"%02d" % number: b"1" for number in range(12)} | {
        b"%02d-large" % number: LARGE for number in (5, 9)
    }
    pair.one.plant("data", tree)
    receipt = sync("one:data", "two:data")
    assert (receipt.mover, receipt.files_moved, receipt.bytes_sent < SIZE) == ("server", len(tree), True)
    pair.check_complete(tree)

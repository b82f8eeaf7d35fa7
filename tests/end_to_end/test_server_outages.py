"""Test servers that are unavailable for a few seconds: commands that had reached them reconnect."""

from __future__ import annotations

import json
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import strace
from tests.support.faulty_proxy import LosingProxy
from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files, read_tree
from tests.support.waiting import wait_for

TREE = {
    **many_files(50, 20_000, folders=5),
    b"large": random.Random(6).randbytes(9_000_000),  # noqa: S311 - the same ones each time
}
# Single requests to web servers and object stores are retried for about ten seconds, with any value of `reconnect`.
AWAY_SECONDS = {"ssh": 3.0, "sftp": 3.0}
LONGER = 16.0
HALF = 3_500_000
Through = Callable[..., tuple[Transfers, LosingProxy]]


@pytest.fixture
def through(transfers_to: Any) -> Iterator[Through]:
    """Return a function that makes a site of a kind behind a proxy, with the time for which a command reconnects."""
    proxies: list[LosingProxy] = []

    def make(word: str, reconnect: str = "1m") -> tuple[Transfers, LosingProxy]:
        there = transfers_to(word)
        place: Any = there.place
        server = getattr(place, "server", None)
        port = server.port if word in {"ssh", "sftp"} else int(re.search(r":(\d+)", place.endpoint)[1])  # type: ignore[index]
        # slower than the read-ahead over all possible connections
        proxy = LosingProxy(port, {}, seconds=0.0, rate=5_000_000 if word in {"ssh", "sftp"} else 1_500_000)
        proxies.append(proxy)
        config = there.hibali.home.config
        text = config.read_text()
        if word in {"ssh", "sftp"}:
            more = f', "-o", "Port={proxy.port}", "-o", "HostKeyAlias={server.host}"]\n'
            text = re.sub(r"(command = \[.*)\]\n", lambda found: found.group(1) + more, text)
        else:
            text = text.replace(f":{port}", f":{proxy.port}")
        text = text.replace('reconnect = "0s"', f'reconnect = "{reconnect}"')
        config.write_text(text)
        return there, proxy

    yield make
    for proxy in proxies:
        proxy.close()


def _lose_for_a_while(proxy: LosingProxy, seconds: float) -> None:
    proxy.down = True
    proxy.cut(reset=True)

    def restore() -> None:
        time.sleep(seconds)
        proxy.down = False

    threading.Thread(target=restore, daemon=True).start()


def _check_receipt(there: Transfers) -> None:
    """Check that the receipt counts data moved before and after the outage once."""
    receipt = json.loads((there.hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert receipt["reconnects"] >= 1, (there.hibali.home.folder / "0.err").read_text()
    assert receipt["files"] == len(TREE)
    assert receipt["files_moved"] + receipt["files_kept"] == len(TREE)
    assert receipt["files_failed"] == 0


CALLS = {"link": strace.LINK, "mkdir": strace.MAKE_FOLDER, "sync": strace.SYNC, "unlink": strace.UNLINK}


@pytest.mark.parametrize(
    ("call", "number"),
    [("link", 1), *(pytest.param(call, 1, marks=pytest.mark.heavy) for call in ("mkdir", "sync", "unlink"))],
)
def test_a_connection_lost_before_any_transfer_is_restored(through: Through, call: str, number: int) -> None:
    """Check an outage while the target is created and locked: the first agent ends there, and later ones continue."""
    strace.require_strace()
    there, _ = through("ssh")
    there.make(TREE)
    there.place.plant("data", {b"extra": b"stays"})
    wrapper, first = there.folder / "python3", there.folder / "first"
    words = " ".join(f"'{word}'" for word in strace.kill_at(CALLS[call], number))
    wrapper.write_text(
        f'#!/bin/sh\nmkdir {first} 2>/dev/null && exec {words} python3 "$@"\nexec python3 "$@"\n'
    )
    wrapper.chmod(0o755)
    config = there.hibali.home.config
    config.write_text(
        config.read_text().replace("[sites.there.ssh]\n", f'[sites.there.ssh]\npython = "{wrapper}"\n')
    )
    answer = there.push()
    assert first.exists()
    assert answer.last["reconnects"] == 1
    assert counts(answer)["files_moved"] == len(TREE)
    assert there.there() == {**TREE, b"extra": b"stays"}
    there.check_no_own_files()


@pytest.mark.heavy
@pytest.mark.parametrize(
    "word", ["sftp", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "s3", "webdav"))]
)
def test_a_push_reconnects_after_an_outage(through: Through, word: str) -> None:
    there, proxy = through(word)
    there.make(TREE)
    process = there.hibali.start("push", there.source, "there:data", "--json")
    wait_for(lambda: proxy.passed > HALF or process.poll() is not None)
    _lose_for_a_while(proxy, AWAY_SECONDS.get(word, LONGER))
    assert process.wait(100) == 0, (there.hibali.home.folder / "0.err").read_text()
    assert there.there() == TREE
    _check_receipt(there)
    there.check_no_own_files()
    assert counts(there.push())["files_moved"] == 0


@pytest.mark.parametrize(
    "word", [pytest.param(word, marks=pytest.mark.heavy) for word in ("sftp", "s3", "webdav", "url")]
)
def test_a_pull_reconnects_after_an_outage(through: Through, tmp_path: Path, word: str) -> None:
    there, proxy = through(word)
    there.place.plant("data", TREE)
    back = tmp_path / "back"
    process = there.hibali.start("pull", "there:data", back, "--json")
    wait_for(lambda: proxy.passed > HALF or process.poll() is not None)
    _lose_for_a_while(proxy, AWAY_SECONDS.get(word, LONGER))
    assert process.wait(100) == 0, (there.hibali.home.folder / "0.err").read_text()
    assert read_tree(back) == TREE
    _check_receipt(there)


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["s3", "ssh"])
def test_a_server_that_was_never_reached_is_reported_soon(through: Through, word: str) -> None:
    there, proxy = through(word, reconnect="10m")
    there.make({b"a": b"1"})
    proxy.down = True
    began = time.monotonic()
    assert there.push(exit=5).last["code"] == "unreachable"
    assert time.monotonic() - began < 60

"""Lines to an ssh site that break while data moves: the call goes on, over others or over the same one again."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faulty_proxy import LosingProxy
from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files, read_tree

MIB = 1 << 20
LARGE = random.Random(12).randbytes(32 * MIB + 3)  # noqa: S311 - several pieces for each line
TREE = {**many_files(400, 20_000, folders=5), b"large": LARGE, b"sub/other": LARGE[: 12 * MIB]}
IN_FLIGHT = 64 * MIB  # transfers.store.MOST_BYTES: what several lines may have under way

Losing = Callable[..., tuple[Transfers, LosingProxy]]


@pytest.fixture
def losing(transfers_to: Any) -> Iterator[Losing]:
    """An ssh site whose connections are cut as `losses` says; the settings are added to its tables."""
    proxies: list[LosingProxy] = []

    def make(losses: dict[int, int], ssh: str = "", limits: str = "") -> tuple[Transfers, LosingProxy]:
        there = transfers_to("ssh")
        proxy = LosingProxy(there.place.server.port, losses)
        proxies.append(proxy)
        config = there.hibali.home.config
        through = f', "-o", "Port={proxy.port}", "-o", "HostKeyAlias={there.place.server.host}"]\n{ssh}\n'
        text = re.sub(r"(command = \[.*)\]\n", lambda found: found.group(1) + through, config.read_text())
        # one after the other, so that the first connection is the first line's
        config.write_text(re.sub("login_interval.*", f'login_interval = "0.2s"\n{limits}', text))
        return there, proxy

    yield make
    for proxy in proxies:
        proxy.close()


def size_of(tree: dict[bytes, bytes]) -> int:
    return sum(map(len, tree.values()))


@pytest.mark.parametrize("way", ["push", "pull"])
def test_one_of_several_lines_is_lost_and_others_do_its_work(
    losing: Losing, tmp_path: Path, way: str
) -> None:
    there, proxy = losing({}, "logins = 3\nchannels = 3")
    there.make(TREE)
    if way == "pull":
        there.place.plant("data", TREE)
    proxy.losses.update({1: 2 * MIB})
    answer = there.push() if way == "push" else there.pull(tmp_path / "back")
    assert counts(answer)["files_moved"] == len(TREE)
    assert answer.last["proof_moved"] == "digest"
    assert answer.last["reconnects"] >= 1, (proxy.connections, proxy.losses, str(answer))
    assert size_of(TREE) <= answer.last["bytes_sent"] <= size_of(TREE) + IN_FLIGHT
    assert (there.there() if way == "push" else read_tree(tmp_path / "back")) == TREE
    there.nothing_of_ours_there()
    assert not proxy.losses


@pytest.mark.parametrize("way", ["push", "pull"])
def test_all_lines_are_lost_once_and_the_call_comes_back(losing: Losing, tmp_path: Path, way: str) -> None:
    there, proxy = losing({0: 12 * MIB}, "channels = 3")
    there.make(TREE)
    if way == "pull":
        there.place.plant("data", TREE)
    answer = there.push() if way == "push" else there.pull(tmp_path / "back")
    assert counts(answer)["files_moved"] == counts(answer)["files"] == len(TREE)
    assert answer.last["proof_moved"] == "digest"
    assert answer.last["reconnects"] >= 1
    assert answer.last["logins"] == proxy.connections == 2
    assert size_of(TREE) <= answer.last["bytes_sent"] <= size_of(TREE) + IN_FLIGHT
    assert "trying again in 3 s" in answer.err.decode()
    assert (there.there() if way == "push" else read_tree(tmp_path / "back")) == TREE
    there.nothing_of_ours_there()

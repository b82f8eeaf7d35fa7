"""Test large transfers over several channels and logins of a slow connection: complete, sent once, verified, and without unneeded logins."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.annex_key import key_of
from tests.support.annex_protocol import AnnexRemoteClient
from tests.support.faulty_proxy import LatencyProxy
from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files, random_bytes, read_tree


def large() -> bytes:
    """Return several pieces for each connection."""
    return random_bytes(5, 40_000_003)


def full_tree() -> dict[bytes, bytes]:
    """Return the files to transfer."""
    return {
        **many_files(600, 20_000, folders=7),
        b"large": large(),
        b"sub/other": large()[:9_000_000],
        b"zeros": large()[:99] + bytes(30_000_000) + b"x",
    }


@pytest.fixture
def distant(transfers_to: Any) -> Iterator[Callable[[str], tuple[Transfers, LatencyProxy]]]:
    """Return a function that makes an ssh site with a long round trip; the settings are added to its ssh table."""
    proxies: list[LatencyProxy] = []

    def make(settings: str) -> tuple[Transfers, LatencyProxy]:
        there = transfers_to("ssh")
        proxy = LatencyProxy(there.place.server.port, 0.02)
        proxies.append(proxy)
        config = there.hibali.home.config
        through = (
            f', "-o", "Port={proxy.port}", "-o", "HostKeyAlias={there.place.server.host}"]\n{settings}\n'
        )
        text = re.sub(r"(command = \[.*)\]\n", lambda found: found.group(1) + through, config.read_text())
        config.write_text(text)
        return there, proxy

    yield make
    for proxy in proxies:
        proxy.close()


@pytest.mark.heavy
@pytest.mark.parametrize(("logins", "channels"), [(1, 4), (3, 4)])
def test_files_are_pushed_and_pulled_over_many_connections(
    distant: Any, tmp_path: Path, logins: int, channels: int
) -> None:
    there, proxy = distant(f"logins = {logins}\nchannels = {channels}")
    there.make(full_tree())
    pushed = there.push()
    assert counts(pushed)["files_moved"] == len(full_tree())
    assert pushed.last["proof_moved"] == "digest"
    assert there.there() == full_tree()
    there.check_no_own_files()
    assert proxy.connections == logins
    assert pushed.last["logins"] == logins
    assert counts(there.pull(tmp_path / "back"))["files_moved"] == len(full_tree())
    assert read_tree(tmp_path / "back") == full_tree()
    assert proxy.connections == logins


@pytest.mark.heavy
def test_a_rejected_additional_login_reduces_the_number_of_connections(distant: Any) -> None:
    there, proxy = distant("logins = 4\nchannels = 4")
    there.make(full_tree())
    refused = there.folder / "refused"
    ssh = there.folder / "ssh"
    ssh.write_text(
        f"#!/bin/sh\ncase $* in *ControlMaster=yes*-[123]\\ *) echo >>{refused};"
        ' echo "Permission denied (publickey)." >&2; exit 255;; esac\nexec ssh "$@"\n'
    )
    ssh.chmod(0o755)
    config = there.hibali.home.config
    config.write_text(config.read_text().replace('command = ["ssh"', f'command = ["{ssh}"'))
    answer = there.push()
    assert there.there() == full_tree()
    assert proxy.connections == 1
    assert "fewer channels than requested" in answer.err.decode()
    assert refused.read_text().splitlines() == [""]
    there.make({b"more": large()[:20_000_000]})
    there.push()
    assert refused.read_text().splitlines() == [""]  # the first login is that of the earlier transfer


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["bwlimit", "bandwidth"])
def test_a_slow_connection_gets_few_logins(distant: Any, word: str) -> None:
    there, proxy = distant("logins = 8")
    config = there.hibali.home.config
    assert 'login_interval = "0s"' in config.read_text()
    if word == "bandwidth":
        config.write_text(re.sub("(login_interval.*)", r'\1\nbandwidth = "1M"', config.read_text()))
    there.make({f"file {number}".encode(): large()[:1_500_000] for number in range(4)})
    answer = there.push(*(["--bwlimit", "1M"] if word == "bwlimit" else []))
    assert answer.last["limited_by"] == word
    assert (proxy.connections, answer.last["logins"]) == (1, 1)


@pytest.mark.heavy
def test_contents_of_git_annex_are_sent_over_many_connections(distant: Any, tmp_path: Path) -> None:
    there, proxy = distant("channels = 4")
    contents = [large(), large()[::-1], large()[:9_000_000], b"small"]
    keys = [key_of(len(one), hashlib.sha256(one).hexdigest()) for one in contents]
    conversation = AnnexRemoteClient(there.hibali.env, there.hibali.home.home, "there:annex")
    try:
        assert conversation.request("INITREMOTE") == "INITREMOTE-SUCCESS"
        for key, content in zip(keys, contents, strict=True):
            (tmp_path / "content").write_bytes(content)
            stored = conversation.request(f"TRANSFER STORE {key} {tmp_path}/content")
            assert stored == f"TRANSFER-SUCCESS STORE {key}"
        for key, content in zip(keys, contents, strict=True):
            fetched = conversation.request(f"TRANSFER RETRIEVE {key} {tmp_path}/fetched-{key}")
            assert fetched == f"TRANSFER-SUCCESS RETRIEVE {key}"
            assert (tmp_path / f"fetched-{key}").read_bytes() == content
            assert conversation.request(f"REMOVE {key}") == f"REMOVE-SUCCESS {key}"
            assert conversation.request(f"CHECKPRESENT {key}") == f"CHECKPRESENT-FAILURE {key}"
    finally:
        conversation.kill()
    assert there.place.files("annex") == {}
    assert proxy.connections == 1

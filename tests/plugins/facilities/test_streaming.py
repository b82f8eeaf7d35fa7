"""Test large files over the streamer of FirecREST: the unmodified one, in jobs of the tests' Slurm."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hibali_plugins.facilities.firecrest.streaming import read_coordinates
from tests.services.firecrest import STREAMER, Firecrest
from tests.support.requirements import require_prepared
from tests.support.rest_sites import NAME, RestSite, open_site

MIB = 1024 * 1024


class Place:
    """hibali with one site behind a FirecREST that has a streamer."""

    def __init__(self, hibali: Any, site: RestSite) -> None:
        self.hibali = hibali
        self.double: Firecrest = site.double
        self.site = site
        self.double.transfer_method = "streamer"
        self.allow("streamer = true\n")

    def allow(self, setting: str) -> None:
        """Write config.toml with this setting of the service."""
        config: Path = self.hibali.home.config
        table = self.site.table().replace('system = "daint"\n', f'system = "daint"\n{setting}')
        config.write_text(f"version = 1\n[sites.{NAME}]\n{table}")
        config.chmod(0o600)

    def streaming(self) -> list[str]:
        """Return the states of the jobs of streamers that have not ended."""
        jobs = self.double.jobs.table().values()
        names = {"IngressFileTransfer", "OutgressFileTransfer"}
        return [
            each["JobState"]
            for each in jobs
            if each["JobName"] in names and each["JobState"] in {"PENDING", "RUNNING"}
        ]


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    if request.node.get_closest_marker("heavy"):  # the others end before a job starts it
        require_prepared(STREAMER, "rest")
    site = open_site(request, "firecrest")
    return Place(request.getfixturevalue("hibali"), site)


@pytest.mark.heavy
def test_large_files_go_there_and_back_verified(place: Place, tmp_path: Path) -> None:
    contents = {
        "plain": os.urandom(23 * MIB + 7),
        "with space & $x": os.urandom(6 * MIB),
        "exact": os.urandom(10 * MIB),
        "small": b"1",
    }
    tree = tmp_path / "tree"
    tree.mkdir()
    for name, content in contents.items():
        (tree / name).write_bytes(content)
    there = place.hibali("push", tree, f"{NAME}:data", "--json", exit=0).last
    assert there["files_moved"] == 4
    assert {
        each.name: each.read_bytes() for each in (place.double.home / "data").iterdir() if each.is_file()
    } == contents
    place.hibali("verify", tree, f"{NAME}:data", exit=0)
    place.hibali("pull", f"{NAME}:data", tmp_path / "back", exit=0)
    assert {name: (tmp_path / "back" / name).read_bytes() for name in contents} == contents
    _wait(lambda: not place.streaming())


def test_it_is_refused_unless_the_settings_allow_it(place: Place, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(6 * MIB))
    place.allow("")
    answer = place.hibali("push", tmp_path / "large", f"{NAME}:large", "--json").lines
    said = [line for line in answer if line.get("code") == "transfer-method" or "not encrypted" in str(line)]
    assert said, answer
    assert not (place.double.home / "large").exists()
    place.double.transfer_method = "wormhole"
    place.allow("streamer = true\n")
    answer = place.hibali("push", tmp_path / "large", f"{NAME}:large", "--json").lines
    assert "only by its wormhole" in str(answer)
    assert (
        place.hibali("sites", "check", NAME, "--json", exit=0).last["facts"]["large files by"] == "wormhole"
    )


@pytest.mark.heavy
def test_a_file_above_the_limit_of_the_streamer_is_refused_with_its_reason(
    place: Place, tmp_path: Path
) -> None:
    place.double.inbound_limit = 10 * MIB
    (tmp_path / "large").write_bytes(os.urandom(40 * MIB))
    answer = place.hibali("push", tmp_path / "large", f"{NAME}:large", "--json", exit=6).lines
    assert "Inbound transfer limit exceeded" in str(answer)
    assert not (place.double.home / "large").exists()
    _wait(lambda: not place.streaming())


@pytest.mark.heavy
@pytest.mark.parametrize(
    "words",
    [("push", "{local}", f"{NAME}:large"), ("pull", f"{NAME}:large", "{local}2")],
    ids=["push", "pull"],
)
def test_a_killed_transfer_begins_anew(place: Place, tmp_path: Path, words: tuple[str, ...]) -> None:
    content = os.urandom(60 * MIB)
    local = tmp_path / "large"
    local.write_bytes(content)
    if words[0] == "pull":
        (place.double.home / "large").write_bytes(content)
    argv = [word.format(local=local) for word in words]
    process = place.hibali.start(*argv)
    _wait(lambda: bool(place.streaming()))
    time.sleep(1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    place.hibali(*argv, exit=0)
    found = place.double.home / "large" if words[0] == "push" else tmp_path / "large2"
    assert found.read_bytes() == content


def test_a_file_above_the_limit_that_the_system_announces_is_not_begun(place: Place, tmp_path: Path) -> None:
    place.double.announced = {"inboundTransferLimit": 5 * MIB}
    (tmp_path / "large").write_bytes(os.urandom(6 * MIB))
    answer = place.hibali("push", tmp_path / "large", f"{NAME}:large", "--json", exit=6).lines
    assert "at most 5.0 MiB" in str(answer) or "at most 5.2 MB" in str(answer)
    _wait(lambda: not place.streaming())


def _wait(reached: Callable[[], bool]) -> None:
    until = time.monotonic() + 60
    while not reached():
        assert time.monotonic() < until
        time.sleep(0.05)


def encoded(record: Any) -> str:
    """Return coordinates as the service writes them."""
    return base64.urlsafe_b64encode(json.dumps(record).encode()).decode()


GOOD = {"ports": [5665, 5675], "ips": ["data1.example.org", "192.0.2.7"], "secret": "s" * 22}


def test_coordinates_are_read_and_their_secret_is_not_shown() -> None:
    found = read_coordinates(encoded(GOOD), is_local=False)
    assert (found.hosts, len(found.ports), found.secret) == (("data1.example.org", "192.0.2.7"), 11, "s" * 22)
    assert "sss" not in repr(found)


@pytest.mark.parametrize(
    "odd",
    [
        {"ips": ["localhost"]},
        {"ips": ["127.0.0.1"]},
        {"ips": ["0.0.0.0"]},  # noqa: S104
        {"ips": ["::ffff:127.0.0.1"]},
        {"ips": ["169.254.169.254"]},
        {"ips": ["fe80::1"]},
        {"ips": ["LOCALHOST."]},
        {"ips": []},
        {"ips": "data1.example.org"},
        {"ips": ["a b"]},
        {"ips": ["x\r\nHost: y"]},
        {"ips": ["a"] * 100},
        {"ips": [1]},
        {"ports": [1, 65535]},
        {"ports": [0, 5]},
        {"ports": [5, 4]},
        {"ports": [65530, 65540]},
        {"ports": [1.5, 2]},
        {"ports": [1]},
        {"ports": 5},
        {"secret": "a b c d e f"},
        {"secret": "x\r\nX-Header: y"},
        {"secret": None},
    ],
    ids=str,
)
def test_odd_coordinates_are_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="they"):
        read_coordinates(encoded({**GOOD, **odd}), is_local=False)


@pytest.mark.parametrize(
    "text",
    ["", "é", "####", encoded([]), encoded("x"), base64.b64encode(b"[" * 100_000).decode()],
    ids=range(6),
)
def test_texts_that_are_no_coordinates_are_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # of the decoder
        read_coordinates(text, is_local=True)


@pytest.mark.heavy
def test_odd_coordinates_end_the_job_and_name_what_is_wrong(place: Place, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(6 * MIB))
    place.double.coordinates = {"ports": [1, 65535]}
    answer = place.hibali("push", tmp_path / "large", f"{NAME}:large", "--json", exit=6).lines
    assert "they have no range of ports" in str(answer)
    _wait(lambda: not place.streaming())


@pytest.mark.heavy
def test_another_server_on_the_first_port_is_passed_over(place: Place, tmp_path: Path) -> None:
    """Another user's streamer rejects the secret, other programs say nothing of the protocol."""
    (tmp_path / "large").write_bytes(os.urandom(6 * MIB))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place.double.first_port = silent.getsockname()[1]
        place.hibali("push", tmp_path / "large", f"{NAME}:large", exit=0)

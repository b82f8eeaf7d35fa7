"""Test web servers as sources: each file is fetched once, listings cause no deletions, and no login leaks."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.config.settings import load_sites
from hibali.errors import RefusedError
from hibali.locations import read_location
from tests.end_to_end.conftest import MakeTransfers
from tests.support.trees import make_tree, read_tree
from tests.support.web_server import WebServer
from transfers.stores.open_store import open_store

LARGE = bytes(range(256)) * 4096 * 20 + b"end"
TREE = {b"a & b?#%/c": b"1", b"d/e/f": b"22", b"empty": b"", b"large": LARGE, "ä\nö".encode(): b"3"}


class Web:
    """A web server as the site `web`, with hibali's command line."""

    def __init__(self, hibali: Any, root: Path) -> None:
        self.hibali = hibali
        self.root = root
        self.server = WebServer(root)

    def configure(self, more: str = "") -> None:
        self.hibali.home.config.write_text(
            f'version = 1\n[sites.web]\nkind = "url"\nurl = "{self.server.url}"\n{more}'
        )
        self.hibali.home.config.chmod(0o600)

    def pull(self, source: str, target: Path, *words: str, code: int = 0) -> Any:
        return self.hibali("pull", f"web:{source}", target, "--json", *words, exit=code)


@pytest.fixture
def web(hibali: Any, tmp_path: Path) -> Iterator[Web]:
    made = Web(hibali, make_tree(tmp_path / "served", TREE))
    made.configure()
    yield made
    made.server.close()


@pytest.mark.parametrize("ranges", [True, pytest.param(False, marks=pytest.mark.heavy)])
def test_a_tree_is_fetched_once_and_verified_by_size(web: Web, tmp_path: Path, *, ranges: bool) -> None:
    web.server.ranges = ranges
    receipt = web.pull("", tmp_path / "here").last
    assert (receipt["files_moved"], receipt["proof_moved"], receipt["exit"]) == (5, "size", 0)
    assert {
        name: leaf for name, leaf in read_tree(tmp_path / "here").items() if isinstance(leaf, bytes)
    } == TREE
    again = web.pull("", tmp_path / "here").last
    assert (again["files_moved"], again["bytes_sent"]) == (0, 0)
    web.hibali("verify", tmp_path / "here", "web:", exit=0)
    (web.root / "d/e/f").write_bytes(b"333")
    assert web.pull("", tmp_path / "here").last["files_moved"] == 1


def test_one_file_is_fetched_by_its_name_and_names_are_listed(web: Web, tmp_path: Path) -> None:
    assert web.pull("d/e/f", tmp_path / "g").last["files_moved"] == 1
    assert (tmp_path / "g").read_bytes() == b"22"
    names = [line["path"] for line in web.hibali("ls", "web:", "--json", exit=0).lines if "path" in line]
    assert names == ["a & b?#%", "d", "empty", "large", "ä\nö"]
    assert web.pull("nothing/here", tmp_path / "h", code=3).last["code"] == "no-such-source"


def test_listings_of_web_pages_delete_nothing(web: Web, tmp_path: Path) -> None:
    make_tree(tmp_path / "here", {b"mine": b"1"})
    refused = web.pull("", tmp_path / "here", "--delete", code=8)
    assert refused.last["code"] == "listing-unproven"
    assert read_tree(tmp_path / "here") == {b"mine": b"1"}


def test_web_servers_are_read_only(web: Web, tmp_path: Path) -> None:
    refused = web.hibali("push", make_tree(tmp_path / "mine", {b"x": b"1"}), "web:d", "--json", exit=8)
    assert refused.last["code"] == "read-only-site"
    store = open_store(read_location("web:d", load_sites(str(web.hibali.home.config))))
    entries = list(store.list())
    for refuse in (
        lambda: list(store.remove(entries)),
        lambda: list(store.write([])),
        lambda: store.lock("test"),
        store.make_root,
    ):
        with pytest.raises(RefusedError):
            refuse()
    store.close()
    assert {line.split()[0] for line in web.server.seen} <= {"GET", "HEAD"}
    assert (web.root / "d/e/f").read_bytes() == b"22"


def test_links_to_other_places_are_not_listed(web: Web, tmp_path: Path) -> None:
    (web.root / "d" / "a&b").write_bytes(b"kept")
    links = [
        "e/",
        "a&amp;b",
        "../empty",
        "/empty",
        "http://127.0.0.1:9/d/x",
        "?C=N",
        "#top",
        "gone",
        "e/f",
        "mailto:x@y",
        "..",
    ]
    page = "".join(f'<p><a href="{link}">x</a>' for link in links)
    (web.root / "d" / "index.html").write_text(f"<html>{page}</html>")
    assert web.pull("d", tmp_path / "here").last["files_moved"] == 2
    found = {name: leaf for name, leaf in read_tree(tmp_path / "here").items() if isinstance(leaf, bytes)}
    assert found == {b"a&b": b"kept", b"e/f": b"22"}


SECRET = "planted secret word"


def printing(text: str) -> str:
    """Return a setting whose command prints `text`."""
    return f"credentials_command = {json.dumps([sys.executable, '-c', f'print({text!r})'])}\n"


def test_a_login_comes_from_its_command_and_is_never_printed(web: Web, tmp_path: Path) -> None:
    web.server.close()
    web.server = WebServer(web.root, login=("me", SECRET))
    web.configure()
    assert web.pull("d", tmp_path / "here", code=4).last["code"] == "denied"
    web.configure(printing(json.dumps({"username": "me", "password": SECRET + "!"})))
    wrong = web.pull("d", tmp_path / "here", code=4)
    assert SECRET.encode() not in wrong.out + wrong.err
    web.configure(printing("not what it should be " + SECRET))
    wrong = web.pull("d", tmp_path / "here", code=4)
    assert wrong.last["code"] == "no-credentials"
    assert SECRET.encode() not in wrong.out + wrong.err
    web.configure(printing(json.dumps({"username": "me", "password": SECRET})))
    answer = web.pull("d", tmp_path / "here")
    assert answer.last["files_moved"] == 1
    state = b"".join(path.read_bytes() for path in web.hibali.home.state.rglob("*") if path.is_file())
    assert SECRET.encode() not in answer.out + answer.err + state


def test_redirects_to_another_host_are_refused_and_get_no_login(web: Web, tmp_path: Path) -> None:
    other = WebServer(web.root, login=("me", SECRET))
    web.configure(printing(json.dumps({"username": "me", "password": SECRET})))
    web.server.redirect = f"{other.url}/d/"
    answer = web.pull("d", tmp_path / "here", code=2)
    assert answer.last["code"] == "wrong-endpoint"
    assert other.seen == []  # each redirect is checked before it is requested
    other.close()
    assert not (tmp_path / "here").exists()


@pytest.mark.heavy
def test_an_unreachable_server_is_not_an_empty_one(web: Web, tmp_path: Path) -> None:
    web.server.close()
    assert web.pull("d", tmp_path / "here", code=5).last["code"] == "unreachable"
    assert web.hibali("sites", "check", "web", "--json", exit=5).lines


def test_a_login_is_sent_unencrypted_only_on_this_machine(web: Web, tmp_path: Path) -> None:
    web.configure(printing("{}"))
    config = web.hibali.home.config
    config.write_text(config.read_text().replace("127.0.0.1", "192.0.2.1"))
    assert web.pull("d", tmp_path / "here", code=2).last["code"] == "insecure-endpoint"


def test_an_unsupported_protocol_is_reported(web: Web, tmp_path: Path) -> None:
    config = web.hibali.home.config
    config.write_text(config.read_text().replace("http://", "smb://"))
    answer = web.pull("d", tmp_path / "here", code=2)
    assert answer.last["code"] == "not-built"
    assert "smb" in answer.last["message"]


def test_nothing_is_made_or_removed_at_a_read_only_site(transfers_to: MakeTransfers) -> None:
    there = transfers_to("url")
    there.place.plant("data", {b"a": b"1"})
    for words in (("rm", "there:data/a"), ("mkdir", "there:data/x")):
        assert there.hibali(*words, "--json", exit=8).last["code"] == "read-only-site"

"""Test the Globus settings of config.toml: clients, collections, and path mappings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hibali.config.edit import add_site
from hibali.config.model import GlobusClient, GlobusSettings
from hibali.config.settings import Settings, SettingsError, parse_settings
from hibali.errors import UsageError
from hibali_plugins.globus.clients import client_of
from transfers.engine.collections import path_in_collection

ONE, OTHER, DATA = (f"{digit * 8}-0000-4000-8000-{'0' * 12}" for digit in "abc")
PLACE = Path("config.toml")


def parse(text: str) -> Settings:
    return parse_settings(f"version = 1\n{text}", PLACE)


def problems_of(text: str) -> list[tuple[int, str]]:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    return [(found["line"], found["key"]) for found in caught.value.problems]


def test_a_site_has_its_own_client_or_the_default_client() -> None:
    found = parse(f"""
[globus]
client_id = "{ONE.upper()}"
[sites.archive]
kind = "globus"
roots = {{ data = "/data" }}
default_root = "data"
[sites.archive.globus]
collection = "{DATA}"
[sites.juwels]
kind = "ssh"
[sites.juwels.ssh]
host = "juwels"
[sites.juwels.globus]
collection = "{DATA}"
paths = {{ "/p/scratch" = "/scratch" }}
https = true
data_access = true
deadline = "2d"
client_id = "{OTHER}"
secret_command = ["pass", "globus"]
""")
    assert found.globus == GlobusClient(ONE)
    assert found.site("archive").globus == GlobusSettings(DATA, client=GlobusClient(ONE))
    client = GlobusClient(OTHER, secret_command=("pass", "globus"))
    assert found.site("juwels").globus == GlobusSettings(
        DATA,
        {"/p/scratch": "/scratch"},
        https=True,
        client=client,
        data_access=True,
        deadline_seconds=2 * 86400.0,
    )
    assert (client.confidential, found.globus.confidential) == (True, False)


def test_the_client_of_the_project_serves_sites_that_name_none(monkeypatch: pytest.MonkeyPatch) -> None:
    table = f'[sites.archive]\nkind = "globus"\n[sites.archive.globus]\ncollection = "{DATA}"\n'
    with pytest.raises(UsageError) as caught:
        client_of(parse(table).site("archive"))
    assert (caught.value.code, "config set globus.client_id" in caught.value.hint) == (
        "no-globus-client",
        True,
    )
    monkeypatch.setattr("hibali.config.settings.GLOBUS_CLIENT_ID", ONE)
    assert client_of(parse(table).site("archive")) == GlobusClient(ONE)
    own = parse(f'[globus]\nclient_id = "{OTHER}"\n{table}')
    assert client_of(own.site("archive")) == GlobusClient(OTHER)


def test_errors_have_line_numbers_and_secrets_are_refused() -> None:
    assert problems_of(f"""[globus]
client_id = "mine"
client_secret = "x"
secret_variable = "A B"
[sites.aa]
kind = "globus"
work = "~/x"
roots = {{ scratch = "$SCRATCH" }}
[sites.bb]
kind = "globus"
[sites.bb.globus]
collection = "{DATA}"
paths = {{ "/a" = "/b" }}
secret_keyring = "hibali"
[sites.cc]
kind = "s3"
[sites.cc.s3]
endpoint = "aws"
[sites.cc.globus]
collection = "{DATA}"
[sites.dd]
kind = "local"
[sites.dd.globus]
client_id = "{ONE}"
secret_variable = "A"
secret_command = ["b"]
paths = {{ "a" = "/b" }}
""") == [
        (3, "globus.client_id"),
        (4, "globus.client_secret"),
        (5, "globus.secret_variable"),
        (6, "sites.aa"),
        (8, "sites.aa.work"),
        (9, "sites.aa.roots.scratch"),
        (14, "sites.bb.globus.paths"),
        (15, "sites.bb.globus.secret_keyring"),
        (20, "sites.cc.globus"),
        (24, "sites.dd.globus"),
        (24, "sites.dd.globus"),
        (28, "sites.dd.globus.paths"),
    ]  # fmt: skip
    assert problems_of("[globus]\n") == [(2, "globus")]


def test_adding_a_site_keeps_the_default_client(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'version = 1\n# mine\n[globus]\nclient_id = "{ONE}"\n')
    table = {"kind": "globus", "globus": {"collection": DATA}}
    change, site = add_site(str(config), "archive", table)
    assert (change, site.globus) == ("added", GlobusSettings(DATA, client=GlobusClient(ONE)))
    assert add_site(str(config), "archive", table)[0] == "same"
    assert "# mine\n[globus]\n" in config.read_text()
    with pytest.raises(UsageError):
        add_site(str(config), "other", {"kind": "globus"})


def test_paths_of_the_filesystem_and_of_the_collection() -> None:
    text = f"""[sites.xx]
kind = "local"
[sites.xx.globus]
collection = "{DATA}"
paths = {{ "/p/scratch" = "/scratch", "/p" = "/" }}
[sites.yy]
kind = "globus"
[sites.yy.globus]
collection = "{DATA}"
[sites.zz]
kind = "local"
[sites.zz.globus]
collection = "{DATA}"
paths = {{ "/" = "/all/" }}
"""
    xx, yy, zz = (parse(text).site(name) for name in ("xx", "yy", "zz"))
    assert [path_in_collection(xx, path) for path in ("/p/scratch", "/p/scratch/a b", "/p/scratches", "/q", "/p", "~/a")] == [
        "/scratch", "/scratch/a b", "/scratches", None, "/", None,
    ]  # fmt: skip
    assert [path_in_collection(yy, path) for path in ("/a", "~", "~/a")] == ["/a", "/~", "/~/a"]
    assert [path_in_collection(zz, path) for path in ("/", "/a/b")] == ["/all/", "/all/a/b"]


def test_options_set_the_collection_of_a_site_of_another_kind(hibali: Any) -> None:
    collection = ("--globus", "a0a0a0a0-1111-2222-3333-444444444444", "--globus-path", "/p=/q")
    hibali("sites", "add", "full", "--ssh", "h", "--root", "a=/a", *collection, "--no-check", exit=0)
    assert hibali("sites", "show", "full", "--json").last["globus"]["paths"] == {"/p": "/q"}

"""Test that sites with a URL are added and read, and which settings belong to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hibali.config.kinds import kind_of
from hibali.config.settings import SettingsError, parse_settings, require_built


def test_the_options_of_sites_add_set_their_keys(hibali: Any) -> None:
    web = ("--url", "https://example.org", "--credentials-command", "pass w")
    hibali("sites", "add", "web", *web, "--no-check", exit=0)
    assert hibali("sites", "show", "web", "--json").last["credentials_command"] == ["pass", "w"]
    hibali("sites", "add", "smb", "--url", "smb://example.org", "--no-check", exit=0)
    assert hibali("sites", "check", "smb", "--json", exit=2).last["code"] == "not-built"


def test_limits_of_object_stores_do_not_belong() -> None:
    text = (
        '[sites.xx]\nlimits = { requests = 5, connections = 2 }\nkind = "url"\nurl = "https://example.org/"\n'
    )
    with pytest.raises(SettingsError) as caught:
        parse_settings(text, Path("config.toml"))
    assert [line.partition(": ")[0] for line in caught.value.message.splitlines()[1:]] == ["line 2"] * 2


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("https://example.org/data", ("example.org", 443)),
        ("http://example.org:8080", ("example.org", 8080)),
        ("davs://example.org/dav", ("example.org", 443)),
        ("dav://127.0.0.1/dav", ("127.0.0.1", 80)),
    ],
)
def test_doctor_connects_to_the_host_and_port_of_the_url(url: str, server: tuple[str, int]) -> None:
    site = parse_settings(f'[sites.xx]\nkind = "url"\nurl = "{url}"\n', Path("config.toml")).sites["xx"]
    require_built(site)
    assert site.url == url
    assert kind_of(site).server(site) == server

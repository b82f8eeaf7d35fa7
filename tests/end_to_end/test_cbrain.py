"""Test transfers with the double of a CBRAIN portal: pushes, pulls, registration in bulk, lost answers and kills."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.services.cbrain import EXPIRED, LOST, PASSWORD, CbrainDouble, Provider
from tests.services.cbrain_contents import BucketContents

SITE = """
[sites.mcgill]
kind = "cbrain"
[sites.mcgill.cbrain]
url = "{url}"
login = "me"
password_command = ["printenv", "TEST_CBRAIN_SECRET"]
{more}
[sites.mcgill.limits]
settling = "1s"
reconnect = "0s"
"""


@pytest.fixture(autouse=True)
def _secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_CBRAIN_SECRET", PASSWORD)


@pytest.fixture
def portal(cbrain: CbrainDouble, hibali_home: Any) -> CbrainDouble:
    """A portal with the data provider `lab`, which is the site `mcgill`."""
    cbrain.add_provider("lab")
    hibali_home.config.write_text(SITE.format(url=cbrain.url, more=""))
    return cbrain


def lab(portal: CbrainDouble) -> Provider:
    return next(iter(portal.providers.values()))


def test_files_are_pushed_and_pulled(portal: CbrainDouble, hibali: Any, tmp_path: Path) -> None:
    source = tmp_path / "data"
    source.mkdir()
    contents = {"a.txt": b"abc", "scan.nii.gz": bytes(range(256)) * 40_000, "empty.csv": b""}
    for name, content in contents.items():
        (source / name).write_bytes(content)
    hibali("push", source, "mcgill:@lab")
    named = portal.named(lab(portal))
    assert {name: len(found) for name, found in named.items()} == dict.fromkeys(contents, 1)
    assert named["scan.nii.gz"][0].type == "NiftiFile"
    assert all(lab(portal).contents.read(name) == content for name, content in contents.items())
    ids = {name: found[0].id for name, found in named.items()}
    posts = portal.requests.count("POST /userfiles")
    hibali("push", source, "mcgill:@lab")
    assert {name: found[0].id for name, found in portal.named(lab(portal)).items()} == ids
    assert portal.requests.count("POST /userfiles") == posts
    hibali("pull", "mcgill:@lab", tmp_path / "back")
    assert {path.name: path.read_bytes() for path in (tmp_path / "back").iterdir()} == contents
    assert portal.refused == []

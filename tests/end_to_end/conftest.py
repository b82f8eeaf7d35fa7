"""Fixtures of the transfer tests: a location in each kind of store, configured as the site `there`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.image_tools import Tool, make_tool
from tests.support.backends import Backend, add_site, make_backend
from tests.support.requirements import skip_or_fail
from tests.support.transfers import STORES, Transfers

MakeTransfers = Callable[..., Transfers]

# An ssh site runs the same agent as a local site, so one of the two is enough here. The contract suite tests both;
# `local_there` is for behaviour that does not depend on the store. Tests for every store use S3 only as heavy tests, because
# the contract suite and the tests of `bucket_there` already cover it.
_FILESYSTEMS = [word for word in STORES if word not in {"local", "s3"}]
_STORES = [
    *_FILESYSTEMS,
    *(pytest.param(word, marks=pytest.mark.heavy) for word in STORES if word == "s3"),
]


@pytest.fixture
def transfers_to(hibali: Any, tmp_path: Path, request: pytest.FixtureRequest) -> MakeTransfers:
    """Return a function that makes a new location in a kind of store and configures it as the site `there`."""

    def make(word: str, more: str = "") -> Transfers:
        place: Backend = make_backend(word, tmp_path, request.getfixturevalue)
        add_site(hibali.home.config, "there", place, more)
        hibali.env.update(place.env)
        return Transfers(hibali, place, tmp_path)

    return make


@pytest.fixture(params=_STORES)
def there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Return a site of each kind of store, one after the other."""
    return transfers_to(request.param)


@pytest.fixture(params=_FILESYSTEMS)
def folder_there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Return a site of each kind of store that is a filesystem, one after the other."""
    return transfers_to(request.param)


@pytest.fixture(params=[word for word in STORES if word == "s3"])
def bucket_there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Return a site with a bucket."""
    return transfers_to(request.param)


@pytest.fixture
def local_there(transfers_to: MakeTransfers) -> Transfers:
    """Return a local site, for behaviour that does not depend on the store."""
    return transfers_to("local")


@pytest.fixture(params=["local", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "sftp"))])
def unmounted(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Return a site whose root does not exist, and has another one that does."""
    there = transfers_to(request.param)
    there.make({b"a": b"1", b"sub/b": b"2"})
    root = there.root.parent
    root.rename(root.with_name("mounted"))
    text = there.hibali.home.config.read_text()
    other = f"[sites.there.roots]\nother = {str(root.with_name('mounted'))!r}\n"
    there.hibali.home.config.write_text(text.replace("[sites.there.roots]\n", other))
    root.with_name("mounted").joinpath("old").mkdir()
    return there


@pytest.fixture
def unprivileged(local_there: Transfers) -> Any:
    """Run hibali without the privileges of root, so that file permissions apply."""
    if os.geteuid() != 0:
        return local_there.hibali
    if shutil.which("setpriv") is None:
        skip_or_fail("setpriv is missing")
    none = ("--bounding-set=-all", "--inh-caps=-all", "--ambient-caps=-all", "--securebits=+noroot")

    def run(*words: Any, exit: int) -> Any:  # noqa: A002 - as the fixture `hibali` has it
        with local_there.under("setpriv", *none):
            return local_there.hibali(*words, exit=exit)

    return run


@pytest.fixture
def tool(tmp_path: Path) -> Tool:
    """Return a container image that no other test uses."""
    return make_tool(tmp_path)

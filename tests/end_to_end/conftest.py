"""Sites for the transfer tests: one place of each kind of store, configured as the site `there`."""

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

# An ssh site runs the agent that a local one runs, and more around it: from end to end one of them is enough. The contract
# suite tries both, and `local_there` is for what no store decides. What is tried on every store is tried on S3 with the heavy
# tests: the contract suite and the tests of `bucket_there` have its ways already.
_FOLDERS_IN_TURN = [word for word in STORES if word not in {"local", "s3"}]
_IN_TURN = [
    *_FOLDERS_IN_TURN,
    *(pytest.param(word, marks=pytest.mark.heavy) for word in STORES if word == "s3"),
]


@pytest.fixture
def transfers_to(hibali: Any, tmp_path: Path, request: pytest.FixtureRequest) -> MakeTransfers:
    """Call it with the word of a store: a fresh place of that kind as the site `there`."""

    def make(word: str, more: str = "") -> Transfers:
        place: Backend = make_backend(word, tmp_path, request.getfixturevalue)
        add_site(hibali.home.config, "there", place, more)
        hibali.env.update(place.env)
        return Transfers(hibali, place, tmp_path)

    return make


@pytest.fixture(params=_IN_TURN)
def there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Every store in turn."""
    return transfers_to(request.param)


@pytest.fixture(params=_FOLDERS_IN_TURN)
def folder_there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Every store that is a filesystem in turn."""
    return transfers_to(request.param)


@pytest.fixture(params=[word for word in STORES if word == "s3"])
def bucket_there(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """A bucket."""
    return transfers_to(request.param)


@pytest.fixture
def local_there(transfers_to: MakeTransfers) -> Transfers:
    """A local site, for what no store decides."""
    return transfers_to("local")


@pytest.fixture
def as_nobody(local_there: Transfers) -> Any:
    """Run hibali as an account for which permissions hold."""
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
    """A container image that no other test has."""
    return make_tool(tmp_path)

"""Test that pandas, pyarrow, zarr, nibabel and Dask read and write through `hibali://` at an ssh site."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from tests.services.session import REPOSITORY
from tests.support import science
from tests.support.requirements import require_prepared
from tests.support.transfers import Transfers

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(900)]

PYTHON = REPOSITORY / ".cache/science/bin/python"


@pytest.fixture
def place(transfers_to: Any) -> Transfers:
    """Return the ssh site `there`, whose folder `data` has one file."""
    require_prepared(PYTHON, "science")
    place: Transfers = transfers_to("ssh")
    place.place.plant("data", {b"large": b"A" * science.SIZE})
    return place


def execute(place: Transfers, name: str) -> None:
    """Run a program of tests/support/science.py in the other environment."""
    kept = {key: value for key, value in place.hibali.env.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [PYTHON, "-P", "-m", science.__name__, name],
        env={**kept, "REPLACED_FILE": str(place.root / "large")},
        cwd=place.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def logins(place: Transfers) -> int:
    """Return the number of logins of this test."""
    usage: dict[str, Any] = place.hibali("sites", "usage", "there", "--json", exit=0).lines[0]
    return int(usage["hour"]["logins"])


@pytest.mark.parametrize("name", ["pandas", "parquet", "zarr", "nibabel", "dask_tables"])
def test_a_library_reads_what_it_wrote(place: Transfers, name: str) -> None:
    execute(place, name)
    assert logins(place) == 1
    assert not place.place.unfinished("data")


def test_progress_is_shown_in_a_notebook(place: Transfers) -> None:
    execute(place, "progress")


def test_eight_threads_use_one_login(place: Transfers) -> None:
    execute(place, "one_login")
    assert logins(place) == 1


@pytest.mark.parametrize("name", ["ranges_in_threads", "ranges_in_processes"])
def test_200_ranges_are_of_one_version_while_the_file_is_replaced(place: Transfers, name: str) -> None:
    execute(place, name)
    assert logins(place) == 1, "also the processes share it"

"""Skip a test by name where a requirement is missing; fail where everything is required."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

_heavy = False  # whether the running test is marked so


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note how the test is marked, before its fixtures ask."""
    global _heavy  # noqa: PLW0603  # one test runs at a time
    _heavy = item.get_closest_marker("heavy") is not None


def skip_or_fail(reason: str) -> NoReturn:
    """End the test; in continuous integration, or with HIBALI_REQUIRE_SERVICES=1, it fails."""
    if os.environ.get("CI") == "true" or os.environ.get("HIBALI_REQUIRE_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def require_prepared(program: Path, part: str) -> None:
    """End the test where `tests/prepare.sh` has not prepared this program yet.

    `make test` prepares nothing but the environment: a test that needs more and is not marked heavy fails even where the program exists.
    """
    assert _heavy, f"this test needs {program}, so mark it heavy: `make test` does not prepare `{part}`"
    if not program.exists():
        skip_or_fail(f"{program.name} is missing: sh tests/prepare.sh {part}")

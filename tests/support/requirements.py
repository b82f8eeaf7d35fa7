"""Skip a test by name where a requirement is missing; fail where everything is required."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """End the test; in continuous integration, or with HIBALI_REQUIRE_SERVICES=1, it fails."""
    if os.environ.get("CI") == "true" or os.environ.get("HIBALI_REQUIRE_SERVICES") == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)

"""Fixtures of the tests of single stores."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    """Return an HTTP server whose answers the test computes."""
    made = ScriptedServer()
    yield made
    made.close()

"""FirecREST in the contract tests of job services."""

from __future__ import annotations

import pytest

from tests.contracts.job_services.base import ScriptBackend
from tests.services.firecrest import SYSTEM


class FirecrestBackend(ScriptBackend):
    """The double of FirecREST."""

    kind = "firecrest"
    time_limit = "#SBATCH --time=10"
    creation = f"/compute/{SYSTEM}/jobs"
    queries = f"{creation}/.*"
    more = f'system = "{SYSTEM}"\n'


def open_backend(request: pytest.FixtureRequest) -> FirecrestBackend:
    """Return the backend over the double of this test."""
    return FirecrestBackend(request.getfixturevalue("firecrest"), request.getfixturevalue("oidc"))

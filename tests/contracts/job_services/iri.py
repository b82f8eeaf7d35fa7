"""The IRI Facility API in the contract tests of job services."""

from __future__ import annotations

import pytest

from tests.contracts.job_services.base import ScriptBackend
from tests.services.iri import COMPUTE


class IriBackend(ScriptBackend):
    """The double of the IRI Facility API."""

    odd_state = "thinking"
    kind = "iri"
    time_limit = "#IRI duration=600"
    creation = f"/compute/job/{COMPUTE}"
    queries = "/compute/status/.*"


def open_backend(request: pytest.FixtureRequest) -> IriBackend:
    """Return the backend over the double of this test."""
    return IriBackend(request.getfixturevalue("iri"), request.getfixturevalue("oidc"))

"""Give these tests the fixtures of the core tests of runs."""

from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, varying_bench
from tests.unit.runs.test_clean_and_adopt import host

__all__ = ["host"]


@pytest.fixture
def varying(hibali: Any) -> Bench:
    return varying_bench(hibali)

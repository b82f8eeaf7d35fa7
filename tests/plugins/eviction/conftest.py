"""Give these tests a fixture of the core's tests of the cache."""

from tests.unit.runs.test_cache import host

__all__ = ["host"]

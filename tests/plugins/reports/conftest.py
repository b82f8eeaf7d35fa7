"""Give these tests the fixture of the core test of run manifests."""

from tests.unit.runs.test_clean_and_adopt import host

__all__ = ["host"]

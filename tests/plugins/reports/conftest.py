"""Give these tests the fixtures of the core tests of runs."""

from tests.end_to_end.test_records import bench as varying
from tests.unit.runs.test_clean_and_adopt import host

__all__ = ["host", "varying"]

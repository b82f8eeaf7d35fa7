"""Give these tests the fixtures of core tests of the same subjects."""

from tests.end_to_end.test_damaged_answers import damaged
from tests.end_to_end.test_python_api import documented
from tests.end_to_end.test_request_limits import proxy, turns

__all__ = ["damaged", "documented", "proxy", "turns"]

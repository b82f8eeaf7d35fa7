"""Give these tests the fixtures of core tests of the same servers."""

from tests.end_to_end.test_one_session import host
from tests.end_to_end.test_plugin import with_plugin
from tests.end_to_end.test_refused_sessions import forced

__all__ = ["forced", "host", "with_plugin"]

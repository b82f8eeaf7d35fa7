"""Give these tests the fixture of the core test of logins to web servers."""

from tests.end_to_end.test_web_login import loris

__all__ = ["loris"]

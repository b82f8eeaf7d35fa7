"""Give these tests the fixture of the core test of servers that allow one session."""

from tests.end_to_end.test_one_session import host as single_session

__all__ = ["single_session"]

"""Give these tests the fixtures of the core tests of buckets."""

from tests.end_to_end.test_request_limits import proxy
from tests.unit.transfers.stores.test_s3_answers import command
from tests.unit.transfers.stores.test_s3_answers import open_bucket as open_scripted

__all__ = ["command", "open_scripted", "proxy"]

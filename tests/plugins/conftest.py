"""Give tests of plugins the fixtures of the tests of transfers and stores."""

from tests.end_to_end.conftest import (
    bucket_there,
    folder_there,
    local_there,
    there,
    transfers_to,
    unmounted,
    unprivileged,
)
from tests.end_to_end.test_wrong_direction import world
from tests.unit.transfers.stores.conftest import server

__all__ = [
    "bucket_there",
    "folder_there",
    "local_there",
    "server",
    "there",
    "transfers_to",
    "unmounted",
    "unprivileged",
    "world",
]

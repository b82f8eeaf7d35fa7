"""Give tests of plugins the fixtures of the transfer tests."""

from tests.end_to_end.conftest import (
    bucket_there,
    folder_there,
    local_there,
    there,
    transfers_to,
    unprivileged,
)

__all__ = ["bucket_there", "folder_there", "local_there", "there", "transfers_to", "unprivileged"]

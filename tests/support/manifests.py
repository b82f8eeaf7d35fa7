"""Convert the lines of an S3 manifest to a dict, and back."""

from __future__ import annotations

from collections.abc import Mapping

from transfers.stores.server.manifest import Known, known_in, line_of, lines_in


def read_lines(content: bytes) -> dict[bytes, Known]:
    """Read the lines; a later line of a key wins."""
    return {key: known_in(line) for key, line in lines_in(content)}


def write_lines(lines: Mapping[bytes, Known]) -> bytes:
    """Write the lines in canonical order."""
    return b"".join(line_of(path, lines[path]) for path in sorted(lines))

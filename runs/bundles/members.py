"""The names inside a bundle; there are no others (decision 0199)."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote_to_bytes

from registry.signature import is_signature_name
from transfers.store import unsafe_component

METADATA = "ro-crate-metadata.json"
RECORD = "bundle.json"
RUN = "run.json"  # of a crate that only describes; a bundle has its record
DESCRIPTOR = "descriptor.json"
INVOCATION = "invocation.json"
IMAGE = "image.json"
IMAGE_FILES = ("image.tar", "image.sif")
INPUTS = "inputs.sha256"
OUTPUTS = "outputs.sha256"
MANIFEST = "bundle.sha256"
LONGEST = 4000  # bytes of a name; a line of a manifest takes little more
LARGEST_TEXT = 16 * 1024 * 1024  # bytes of a manifest: some 150,000 files
MOST_MEMBERS = 100_000

_PLAIN = frozenset({METADATA, RECORD, DESCRIPTOR, INVOCATION, IMAGE, *IMAGE_FILES, INPUTS, OUTPUTS, MANIFEST})
_INPUT = re.compile(r"inputs/(0|[1-9][0-9]{0,5})/(.+)")
_FOLDER = re.compile(r"signatures|inputs(/(0|[1-9][0-9]{0,5}))?")
_KEPT = "/+,=@"


def member_of(number: int, path: bytes) -> str:
    """The member that holds a file of the input of that number: ASCII, whatever the file is called."""
    return f"inputs/{number}/{quote(path, safe=_KEPT)}"


def path_of(member: str) -> tuple[int, bytes] | None:
    """The number and the path that `member_of` was given; None for a name that it would not make, or that climbs (S1)."""
    found = _INPUT.fullmatch(member)
    if found is None or len(member) > LONGEST:
        return None
    number, path = int(found[1]), unquote_to_bytes(found[2])
    if unsafe_component(path) is not None or member_of(number, path) != member:
        return None
    return number, path


def is_folder(name: str) -> bool:
    """Whether a bundle may say that there is such a folder: archives that were packed again name all of them."""
    above = name.removesuffix("/")
    return name != above and (_FOLDER.fullmatch(above) is not None or path_of(above) is not None)


def is_member(name: str) -> bool:
    """Whether a bundle may hold something of that name."""
    return name in _PLAIN or is_signature_name(name) or path_of(name) is not None

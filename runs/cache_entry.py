"""What an entry of a site's cache is called, and where it lies in the work folder; pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

CONTENT, ORIGIN, IMAGE = "sha256", "origin", "image"
_HEX = r"[0-9a-f]{64}"
_NAME = re.compile(rf"(?:({CONTENT}|{ORIGIN})|{IMAGE}:([a-z][a-z0-9_-]*)):({_HEX})")
_BELOW = re.compile(rb"cache/(sha256|origin)/[0-9a-f]{2}/([0-9a-f]{64})(?:/(.+))?", re.DOTALL)
_IMAGE_BELOW = re.compile(rb"images/([a-z][a-z0-9_-]*)/([0-9a-f]{64})(?:/(.+))?", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class Name:
    """One entry: `sha256` is a file or tree named by its content, `origin` a tree named by where it came from, `image` what
    a container `runtime` starts, named by the archive it was made of.
    """

    kind: str
    digest: str
    runtime: str = ""

    @property
    def text(self) -> str:
        """`sha256:HEX`, `origin:HEX` or `image:RUNTIME:HEX`."""
        return ":".join(part for part in (self.kind, self.runtime, self.digest) if part)

    @property
    def path(self) -> bytes:
        """Where it lies below the site's work folder."""
        if self.kind == IMAGE:
            return f"images/{self.runtime}/{self.digest}".encode("ascii")
        return f"cache/{self.kind}/{self.digest[:2]}/{self.digest}".encode("ascii")


def read_name(text: object) -> Name | None:
    """The entry that `Name.text` wrote; None for anything else."""
    found = _NAME.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        return None
    return Name(found[1] or IMAGE, found[3], found[2] or "")


def split_path(path: bytes) -> tuple[Name, bytes] | None:
    """The entry that a path below the work folder belongs to, and the rest of the path; None where to none."""
    found = _BELOW.fullmatch(path)
    if found is not None:
        name = Name(found[1].decode("ascii"), found[2].decode("ascii"))
    else:
        found = _IMAGE_BELOW.fullmatch(path)
        if found is None:
            return None
        name = Name(IMAGE, found[2].decode("ascii"), found[1].decode("ascii"))
    return name, found[3] or b""

"""A site that could be added, and what cannot be one; how they get their names."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from hibali.settings_sites import SITE_NAME

_OTHER = re.compile(r"[^a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A site that could be added: `table` is that of config.toml; `origin` says where it was found, `reached` how it is reached.

    `notes` are what it lacks, each a sentence.
    """

    name: str
    table: Mapping[str, Any]
    origin: str
    reached: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Passed:
    """What was found and cannot be a site; `because` says why."""

    name: str
    origin: str
    because: str


Found = Proposal | Passed


def name_site(text: str, taken: Collection[str]) -> str:
    """A name as sites have one, made of another name, that is not taken yet. Pure."""
    plain = _OTHER.sub("-", text.lower()).strip("-")
    if not SITE_NAME.fullmatch(plain):
        plain = f"site-{plain}".rstrip("-")
    name, number = plain, 2
    while name in taken:
        name, number = f"{plain}-{number}", number + 1
    return name


def proposals_in(found: Collection[Found]) -> list[Proposal]:
    """Those that can be sites."""
    return [each for each in found if isinstance(each, Proposal)]

"""Load the descriptors and invocations of the corpus, with the expectations in its index."""

from __future__ import annotations

import csv
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
CORPUS = Path(os.environ.get("HIBALI_CORPUS", ROOT.parent / "shared" / "corpus"))


@dataclass(frozen=True)
class Item:
    descriptor: Path
    valid: bool
    invocations: tuple[tuple[Path, bool], ...]

    @property
    def name(self) -> str:
        return str(self.descriptor.relative_to(CORPUS))


def read_corpus() -> list[Item]:
    if not (CORPUS / "index.tsv").exists():
        return []
    with (CORPUS / "index.tsv").open(encoding="utf-8", newline="") as stream:
        return [_item(row) for row in csv.DictReader(stream, delimiter="\t")]


def _item(row: dict[str, str]) -> Item:
    folder = CORPUS / row["repo"].replace("/", "__")
    given = (each.rpartition(":") for each in row["invocations (path:valid)"].split(";") if each)
    invocations = tuple((folder / path, is_valid == "yes") for path, _, is_valid in given)
    return Item(folder / row["path"], row["valid_descriptor"] == "yes", invocations)

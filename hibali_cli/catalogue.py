"""The catalogue as config.toml wants it kept, for commands that change it."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hibali_cli.options import Common
    from registry.catalogue import Catalogue
    from registry.pipeline import Pipeline
    from registry.sources.base import Access
    from runs.images import Pinned


def open_catalogue(common: Common) -> Catalogue:
    """With its history, unless there is to be none or git is not installed."""
    from registry.catalogue import Catalogue

    kept = common.settings().catalogue.keep == "git"
    if kept and shutil.which("git") is None:
        common.output.detail("git is not installed: the catalogue has no history")
        kept = False
    return Catalogue(history=kept)


def access_of(common: Common) -> Access:
    """What may be reached to fetch descriptors."""
    from hibali.files import private_folder, state_folder
    from registry.sources.base import Access

    settings = common.settings().catalogue
    scratch = private_folder(state_folder() / "catalogue-partial")
    return Access(scratch, settings.zenodo, frozenset(settings.origins))


def pinned_image(catalogue: Catalogue, pipeline: Pipeline) -> Pinned | None:
    """The image that the catalogue has beside a pipeline; its content is looked for only when it is wanted."""
    from runs.images import Pinned

    record = catalogue.image(pipeline)
    return Pinned(record, lambda: catalogue.image_file(pipeline)) if record else None

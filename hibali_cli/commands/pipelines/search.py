"""`hibali pipelines search`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command("search", examples=[("hibali pipelines search brain mask", "Find what both words occur in.")])
@click.argument("words", nargs=-1, required=True)
def command(common: Common, words: tuple[str, ...]) -> int | None:
    """Find pipelines by words, best first.

    All WORDS have to occur in the name, title, tags, description or inputs; one that occurs nowhere is taken for what
    is nearest to it.
    """
    from hibali_cli.pipeline_record import list_pipelines
    from registry.catalogue import Catalogue
    from registry.search import Summary, search_pipelines

    catalogue = Catalogue()
    sound = [each for each in catalogue.entries() if isinstance(each, Summary)]
    found = (each for each, _ in search_pipelines(sound, words))
    return list_pipelines(common.output, found, catalogue.deprecation, catalogue.image_digests())

"""`hibali pipelines list`."""

from __future__ import annotations

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command("list", examples=[("hibali pipelines list", "See every pipeline and version.")])
def command(common: Common) -> int | None:
    """List the pipelines of the catalogue.

    Within a name, the latest added comes last.
    """
    from hibali_cli.pipeline_record import list_pipelines
    from registry.catalogue import Catalogue

    catalogue = Catalogue()
    return list_pipelines(
        common.output, catalogue.entries(), catalogue.deprecation, catalogue.image_digests()
    )

"""The options of `hibali sites add` that kinds of site declare (`StoreKind.options`)."""

from __future__ import annotations

import click

from hibali.config.kinds import SiteOption, every_kind
from hibali_cli.command import AddedOptions


def options_of_kinds() -> dict[str, AddedOptions]:
    """Return those that say what the site is, and the others of kinds; one that several kinds have is in it once."""
    declared: dict[str, SiteOption] = {}
    kinds = every_kind().values()
    for kind in kinds:
        for each in kind.options:
            declared.setdefault(each.name, each)
    choosing, others = (
        [each for each in declared.values() if each.chooses is which] for which in (True, False)
    )
    examples = tuple(kind.example for kind in kinds if kind.example is not None)
    return {
        "choosing": AddedOptions(tuple(map(_option, choosing)), after="name", examples=examples),
        "others": AddedOptions(tuple(map(_option, others)), after="kind"),
    }


def _option(each: SiteOption) -> click.Option:
    if not each.metavar:
        return click.Option([f"--{each.name}"], is_flag=True, help=each.help)
    kind = int if each.whole else str
    return click.Option(
        [f"--{each.name}"], type=kind, multiple=each.pairs, metavar=each.metavar, help=each.help
    )

"""Asking a site whether it answers, and telling what was found."""

from __future__ import annotations

from collections.abc import Sequence

from hibali.config.model import Site
from hibali.config.settings import require_built
from hibali.errors import AccessError, HibaliError, TryLaterError
from hibali_cli.failure import tell_people
from hibali_cli.options import Common
from hibali_cli.progress import listening


def check_and_tell(common: Common, site: Site) -> None:
    """Print what the site says of itself; raises the problem that stands for all others, if there is any."""
    from runs.rate_limits import start_afresh
    from transfers.check import check_site

    require_built(site)
    start_afresh(site)
    with listening(common, f"check {site.name}") as tell:
        report = check_site(site, tell)
    problems: Sequence[HibaliError] = report.problems
    if common.json:
        records = [problem.to_record() for problem in problems]
        common.output.record(
            "site-check", {"name": site.name, "facts": dict(report.facts), "problems": records}
        )
    else:
        common.output.pairs({"site": site.name, **report.facts})
    if not problems:
        common.output.say(f"{site.name} answers.")
        return
    worst = min(problems, key=_order)
    for problem in problems:
        if problem is not worst:
            tell_people(problem)
    raise worst


def as_access_or_later(problem: HibaliError) -> HibaliError:
    """The same problem with exit 4 or 5, or 2 where the settings themselves cannot be used."""
    if int(problem.exit) in {2, 4, 5}:
        return problem
    return TryLaterError(
        problem.code, problem.message, about=problem.about, hint=problem.hint, transient=problem.transient
    )


def _order(problem: HibaliError) -> int:
    """Access first, because waiting does not heal it; then what may pass; then the rest."""
    if isinstance(problem, AccessError):
        return 0
    return 1 if isinstance(problem, TryLaterError) else 2

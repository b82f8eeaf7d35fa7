"""Choose a site for a run among several, or among all with `auto`, and explain the choice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hibali.amounts import format_size
from hibali.config.settings import Settings
from hibali.errors import HibaliError, RunFailedError, TryLaterError, UsageError
from hibali_cli.handlers.run_sites import opener, update_runs
from hibali_cli.handlers.run_watch import wait_for_runs
from hibali_cli.options import Common
from hibali_cli.progress import listening
from registry.catalogue import Catalogue, refuse_own
from registry.pipeline import Pipeline
from runs.containers.base import find_consent_reasons
from runs.inputs import Located
from runs.new_request import RunOptions, load_dependencies
from runs.request import Request
from runs.site_selection import Candidate, Choice, Sizes, assess_site, can_choose, choose, why_not_considered
from runs.store import RunStore, runs_of

AUTO = "auto"


def is_choice(options: RunOptions, settings: Settings) -> bool:
    """Return whether to choose a site or explain the choice; a configured site named `auto` is that site."""
    only_auto = options.sites == (AUTO,) and AUTO not in settings.sites
    return options.explain or only_auto or len(set(options.sites)) > 1


def texts_of(located: Sequence[Located]) -> list[str]:
    """Return the identities of inputs that were located without a site."""
    return [each.identity.text if each.identity is not None else "" for each in located]


def chosen_sites(options: RunOptions) -> str:
    """Return the sites of the command line for a key, in any order; no name of a site contains a bar."""
    return "|".join(sorted(set(options.sites)))


def choose_site(
    common: Common,
    options: RunOptions,
    pipeline: Pipeline,
    command_key: str,
    located: Sequence[Located],
    make: Callable[[str], Request],
) -> Request:
    """Return the request at the best site.

    If a run of the same command is unfinished, its site is used and no other one is queried. The runs that this one depends on are
    queried once; if no site can do without their ends they are waited for, with `--wait`.

    Args:
        common: The common options.
        options: The options of the command line.
        pipeline: The pipeline; sites where it ran are considered even if they are not marked for it.
        command_key: The key of the command for any site.
        located: The inputs, located without a site.
        make: Makes the request for a site by its name.

    Raises:
        UsageError: No site can run it.
        TryLaterError: No site can run it now.
    """
    ran_at = frozenset(run.site for run in runs_of(pipeline.digest) if run.job)
    if _update_dependencies(common, located, options, wait=False):
        return _choose_now(common, options, ran_at, command_key, make)
    try:
        return _choose_now(common, options, ran_at, command_key, make)
    except TryLaterError as problem:
        if not options.start.wait or problem.code != "no-site":
            raise
    _update_dependencies(common, located, options, wait=True)
    return _choose_now(common, options, ran_at, command_key, make)


def _update_dependencies(
    common: Common, located: Sequence[Located], options: RunOptions, *, wait: bool
) -> bool:
    """Query the runs that this one depends on, or wait for their ends; return whether all of them have ended."""
    run_store = RunStore()
    ids = dict.fromkeys(each.reference.run for each in located if each.reference is not None)
    runs = {run.id: run for run in [*load_dependencies(options), *map(run_store.load, ids)]}
    unfinished = [run for run in runs.values() if not run.state.final]
    if unfinished:
        with listening(common, "querying runs that come first") as on_event:
            (wait_for_runs if wait else update_runs)(common, run_store, unfinished, on_event)
    return all(run_store.load(run_id).state.final for run_id in runs)


def _choose_now(
    common: Common,
    options: RunOptions,
    ran_at: frozenset[str],
    command_key: str,
    make: Callable[[str], Request],
) -> Request:
    requests: dict[str, Request] = {}
    unable: list[Candidate] = []
    failed: RunFailedError | None = None
    names = _candidate_names(options, ran_at, common.settings())
    if AUTO in options.sites:
        for name, site in sorted(common.settings().sites.items()):
            why = why_not_considered(site, ran_at)
            if why and name not in names:
                unable.append(Candidate(name, why_not=why))
    for name in names:
        try:
            request = make(name)
            request.decide_resources()
            _check_consent(request)
        except HibaliError as problem:
            failed = problem if isinstance(problem, RunFailedError) else failed
            why = " ".join(problem.message.split())
            unable.append(Candidate(name, why_not=why, later=isinstance(problem, TryLaterError)))
        else:
            requests[name] = replace(request, command_key=command_key)
    if failed is not None and not requests:
        raise failed
    choice = _choose(common, requests, unable, command_key, new=options.new)
    _show_choice(common, choice, explain=options.explain)
    return requests[choice.site]


def _choose(
    common: Common, requests: dict[str, Request], unable: list[Candidate], command_key: str, *, new: bool
) -> Choice:
    run_store = RunStore()
    run = None if new else run_store.find_unreported(command_key)
    if run is not None:
        if run.site not in requests:
            raise UsageError(
                "run-elsewhere",
                f"a run of the same command is unfinished at {run.site}, which cannot run it any more",
                subject=run.id,
                hint="Restore that site in config.toml, or start another run with --new.",
            )
        return Choice(run.site, f"run {run.id} of the same command is unfinished there")
    candidates = list(unable)
    sizes = Sizes()
    with listening(common, "choosing a site") as on_event:
        for request in requests.values():
            assessed = assess_site(
                request, opener(request.compute.site, on_event), sizes, run_store, on_event
            )
            if assessed.run is not None:
                return Choice(
                    assessed.run.site, f"run {assessed.run.id} of the same command is unfinished there"
                )
            candidates.append(assessed.candidate)
    return choose(candidates)


def _candidate_names(options: RunOptions, ran_at: frozenset[str], settings: Settings) -> list[str]:
    """Return the names of the candidates, each once; raises `UsageError` for a site that is not configured."""
    names: list[str] = []
    for name in options.sites:
        if name == AUTO and AUTO not in settings.sites:
            names += sorted(each for each, site in settings.sites.items() if can_choose(site, ran_at))
        else:
            names.append(settings.site(name).name)
    return list(dict.fromkeys(names))


def _check_consent(request: Request) -> None:
    """Raise `UsageError` if the pipeline needs consent at this site: comparing sites does not prompt (S10,
    S11).
    """
    reasons = find_consent_reasons(request.workload.pipeline, request.compute.container)
    if reasons and not Catalogue().is_trusted(request.workload.pipeline):
        refuse_own(request.workload.pipeline)
        raise UsageError(
            "not-trusted",
            f"there it {'; it '.join(reasons)}, and you have not trusted it yet"
            f" (hibali pipelines trust {request.workload.pipeline.reference})",
        )


def _show_choice(common: Common, choice: Choice, *, explain: bool) -> None:
    if explain and common.json:
        common.output.record(
            "choice",
            {
                "site": choice.site,
                "because": choice.because,
                "candidates": [each.to_record() for each in choice.candidates],
            },
        )
    elif explain:
        for text in _table(choice.candidates) if choice.candidates else ():
            common.output.info(text)
    common.output.info(f"{choice.site}: {choice.because}")
    for each in choice.candidates if not explain else ():
        if each.later:
            common.output.warn(f"{each.site} was not considered: {each.why_not}")
        elif each.why_not:
            common.output.detail(f"not {each.site}: {each.why_not}")


def _table(candidates: Sequence[Candidate]) -> list[str]:
    """Return aligned lines for users."""
    rows = [("SITE", "TO MOVE", "WAITING", "WHY NOT")]
    for each in candidates:
        moving = "-" if each.bytes_to_move is None else format_size(each.bytes_to_move)
        rows.append((each.site, moving, _waiting(each), each.why_not))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"{site:<{widths[0]}}  {moving:>{widths[1]}}  {waiting:>{widths[2]}}  {why}".rstrip()
        for site, moving, waiting, why in rows
    ]


def _waiting(candidate: Candidate) -> str:
    if candidate.why_not:
        return "-"
    if candidate.waiting is None:
        return "unknown"
    minutes = int(candidate.waiting // 60)
    return f"{minutes // 60}h{minutes % 60:02}m" if minutes else "none"

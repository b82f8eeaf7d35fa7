"""Choose a site for a run among several, or among all with `auto`, and say why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hibali.config.settings import Settings
from hibali.errors import HibaliError, RunFailedError, TryLaterError, UsageError
from hibali_cli.handlers.run_sites import opener, update_runs, wait_for_runs
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.run_options import Order, load_first
from registry.catalogue import Catalogue
from registry.invocation import read_invocation
from registry.pipeline import Pipeline
from runs.containers.base import find_consent_reasons
from runs.fast_storage import NO_FAST_OPTIONS, FastOptions
from runs.inputs import Located, locate_inputs
from runs.request import Request, run_key
from runs.schedulers.base import Resources
from runs.site_selection import Candidate, Choice, Sizes, can_choose, choose, look_at, why_not_considered
from runs.store import RunStore, runs_of

AUTO = "auto"
NOTHING_WANTED = Resources()


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """How `hibali run` was asked: the sites as typed, and the options that tell runs apart.

    `ran_at` are the sites where a job of this pipeline was begun before.
    """

    sites: tuple[str, ...]
    image: str = ""
    name: str = ""
    new: bool = False
    explain: bool = False
    marks: FastOptions = NO_FAST_OPTIONS
    wanted: Resources = NOTHING_WANTED
    proxy: bool | None = None
    ran_at: frozenset[str] = frozenset()


def is_choice(asked: SiteOptions, settings: Settings) -> bool:
    """Whether there is anything to choose, or to explain; a site that is called `auto` is that site."""
    word_alone = asked.sites == (AUTO,) and AUTO not in settings.sites
    return asked.explain or word_alone or len(set(asked.sites)) > 1


def choose_request(
    common: Common, pipeline: Pipeline, answers: Path, asked: SiteOptions, order: Order | None = None
) -> Request:
    """The request at the best site, as `choose_site` finds it."""
    from hibali_cli.handlers.launch import read_request

    order = order or Order()
    invocation = read_invocation(pipeline, answers)
    located = locate_inputs(invocation, common.settings(), None)
    line = run_key(pipeline, invocation, texts_of(located), typed_sites(asked), asked.name, order.after)

    def make(name: str) -> Request:
        return read_request(
            common,
            pipeline,
            answers,
            name,
            asked.image,
            order._replace(wait=False, heard=True),
            identify=True,
            located=located,
            marks=asked.marks,
        )

    return choose_site(common, with_experience(asked, pipeline), line, located, make, order)


def with_experience(asked: SiteOptions, pipeline: Pipeline) -> SiteOptions:
    """The same with the sites where the pipeline ran."""
    return replace(asked, ran_at=frozenset(run.site for run in runs_of(pipeline.digest) if run.job))


def texts_of(located: Sequence[Located]) -> list[str]:
    """What the inputs are, seen from no site."""
    return [each.identity.text if each.identity is not None else "" for each in located]


def typed_sites(asked: SiteOptions) -> str:
    """The sites of a line, however they were ordered: no site's name holds a bar."""
    return "|".join(sorted(set(asked.sites)))


def choose_site(
    common: Common,
    asked: SiteOptions,
    line: str,
    located: Sequence[Located],
    make: Callable[[str], Request],
    order: Order,
) -> Request:
    """The request, as `make` makes it for each site, at the best one. A run of this very line that is under way stays where it is, and nobody else is asked.

    Runs whose outputs are among what was `located`, or that come first, are asked about once; where no site can do without their
    ends they are waited for, if the line waits. Raises `UsageError` where no site can run it, `TryLaterError` where one may later.
    """
    if _hear_of(common, located, order, wait=False):
        return _choose_now(common, asked, line, make)
    try:
        return _choose_now(common, asked, line, make)
    except TryLaterError as problem:
        if not order.wait or problem.code != "no-site":
            raise
    _hear_of(common, located, order, wait=True)
    return _choose_now(common, asked, line, make)


def _hear_of(common: Common, located: Sequence[Located], order: Order, *, wait: bool) -> bool:
    """Ask about the runs that this one needs, or wait for their ends; whether all of them have ended."""
    run_store = RunStore()
    ids = dict.fromkeys(each.reference.run for each in located if each.reference is not None)
    runs = {run.id: run for run in [*load_first(order), *map(run_store.load, ids)]}
    waited = [run for run in runs.values() if not run.state.final]
    if waited:
        with listening(common, "asking about runs that come first") as on_event:
            (wait_for_runs if wait else update_runs)(common, run_store, waited, on_event)
    return all(run_store.load(run_id).state.final for run_id in runs)


def _choose_now(common: Common, asked: SiteOptions, line: str, make: Callable[[str], Request]) -> Request:
    requests: dict[str, Request] = {}
    unable: list[Candidate] = []
    failed: RunFailedError | None = None
    names = _names(asked, common.settings())
    if AUTO in asked.sites:
        for name, site in sorted(common.settings().sites.items()):
            why = why_not_considered(site, asked.ran_at)
            if why and name not in names:
                unable.append(Candidate(name, why_not=why))
    for name in names:
        try:
            request = replace(make(name), wanted=asked.wanted)
            request.ask()
            _check_consent(request)
        except HibaliError as problem:
            failed = problem if isinstance(problem, RunFailedError) else failed
            words = " ".join(problem.message.split())
            unable.append(Candidate(name, why_not=words, later=isinstance(problem, TryLaterError)))
        else:
            requests[name] = replace(request, name=asked.name, new=asked.new, image=asked.image, line=line)
    if failed is not None and not requests:
        raise failed
    choice = _choose(common, requests, unable, line, asked)
    _on_event(common, choice, explain=asked.explain)
    return requests[choice.site]


def _choose(
    common: Common, requests: dict[str, Request], unable: list[Candidate], line: str, asked: SiteOptions
) -> Choice:
    run_store = RunStore()
    run = None if asked.new else run_store.find_unreported(line)
    if run is not None:
        if run.site not in requests:
            raise UsageError(
                "run-elsewhere",
                f"a run of this line is under way at {run.site}, which cannot be asked any more",
                subject=run.id,
                hint="Put that site back into config.toml, or start another run with --new.",
            )
        return Choice(run.site, f"run {run.id} of this line is under way there")
    candidates = list(unable)
    sizes = Sizes()
    with listening(common, "choosing a site") as on_event:
        for request in requests.values():
            looked = look_at(request, opener(request.site, on_event), sizes, run_store, on_event)
            if looked.run is not None:
                return Choice(looked.run.site, f"run {looked.run.id} of this line is under way there")
            candidates.append(looked.candidate)
    return choose(candidates)


def _names(asked: SiteOptions, settings: Settings) -> list[str]:
    """The candidates, each once; raises `UsageError` for a site that is not configured."""
    names: list[str] = []
    for name in asked.sites:
        if name == AUTO and AUTO not in settings.sites:
            names += sorted(each for each, site in settings.sites.items() if can_choose(site, asked.ran_at))
        else:
            names.append(settings.site(name).name)
    return list(dict.fromkeys(names))


def _check_consent(request: Request) -> None:
    """Nobody is asked while sites are compared: a site where the pipeline needs consent that nobody gave is out (S10, S11)."""
    reasons = find_consent_reasons(request.pipeline, request.container)
    if reasons and not Catalogue().is_trusted(request.pipeline.digest):
        raise UsageError(
            "not-trusted",
            f"there it {'; it '.join(reasons)}, and nobody has consented to that"
            f" (hibali pipelines trust {request.pipeline.reference})",
        )


def _on_event(common: Common, choice: Choice, *, explain: bool) -> None:
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
        for text in _table(choice.candidates):
            common.output.say(text)
    common.output.say(f"{choice.site}: {choice.because}")
    for each in choice.candidates if not explain else ():
        if each.later:
            common.output.warn(f"{each.site} was not considered: {each.why_not}")
        elif each.why_not:
            common.output.detail(f"not {each.site}: {each.why_not}")


def _table(candidates: Sequence[Candidate]) -> list[str]:
    """Aligned lines for people."""
    rows = [("SITE", "BYTES TO MOVE", "WAITING", "WHY NOT")]
    for each in candidates:
        moving = "-" if each.bytes_to_move is None else str(each.bytes_to_move)
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

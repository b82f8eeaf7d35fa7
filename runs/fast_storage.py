"""Decide which inputs a job copies to fast storage of its node."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hibali.config.model import Site, Tier
from hibali.errors import UsageError
from runs.containers.base import Container
from runs.model import Input
from runs.schedulers.base import BatchSystem

_SHORTEST_BEFORE, _LONGEST_BEFORE = 30, 60  # seconds before its time limit at which a job gets a signal
# If the copy back is incomplete, the files on the node stay, because they are the only copy.
_BRING_BACK = r"""if [ -d fast/work ] && ! (umask "$mask"; cp -R -P -- fast/work/. work/); then
echo "hibali: not all files of the tool could be copied back; they are at $(uname -n):$(readlink fast/work)" >&2
return 1
fi
"""


@dataclass(frozen=True, slots=True)
class Fast:
    """The tier of each input that is copied, by the input's number, and that of the work folder ("" if it stays)."""

    inputs: Mapping[int, str] = field(default_factory=dict)
    work: str = ""
    tiers: Mapping[str, Tier] = field(default_factory=dict)

    @property
    def is_used(self) -> bool:
        """True if the job copies anything."""
        return bool(self.inputs or self.work)

    @property
    def used_tiers(self) -> list[str]:
        """The names of the used tiers, sorted."""
        return sorted({*self.inputs.values(), *((self.work,) if self.work else ())})

    def lines(self, scheduler: BatchSystem, seconds: int | None) -> tuple[str, ...]:
        """Return the directives that request the tiers, and the time to copy back the tool's files.

        `seconds` is the job's time limit, None for the site's own.
        """
        found = [self.tiers[name].directive for name in self.used_tiers]
        before = (
            _LONGEST_BEFORE if seconds is None else max(_SHORTEST_BEFORE, min(_LONGEST_BEFORE, seconds // 10))
        )
        more = scheduler.warning_directives(before) if self.work else ()
        return (*(each for each in found if each is not None), *more)

    def inputs_in(self, folder: str, inputs: Sequence[Input]) -> list[Input]:
        """Return the inputs with the paths that the tool gets: the copies on fast storage."""
        return [
            replace(each, in_place=True, source=f"{folder}/fast/{each.number}/{each.name}")
            if each.number in self.inputs
            else each
            for each in inputs
        ]

    def work_in(self, folder: str) -> str:
        """Return the tool's work folder, seen from outside of the container."""
        return f"{folder}/fast/work" if self.work else f"{folder}/work"

    def script(self, inputs: Sequence[Input]) -> str:
        """Return the functions that the job script reads; "" if nothing is copied."""
        if not self.is_used:
            return ""
        places = {name: f"fast_{number}" for number, name in enumerate(self.used_tiers)}
        lines = [*(f"{place}=\n" for place in places.values()), "fast_in() {\nmkdir fast || return 1\n"]
        lines += [_open_tier(name, self.tiers[name].path, place) for name, place in places.items()]
        for each in inputs:
            tier = self.inputs.get(each.number)
            if tier is not None:
                lines.append(_copy_input(each, places[tier]))
        if self.work:
            place = places[self.work]
            lines.append(
                f'mkdir "${place}/work" && cp -R -P -- work/. "${place}/work/" && ln -s "${place}/work" fast/work'
                " || return 1\nwork=fast/work\n"
            )
        lines += ["return 0\n}\nfast_out() {\n", _BRING_BACK if self.work else ""]
        lines += [
            f'[ -z "${place}" ] || {{ chmod -R u+rwX -- "${place}"; rm -rf -- "${place}"; }}\n'
            for place in places.values()
        ]
        return "".join([*lines, "rm -rf -- fast\nreturn 0\n}\n"])


NOTHING_FAST = Fast()


def check_fast(container: Container) -> None:
    """Raise `UsageError` if a container sees its inputs only as copies in the run's folder."""
    if container.isolates and not container.binds_inputs:
        raise UsageError(
            "no-fast-storage",
            f"{container.name} cannot make files on fast storage visible to a tool",
            subject=container.name,
            hint="Omit --fast and --fast-work; if the site's configuration requests fast storage, add --no-fast.",
        )


@dataclass(frozen=True, slots=True)
class FastOptions:
    """The options of the command line: inputs as `INPUT` or `INPUT=TIER`, the tier for the work folder or "", or no fast storage."""

    inputs: tuple[str, ...] = ()
    work: str = ""
    none: bool = False


NO_FAST_OPTIONS = FastOptions()


def choose_fast_storage(
    site: Site, inputs: Sequence[Input], at_site: Sequence[bool], options: FastOptions
) -> Fast:
    """Apply the options at a site, whose default is fast storage for all inputs from elsewhere and for the work folder.

    `at_site` has for each input whether it is at the site. Raises `UsageError` for an unknown input or tier.
    """
    if options.none:
        return NOTHING_FAST
    found: dict[int, str] = {}
    work = options.work or site.fast
    if site.fast is not None:
        found = {each.number: site.fast for each, there in zip(inputs, at_site, strict=True) if not there}
    for mark in options.inputs:
        identifier, _, name = mark.partition("=")
        numbers = [each.number for each in inputs if each.id == identifier]
        if not numbers:
            known = ", ".join(sorted({each.id for each in inputs})) or "none"
            raise UsageError(
                "no-such-input",
                "the invocation has no file for an input with this id",
                subject=f"--fast {mark}",
                hint=f"Inputs with files: {known}.",
            )
        found |= dict.fromkeys(numbers, _tier(site, name, f"--fast {mark}"))
    return Fast(found, _tier(site, work, "--fast-work") if work else "", site.tiers)


def task_fast_options(options: FastOptions, inputs: Sequence[Input]) -> FastOptions:
    """Return the options that concern the inputs of one task of a sweep."""
    there = {each.id for each in inputs}
    return replace(options, inputs=tuple(each for each in options.inputs if each.partition("=")[0] in there))


def _tier(site: Site, name: str, subject: str) -> str:
    """Return the tier of that name, or the only one."""
    only = next(iter(site.tiers)) if len(site.tiers) == 1 else ""
    chosen = name or site.fast or only
    if chosen not in site.tiers:
        raise UsageError(
            "no-such-tier",
            f"{site.name} has no fast storage of that name" if chosen else "no fast storage was chosen",
            subject=subject,
            hint=f"Tiers of {site.name}: {', '.join(sorted(site.tiers)) or 'none'}; see [sites.{site.name}.tiers].",
        )
    return chosen


def _open_tier(name: str, path: str, place: str) -> str:
    """Return the script lines that create a folder of the run on a tier, with a name that cannot be guessed."""
    variable, slash, subpath = path[1:].partition("/")
    base = f"${{{variable}:+${variable}{slash}{subpath}}}" if path.startswith("$") else path
    shown = path.replace("$", "")
    return (
        f"fast_base={base}\n"
        'case "$fast_base" in /*) ;; *) fast_base= ;; esac\n'
        'if ! [ -d "$fast_base" ]; then\n'
        f'echo "hibali: the fast storage {name} is not on $(uname -n): {shown} is not a folder" >&2\n'
        "return 1\nfi\n"
        f'{place}=$(mktemp -d "$fast_base/hibali-${{run%%/*}}-XXXXXXXX") || return 1\n'  # of a task: ID/NUMBER
    )


def _copy_input(each: Input, place: str) -> str:
    source, name = shlex.quote(each.source), shlex.quote(each.name)
    target = f'"${place}/{each.number}"'
    return f"mkdir {target} && cp -R -H -- {source} {target}/{name} && ln -s {target} fast/{each.number} || return 1\n"

"""What a machine gives once one is in: roots, places to write, its clock, room, a scheduler that answers, a container runtime."""

from __future__ import annotations

import secrets
import shlex
import time
from collections.abc import Mapping
from datetime import UTC, datetime

from hibali.amounts import size_words
from hibali.errors import HibaliError, IncompleteError, NotFoundError, TryLaterError
from hibali.locations import work_path
from hibali.sites import Site
from hibali.text import printable
from runs.courtesy import courteous
from runs.doctor.network import missing_program
from runs.doctor.walk import Walk
from runs.scheduler import Foretells, Scheduler, load_scheduler
from runs.site_commands import SiteCommands
from transfers.check import programs_of
from transfers.entry import Kind
from transfers.far import Far, HasRoom, KnowsPrograms

STEPS = ("roots", "writes", "clock", "room", "scheduler", "container")
_CLOCK_SECONDS = 5.0  # leases are renewed every few seconds
_LITTLE_BYTES = 1024**3
_LITTLE_INODES = 10_000
_CONTENT = b"hibali asks whether this can be written\n"


def look_at_machine(walk: Walk, site: Site, far: Far) -> None:
    """All steps; nothing is left behind."""
    try:
        _look_at_roots(walk, site, far)
        apart = _try_writing(walk, site, far)
        _judge_clock(walk, apart)
        _look_at_room(walk, site, far)
        _ask_scheduler(walk, site, far)
        _ask_container(walk, site, far)
    except HibaliError as problem:  # the line was lost half-way
        done = {step.name for step in walk.steps}
        left = [name for name in STEPS if name not in done]
        walk.fault(left[0] if left else STEPS[-1], problem)
        walk.skip(left[1:], "the machine was lost")


def _look_at_roots(walk: Walk, site: Site, far: Far) -> None:
    found = []
    for name, path in site.roots.items():
        try:
            expanded = far.expand(path)
            if far.stat(expanded) is None:
                raise NotFoundError(
                    "no-such-folder",
                    "the root is not there",
                    about=f"{site.name}:@{name}",
                    hint=f"Make it, or correct config.toml: hibali mkdir {site.name}:@{name}",
                )
            found.append(f"@{name} is {printable(expanded)}")
        except HibaliError as problem:
            if problem.transient:
                raise
            walk.fault("roots", problem)
    if not walk.has_fault("roots"):
        walk.ok("roots", "; ".join(found) or "none are named")


def _try_writing(walk: Walk, site: Site, far: Far) -> float | None:
    """The step `writes`; returns how far the clock of the last place is ahead of ours, in seconds, None where nothing was written."""
    places = {"work": work_path(site)}
    if site.default_root not in site.read_only:
        places = {"default_root": site.roots[site.default_root] if site.default_root else "~", **places}
    apart: float | None = None
    written = []
    for what, path in places.items():
        try:
            above = _nearest_folder(far, far.expand(path))
            apart = _write_and_remove(far, site, above)
            written.append(f"{what} at {printable(above)}")
        except HibaliError as problem:
            if problem.transient:
                raise
            hint = problem.hint or f"Name another {what} in config.toml: hibali sites show {site.name}"
            walk.fault("writes", _with_hint(problem, f"{what}: {problem.message}", hint))
    if not walk.has_fault("writes"):
        walk.ok("writes", "; ".join(written))
    return apart


def _with_hint(problem: HibaliError, message: str, hint: str) -> HibaliError:
    return type(problem)(problem.code, message, about=problem.about, hint=hint, transient=problem.transient)


def _nearest_folder(far: Far, path: bytes) -> bytes:
    """The folder itself, or the nearest above it that is there: making it is for whoever needs it."""
    while path.strip(b"/"):
        found = far.stat(path)
        if found is not None and found.kind is Kind.FOLDER:
            return path
        if found is not None:
            raise IncompleteError("not-a-folder", "it is no folder", about=printable(path))
        path = path.rpartition(b"/")[0]
    return b"/"


def _write_and_remove(far: Far, site: Site, above: bytes) -> float | None:
    """Write a file in a folder of our own name, read it back, remove both; returns what `_try_writing` does."""
    folder = above.rstrip(b"/") + b"/.hibali-" + secrets.token_hex(16).encode("ascii")
    about = f"{site.name}:{printable(above)}"
    far.make_folder(folder, exclusive=True)
    try:
        before = time.time()
        far.put(folder + b"/file", _CONTENT)
        after = time.time()
        if far.get(folder + b"/file") != _CONTENT:
            raise IncompleteError("other-bytes", "what was written reads back as something else", about=about)
        found = far.stat(folder + b"/file")
    finally:
        far.remove_tree(folder)
    if found is None or not found.mtime_ns:
        return None
    return apart_by(found.mtime_ns / 1e9, before, after)


def apart_by(there: float, before: float, after: float) -> float:
    """How far a clock is ahead of ours that showed `there` between two moments here, at least; pure. A second is its grain."""
    if there < before - 1.0:
        return there - before
    return max(0.0, there - after)


def _judge_clock(walk: Walk, apart: float | None) -> None:
    if apart is None:
        walk.skip(["clock"], "nothing was written whose time could be read")
    elif abs(apart) < _CLOCK_SECONDS:
        walk.ok("clock", "as here")
    else:
        which = "ahead of" if apart > 0 else "behind"
        walk.warn(
            "clock",
            f"its filesystem is {abs(apart):.0f} s {which} this machine: times of files do not compare",
            "Set the clock of this machine (timedatectl), or tell the site.",
        )


def _look_at_room(walk: Walk, site: Site, far: Far) -> None:
    if not isinstance(far, HasRoom):
        walk.skip(["room"], "it does not tell")
        return
    places = {"work": work_path(site)}
    if site.default_root is not None:
        places[f"@{site.default_root}"] = site.roots[site.default_root]
    told, little, full = [], [], []
    for what, path in places.items():
        try:
            space = far.room(_nearest_folder(far, far.expand(path)))
        except HibaliError as problem:
            if problem.transient:
                raise
            continue  # whether it is a place at all was looked at before
        amounts = (("bytes", space.free_bytes, _LITTLE_BYTES), ("inodes", space.free_inodes, _LITTLE_INODES))
        for key, free, least in amounts:
            if free is None:
                continue
            by = f" (quota of {space.by[key]})" if key in space.by else ""
            words = f"{what}: {size_words(free) if key == 'bytes' else f'{free} names'} free{by}"
            told.append(words)
            if free == 0:
                full.append(words)
            elif free < least:
                little.append(words)
    if full:
        hint = f"Remove what nobody needs: hibali sites cache list {site.name}"
        walk.fault("room", IncompleteError("no-space", "; ".join(full), about=site.name, hint=hint))
    elif little:
        walk.warn("room", "; ".join(little), f"Look what can go: hibali sites cache list {site.name}")
    else:
        walk.ok("room", "; ".join(told) or "it does not tell")


def _ask_scheduler(walk: Walk, site: Site, far: Far) -> None:
    word = site.scheduler.name if site.scheduler else "direct"
    if site.scheduler is None and not isinstance(far, KnowsPrograms):
        walk.skip(["scheduler"], "none is named, and without an agent nothing can be started")
        return
    try:
        for program, found in _which(far, programs_of(word)).items():
            if found is None:
                raise missing_program(site.name, program)
        scheduler = load_scheduler(word)
        words = scheduler.lookup_words("hibali-doctor")
        if words:
            _ask_once(site, far, scheduler, words)
        starts = _foretell(site, far)
    except HibaliError as problem:
        walk.fault("scheduler", problem)
        return
    if word == "direct":
        walk.ok("scheduler", "direct: jobs are processes of the machine one logs in to")
    else:
        walk.ok("scheduler", f"{word} answers{starts}")


def _ask_once(site: Site, far: Far, scheduler: Scheduler, words: tuple[str, ...]) -> None:
    try:
        with courteous(site.name):
            scheduler.read_lookup(far.run(words), far.facts()["user"])
    except TryLaterError as problem:
        hint = f"By hand, after a login there: {shlex.join(words)}"
        raise _with_hint(problem, problem.message, hint) from None


def _foretell(site: Site, far: Far) -> str:
    """When a small job with the site's account and partition would start; what the scheduler refuses it with is raised."""
    from runs.doctor.job import foretold_script

    scheduler = load_scheduler(site.scheduler.name if site.scheduler else "direct")
    words = scheduler.start_words() if isinstance(scheduler, Foretells) else ()
    if not words or not isinstance(scheduler, Foretells) or not isinstance(far, KnowsPrograms):
        return ""
    finished = far.run(words, stdin=foretold_script(site).encode("ascii", "replace"))
    seconds = scheduler.read_start(finished, datetime.now(UTC))
    return "" if seconds is None else f"; a job of one minute would start in about {max(0.0, seconds):.0f} s"


def _ask_container(walk: Walk, site: Site, far: Far) -> None:
    if site.container == "bare":
        walk.ok("container", "none: tools run as you, with consent to each pipeline")
        return
    if not isinstance(far, KnowsPrograms):
        walk.skip(["container"], "without an agent no program can be asked")
        return
    program = (programs_of(site.container) or (site.container,))[0]
    try:
        answer = SiteCommands(far, site).ask((program, "--version"))
        if answer.exit_code == 127:
            raise missing_program(site.name, program)
        if answer.exit_code != 0:
            said = printable(answer.stderr.strip()[-200:])
            hint = f"By hand, after a login there: {program} --version"
            raise IncompleteError("container-fails", f"{program} fails: {said}", about=site.name, hint=hint)
    except HibaliError as problem:
        walk.fault("container", problem)
        return
    said = printable(answer.stdout.strip().splitlines()[0][:80]) if answer.stdout.strip() else program
    walk.ok("container", said)


def _which(far: Far, programs: tuple[str, ...]) -> Mapping[str, str | None]:
    """Behind a gate only an answer shows that a word is allowed."""
    return far.which(programs) if isinstance(far, KnowsPrograms) and programs else {}

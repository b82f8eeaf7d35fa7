"""Count which annexed files have their contents or can get them now, and say why others cannot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hibali.errors import AccessError, HibaliError, IncompleteError
from hibali.text import counted, printable
from hibali_plugins.datasets.annex_branch import BITTORRENT, WEB, AnnexBranch, KeyRecord
from hibali_plugins.datasets.annexed_files import AnnexedFile, ContentState, FoundContent
from hibali_plugins.datasets.remote_probe import git_line, quoted
from hibali_plugins.datasets.repository import Repository
from hibali_plugins.datasets.sources import Config, Source, State, web_urls

_NO_COPY = "no known copy"
_NAMED = 3  # sources or repositories in a message


@dataclass
class FileCounts:
    """The number of annexed files by what is known about their contents.

    Attributes:
        here: Their content is on this machine.
        available: They have a source that works.
        unknown: They have a source that was not tested.
        unavailable: They cannot be fetched now; each with the reason.
        problems: What is wrong.
    """

    here: int = 0
    available: int = 0
    unknown: int = 0
    unavailable: dict[bytes, str] = field(default_factory=dict)
    problems: list[HibaliError] = field(default_factory=list)


class Availability:
    """The sources of contents, with the results of their tests."""

    def __init__(
        self, repository: Repository, config: Config, branch: AnnexBranch, sources: Sequence[Source]
    ) -> None:
        self.repository = repository
        self.descriptions = branch.descriptions
        self.own = config.get("annex.uuid")
        self._dead = branch.dead
        self._remotes: dict[str, list[Source]] = {}
        for source in sources:
            if source.uuid and source.type != "web":
                self._remotes.setdefault(source.uuid, []).append(source)
        self._servers = {source.address: source for source in sources if source.type == "web"}

    def sources(self, record: KeyRecord) -> list[Source]:
        """Return the sources that have a content, as it is recorded."""
        found = [source for uuid in sorted(record.copies) for source in self._remotes.get(uuid, ())]
        return found + [self._servers[origin] for origin in web_urls(record)]

    def elsewhere(self, record: KeyRecord) -> list[str]:
        """Return the repositories that have a content and are no source here, such as a clone of someone else."""
        return sorted(record.copies - {WEB, BITTORRENT, self.own, *self._remotes, *self._dead})


def count_files(
    availability: Availability,
    contents: Mapping[AnnexedFile, FoundContent],
    records: Mapping[bytes, KeyRecord],
) -> FileCounts:
    """Count the files, and add the problems of those that cannot be fetched."""
    counts = FileCounts()
    failing: Counter[Source] = Counter()
    lost: Counter[str] = Counter()
    unreached = 0
    for file, found in contents.items():
        record = records.get(file.key.name, KeyRecord())
        sources, elsewhere = availability.sources(record), availability.elsewhere(record)
        if found.content in {ContentState.HERE, ContentState.WRONG}:
            counts.here += 1
        elif any(source.serves(file.key.name) for source in sources):
            counts.available += 1
        elif BITTORRENT in record.copies or any(source.state is State.NOT_TESTED for source in sources):
            counts.unknown += 1
        elif elsewhere and not availability.own:
            counts.unknown += 1
            unreached += 1
        elif sources:
            failing.update(sources)
            counts.unavailable[file.path] = ", ".join(dict.fromkeys(_name(source) for source in sources))
        else:
            lost.update(elsewhere or [""])
            counts.unavailable[file.path] = _NO_COPY
    _add_problems(availability, counts, failing, lost, unreached)
    return counts


def _add_problems(
    availability: Availability,
    counts: FileCounts,
    failing: Counter[Source],
    lost: Counter[str],
    unreached: int,
) -> None:
    repository, root = availability.repository, printable(availability.repository.root)
    for source in failing:
        if source.state is State.NOT_ENABLED:
            counts.problems.append(
                IncompleteError(
                    "remote-not-enabled",
                    f"{counted(failing[source], 'file')} can be fetched from it, but it is not enabled in this clone",
                    subject=source.name,
                    hint=f"If you trust it: {git_line(repository, 'annex', 'enableremote', source.name)}",
                )
            )
    without = sum(reason == _NO_COPY for reason in counts.unavailable.values())
    waiting = len(counts.unavailable) - without
    if waiting:
        counts.problems.append(_waiting(availability, waiting, failing))
    if without:
        names = [availability.descriptions.get(uuid, uuid) for uuid, _ in lost.most_common(_NAMED) if uuid]
        where = f"; others have copies: {', '.join(map(printable, names))}" if names else ""
        counts.problems.append(
            IncompleteError(
                "no-copy",
                f"{counted(without, 'file')} cannot be fetched: no source is known to have {'it' if without == 1 else 'them'}{where}",
                subject=root,
                hint=f"Ask who publishes the dataset. To list them: {git_line(repository, 'annex', 'list', '--not', '--in=here')}",
            )
        )
    if unreached:
        counts.problems.append(
            IncompleteError(
                "not-initialised",
                f"git-annex does not know this clone yet, so {counted(unreached, 'file')} in other clones could not be tested",
                subject=root,
                hint=f"To initialise it without running programs that others chose: {git_line(repository, 'annex', 'init', '--no-autoenable')}",
            )
        )


def _waiting(availability: Availability, waiting: int, failing: Counter[Source]) -> HibaliError:
    """Return the problem of files whose sources all fail: one of access if a login is all that is missing."""
    named = ", ".join(_name(source) for source, _ in failing.most_common(_NAMED))
    problems = [problem for source in failing for problem in source.outcome.problems]
    only_logins = all(source.outcome.problems for source in failing) and all(
        isinstance(problem, AccessError) for problem in problems
    )
    root = availability.repository.root
    message = f"{counted(waiting, 'file')} cannot be fetched now, because their sources fail: {named}"
    hint = f"To list them: hibali datasets check {quoted(root.decode('utf-8', 'surrogateescape'))} -v"
    if only_logins:
        return AccessError("files-unavailable", message, subject=printable(root), hint=hint)
    return IncompleteError("files-unavailable", message, subject=printable(root), hint=hint)


def _name(source: Source) -> str:
    return printable(source.address if source.type == "web" else source.name)


def content_problems(
    repository: Repository, contents: Mapping[AnnexedFile, FoundContent]
) -> list[HibaliError]:
    """Return the problems of files that have something else than their content."""
    problems: list[HibaliError] = []
    pointers = [file for file, found in contents.items() if found.content is ContentState.POINTER]
    if pointers:
        first = pointers[0].path.decode("utf-8", "surrogateescape")
        problems.append(
            IncompleteError(
                "pointer-text",
                f"{_more(len(pointers))} the text of a pointer in place of the data",
                subject=printable(pointers[0].path),
                hint=f"To fetch the content: {git_line(repository, 'annex', 'get', '--', first)}",
            )
        )
    wrong = [(file, found.found) for file, found in contents.items() if found.content is ContentState.WRONG]
    if wrong:
        first = wrong[0][0].path.decode("utf-8", "surrogateescape")
        problems.append(
            IncompleteError(
                "wrong-content",
                f"{_more(len(wrong))} {wrong[0][1]} in place of the data",
                subject=printable(wrong[0][0].path),
                hint=f"To check all contents: {git_line(repository, 'annex', 'fsck', '--', first)}",
            )
        )
    return problems


def _more(count: int) -> str:
    return "it has" if count == 1 else f"it and {counted(count - 1, 'other file')} have"

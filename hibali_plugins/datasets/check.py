"""Check all sources of a dataset's contents at the same time, and count what can be fetched, before anything is."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from urllib.parse import urlsplit

from hibali.cancellation import in_this_context
from hibali.config.model import Site
from hibali.errors import AccessError, Exit, HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.text import counted, printable
from hibali_plugins.datasets.annex_branch import AnnexBranch
from hibali_plugins.datasets.annexed_files import (
    AnnexedFile,
    ContentState,
    FoundContent,
    annexed_files,
    find_content,
)
from hibali_plugins.datasets.availability import Availability, FileCounts, content_problems, count_files
from hibali_plugins.datasets.remote_probe import RemoteProbe, git_line, quoted
from hibali_plugins.datasets.repository import Repository, find_repository_path
from hibali_plugins.datasets.sources import Kept, Outcome, Source, State, find_sources, read_config
from hibali_plugins.datasets.url_probe import UrlProbe

_MOST_FILES = 200_000
_MOST_SOURCES = 128
_AT_ONCE = 32  # sources; each can be a program
_GRACE_SECONDS = 1.5  # for a program to end after its deadline


@dataclass
class DatasetReport:
    """The result of a check.

    Attributes:
        root: The folder of the dataset.
        files: The annexed files that were checked.
        size: The bytes of their contents, as far as their keys have them.
        counts: Where their contents are.
        sources: The sources, those with most files first.
        problems: What is wrong with the sources and the files.
    """

    root: bytes
    files: int = 0
    size: int = 0
    counts: FileCounts = field(default_factory=FileCounts)
    sources: list[Source] = field(default_factory=list)
    problems: list[HibaliError] = field(default_factory=list)

    @property
    def exit(self) -> Exit:
        """The exit code: access if only logins are missing, incomplete for any other problem."""
        if not self.problems:
            return Exit.DONE
        only_logins = all(isinstance(problem, AccessError) for problem in self.problems)
        return Exit.ACCESS if only_logins else Exit.INCOMPLETE


def check_dataset(
    path: bytes, below: Sequence[bytes], sites: Iterable[Site], seconds: float
) -> DatasetReport:
    """Check the sources of the annexed files at and below a folder of a dataset.

    Args:
        path: The absolute path of the dataset, or of a folder in it.
        below: Paths relative to it, to check only these; all of it if there are none.
        sites: The sites of kind url with a login, which is sent to URLs below theirs.
        seconds: The time for each source.

    Raises:
        UsageError: `no-dataset`, `outside-dataset`.
        NotFoundError: There is no file at one of the paths.
        IncompleteError: git cannot read the repository.
    """
    place = find_repository_path(path)
    if place is None:
        raise UsageError(
            "no-dataset",
            "this is not in a DataLad dataset or git-annex repository of this machine",
            subject=printable(path),
            hint=f"To look for one: ls -d {quoted(os.fsdecode(path))}/.git",
        )
    repository = place.repository
    report = DatasetReport(repository.root)
    files = _list_files(
        repository, [_relative(repository, place.path, each) for each in below or [b""]], report
    )
    contents = {file: find_content(repository, file) for file in files}
    kept = _kept(contents)
    config, branch = read_config(repository), AnnexBranch(repository)
    records = branch.records(kept)
    report.sources = find_sources(config, branch, records, kept)
    _test_all(
        RemoteProbe(repository, config, report.sources, seconds),
        UrlProbe(repository, config, sites, seconds),
        report,
    )
    _check_records(repository, branch, report, kept)
    report.counts = count_files(Availability(repository, config, branch, report.sources), contents, records)
    report.problems += report.counts.problems + content_problems(repository, contents)
    return report


def _relative(repository: Repository, folder: bytes, path: bytes) -> bytes:
    """Return a path below the repository; `path` is relative to the folder."""
    whole = os.path.normpath(folder + b"/" + path) if path else folder
    if whole != repository.root and not whole.startswith(repository.root.rstrip(b"/") + b"/"):
        raise UsageError("outside-dataset", "this path is outside of the dataset", subject=printable(path))
    return whole[len(repository.root) :].strip(b"/")


def _list_files(repository: Repository, below: Sequence[bytes], report: DatasetReport) -> list[AnnexedFile]:
    files, beyond = annexed_files(repository, below, _MOST_FILES)
    if not files and any(below) and not any(os.path.lexists(repository.root + b"/" + each) for each in below):
        raise NotFoundError("no-such-place", "it does not exist", subject=printable(below[0]))
    if beyond:
        report.problems.append(
            IncompleteError(
                "too-many-files",
                f"only {_MOST_FILES} files were checked, and {beyond} were not",
                subject=printable(repository.root),
                hint=f"To check a part: hibali datasets check {quoted(os.fsdecode(repository.root))} --path FOLDER",
            )
        )
    report.files, report.size = len(files), sum(max(file.key.size, 0) for file in files)
    return files


def _kept(contents: Mapping[AnnexedFile, FoundContent]) -> dict[bytes, Kept]:
    counts = Counter(file.key.name for file in contents)
    here = {file.key.name for file, found in contents.items() if found.content is ContentState.HERE}
    return {file.key.name: Kept(file.key, counts[file.key.name], file.key.name in here) for file in contents}


Test = Callable[[Source, Outcome], None]


def _test_all(remotes: RemoteProbe, urls: UrlProbe, report: DatasetReport) -> None:
    """Test all sources at the same time, and set their states."""
    tests = [(source, test) for source in report.sources if (test := _test_of(source, remotes, urls))]
    for first in range(0, min(len(tests), _MOST_SOURCES), _AT_ONCE):
        _run_tests(tests[first : first + _AT_ONCE], remotes.seconds)
    if len(tests) > _MOST_SOURCES:
        report.problems.append(
            IncompleteError(
                "too-many-sources",
                f"only the {_MOST_SOURCES} sources with most files were tested, of {len(tests)}",
                subject=printable(report.root),
                hint=f"To check a part: hibali datasets check {quoted(os.fsdecode(report.root))} --path FOLDER",
            )
        )
    if report.sources and not remotes.has_annex:
        report.problems.append(
            IncompleteError(
                "no-annex-program",
                "git-annex is not installed, so special remotes were not tested",
                hint="pip install 'hibali[annex]'",
            )
        )
    for source in report.sources:
        report.problems += source.outcome.problems


def _test_of(source: Source, remotes: RemoteProbe, urls: UrlProbe) -> Test | None:
    """Return the test of a source; None for one that is not used or cannot be tested."""
    if source.type == "web":
        sftp = source.address.startswith("sftp://")
        if sftp and urlsplit(source.samples[0].url).password is not None:
            return None  # OpenSSH takes no password from elsewhere than a terminal
        return partial(_test_sftp, remotes, urls) if sftp else partial(_test_web, urls)
    if not source.enabled:
        return partial(_test_unused, remotes, urls) if source.files else None
    return remotes.test


def _test_web(urls: UrlProbe, source: Source, outcome: Outcome) -> None:
    urls.allows(source)
    urls.test(source, outcome)


def _test_sftp(remotes: RemoteProbe, urls: UrlProbe, source: Source, outcome: Outcome) -> None:
    del outcome
    urls.allows(source)
    remotes.log_in_over_ssh(source.samples[0].url)


def _test_unused(remotes: RemoteProbe, urls: UrlProbe, source: Source, outcome: Outcome) -> None:
    """Test what can be tested of a special remote that is not enabled in this clone."""
    del outcome
    remotes.check_names(source)
    remotes.check_programs(source)
    if source.url.startswith(("http://", "https://")):
        urls.reach(source.url)


def _run_tests(tests: Sequence[tuple[Source, Test]], seconds: float) -> None:
    """Run tests, each in a thread that is left behind when it does not end in time: a name server can hang."""
    outcomes = [Outcome() for _ in tests]

    def run_one(test: Test, source: Source, outcome: Outcome) -> None:
        try:
            test(source, outcome)
        except HibaliError as problem:
            outcome.problems.insert(0, _as_problem(problem, source, seconds))

    threads = [
        threading.Thread(target=in_this_context(run_one), args=(test, source, outcome), daemon=True)
        for (source, test), outcome in zip(tests, outcomes, strict=True)
    ]
    until = time.monotonic() + seconds + _GRACE_SECONDS
    for thread in threads:
        thread.start()
    for thread, (source, _), outcome in zip(threads, tests, outcomes, strict=True):
        thread.join(max(0.0, until - time.monotonic()))
        source.outcome = Outcome([_too_slow(source, seconds)]) if thread.is_alive() else outcome
        if source.outcome.problems:
            source.state = State.FAILED
        else:
            source.state = State.OK if source.enabled else State.NOT_ENABLED


def _as_problem(problem: HibaliError, source: Source, seconds: float) -> HibaliError:
    """Return a problem of a source as one of the dataset: the command itself did not fail."""
    if isinstance(problem, AccessError):
        return problem
    if problem.code in {"timed-out", "answer-too-slow"}:
        return _too_slow(source, seconds)
    return IncompleteError(problem.code, problem.message, subject=problem.subject, hint=problem.hint)


def _too_slow(source: Source, seconds: float) -> IncompleteError:
    return IncompleteError(
        "timed-out",
        f"it did not answer within {seconds:g} s",
        subject=source.name if source.type != "web" else source.address,
        hint="If it is only slow, use a longer --timeout.",
    )


def _check_records(
    repository: Repository, branch: AnnexBranch, report: DatasetReport, kept: Mapping[bytes, Kept]
) -> None:
    """Add problems of the branch git-annex itself."""
    if kept and not branch.commits:
        report.problems.append(
            IncompleteError(
                "no-annex-branch",
                "there is no branch git-annex, which has the sources of the contents",
                subject=printable(repository.root),
                hint=f"To fetch it, if the publisher pushed it: {git_line(repository, 'fetch', 'origin', 'git-annex:refs/remotes/origin/git-annex')}",
            )
        )
    if branch.unread:
        report.problems.append(
            IncompleteError(
                "records-too-large",
                f"{counted(branch.unread, 'record')} in the branch git-annex are too large, and were not read",
                subject=printable(repository.root),
                hint=f"Ask who publishes the dataset. To look at it: {git_line(repository, 'log', 'git-annex')}",
            )
        )

"""Test site selection: near the data, then the shorter queue, always with the same result."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import permutations

import pytest

from hibali.config.model import ContainerSettings, SchedulerSettings, Site
from hibali.errors import TryLaterError, UsageError
from runs.schedulers.base import Scheduler, load_scheduler
from runs.site_selection import Candidate, can_choose, choose, no_site, why_not_considered
from transfers.remote.host import CommandResult

MIB = 1 << 20
NOW = datetime(2026, 11, 22, 10, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("best", "others"),
    [
        (Candidate("z", 0, 9e9), [Candidate("a", 2 * MIB, 0.0), Candidate("b", 3 * MIB, 0.0)]),
        (Candidate("z", 5, 0.0), [Candidate("a", 0, 3600.0), Candidate("b", 0, None)]),
        (Candidate("z", MIB, 86400.0), [Candidate("a", MIB, None)]),
        (Candidate("z", 4, 3.0), [Candidate("a", 5, 2.0)]),
        (Candidate("a", 4, 30.0), [Candidate("b", 4, 0.0), Candidate("c", 4, 59.0)]),
        (Candidate("z", 9 * MIB, None), [Candidate("a", 0, 0.0, why_not="no GPUs")]),
    ],
)
def test_the_choice_does_not_depend_on_the_order(best: Candidate, others: list[Candidate]) -> None:
    for given in permutations([best, *others]):
        choice = choose(given)
        assert choice.site == best.site
        assert choice.candidates[0] == best
        assert choice.because


def test_without_a_suitable_site_all_are_named() -> None:
    unable = [Candidate("a", why_not="no GPUs"), Candidate("b", why_not="no podman")]
    with pytest.raises(UsageError) as refused:
        choose(unable)
    assert "a: no GPUs" in refused.value.message
    assert "b: no podman" in refused.value.message
    with pytest.raises(TryLaterError):
        choose([*unable, Candidate("c", why_not="it does not answer", later=True)])
    with pytest.raises(UsageError):
        choose([])


def test_a_reason_is_given_for_each_ignored_site() -> None:
    bare = Site("bare", "local")
    assert can_choose(bare, {"bare"})
    assert "--site bare" in why_not_considered(bare)
    assert "s3" in why_not_considered(Site("store", "s3"), {"store"})
    assert "no site is configured" in no_site([]).message


def test_auto_considers_sites_with_settings_for_jobs() -> None:
    assert can_choose(Site("a", "ssh", scheduler=SchedulerSettings("slurm")))
    assert can_choose(Site("a", "local", container=ContainerSettings("podman")))
    assert not can_choose(Site("a", "ssh"))
    assert not can_choose(Site("a", "s3", container=ContainerSettings("podman")))


def slurm() -> Scheduler:
    return load_scheduler("slurm")


@pytest.mark.parametrize(
    ("output", "seconds"),
    [
        (
            b"sbatch: Job 12 to start at 2026-11-22T11:30:00 using 1 processors on nodes n1 in partition main",
            5400,
        ),
        (
            b"sbatch: Job 12 to start at 2026-11-22T09:00:00 using 8 processors on nodes n[1-2] in partition a",
            0,
        ),
        (b"Welcome!\nsbatch: Job 12 to start at 2026-11-22T10:00:01 using 1 processors", 1),
        (b"sbatch: Job 12 to start at 9999-99-99T10:00:01 using 1 processors", None),
        (b"", None),
        (b"this key may only run sbatch JOBSCRIPT\n", None),
    ],
)
def test_slurm_predicts_the_start_of_a_job(output: bytes, seconds: int | None) -> None:
    assert slurm().read_start(CommandResult(0, b"", output), NOW) == seconds


def test_a_job_that_slurm_rejects_excludes_the_site() -> None:
    refused = b"allocation failure: Requested node configuration is not available\n"
    with pytest.raises(UsageError):
        slurm().read_start(CommandResult(1, b"", refused), NOW)
    silent = b"allocation failure: Unable to contact slurm controller (connect failure)\n"
    with pytest.raises(TryLaterError):
        slurm().read_start(CommandResult(1, b"", silent), NOW)
    with pytest.raises(UsageError):
        slurm().read_start(CommandResult(127, b"", b"env: sbatch: No such file or directory"), NOW)


def test_without_a_scheduler_the_wait_is_zero() -> None:
    assert load_scheduler("direct").start_argv() == ()

"""Define the options of a new run, as the command line and the Python API give them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from hibali.amounts import NONE
from runs.fast_storage import FastOptions
from runs.schedulers.base import Resources

PROXY_OPTIONS = ("--no-proxy", "--with-proxy")


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The start of a run: `after` other runs, by id, or on `hold`.

    With `wait`, hibali waits for the other runs. A `sweep` starts after the end of every run whose outputs it takes. `polled`: the states of the
    other runs in the ledger are recent, and their sites are not queried again.
    """

    after: tuple[str, ...] = ()
    hold: bool = False
    wait: bool = False
    sweep: bool = False
    polled: bool = False


@dataclass(frozen=True, slots=True)
class CollectOptions:
    """The target of the outputs after a run: a folder, or one in a DataLad dataset; and the table of a sweep."""

    folder: str | None = None
    dataset: str | None = None
    no_save: bool = False
    table: str | None = None

    @property
    def target(self) -> str | None:
        """The folder for the outputs, None if they stay at the site."""
        return self.dataset or self.folder


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """The participants, or the `sessions`, of a BIDS dataset as tasks; with `only_missing` those that have not succeeded."""

    dataset: str
    sessions: bool = False
    only_missing: bool = False


@dataclass(frozen=True, slots=True)
class SweepOptions:
    """The tasks of a sweep, and the maximum number of jobs of a pilot; 0 for job arrays."""

    each: Path | None
    parameters: tuple[str, ...] = ()
    allocations: int = 0
    participants: DatasetOptions | None = None


@dataclass(frozen=True, slots=True)
class RequestedJob:
    """The job options of the command line; None for `resources` and `fast` is none, `proxy` None leaves the site's default."""

    resources: Resources | None = None
    fast: FastOptions | None = None
    proxy: bool | None = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `hibali run`.

    `sites` are as typed, `explain` shows how they compare. `sweep` is None for a single run. `wait` follows
    the run to its end, `notify` is the target notified of it. `reuse` returns an earlier run that computed
    the same.
    """

    sites: tuple[str, ...] = ()
    explain: bool = False
    name: str = ""
    new: bool = False
    image: str = ""
    job: RequestedJob = field(default_factory=RequestedJob)
    sweep: SweepOptions | None = None
    start: StartOptions = field(default_factory=StartOptions)
    collect: CollectOptions = field(default_factory=CollectOptions)
    reuse: bool = False
    wait: bool = False
    notify: str | None = None


def resource_argv(resources: Resources) -> tuple[str, ...]:
    """Return the options that request these resources."""
    amounts = {
        "nodes": resources.nodes,
        "tasks": resources.tasks,
        "cores": resources.cores,
        "memory": resources.memory_megabytes and f"{resources.memory_megabytes}M",
        "time": resources.seconds and f"{resources.seconds}s",
        "gpus": resources.gpus,
        "partition": resources.partition,
        "account": resources.account,
        "reservation": resources.reservation,
    }
    options = [
        f"--{name}={NONE if value == 0 else value}" for name, value in amounts.items() if value is not None
    ]
    return (*options, *(f"--directive={text}" for text in resources.directives))


def proxy_argv(proxy: bool | None) -> tuple[str, ...]:  # noqa: FBT001  # as the option has it
    """Return the option for the job's proxy; none for the site's default."""
    return () if proxy is None else (PROXY_OPTIONS[proxy],)

"""Declare the options of a run that the command line and Python have."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from hibali.amounts import NONE, check_duration, read_job_time, read_memory
from hibali.errors import UsageError
from hibali.options import Option

# `hibali --help` imports this module, which therefore imports nothing of runs
if TYPE_CHECKING:
    from runs.schedulers.base import Resources

_LONGEST_NAME = 200
_MOST = 1_000_000


def _read_time(amount: str | int) -> int:
    """Return seconds, 0 for `none`."""
    if isinstance(amount, str):
        return 0 if amount == NONE else read_job_time(amount)
    return int(check_duration(amount))


def _read_name(name: str) -> str:
    if any(ord(letter) < 32 for letter in name) or len(name) > _LONGEST_NAME:
        raise UsageError(
            "bad-name",
            f"the name of a run must be one line of at most {_LONGEST_NAME} characters",
            subject="--name",
        )
    return name


class ResourceOptions(TypedDict, total=False):
    """The resources of a job; "none" requests none although the author or the site suggests some."""

    nodes: Annotated[
        int | Literal["none"],
        Option(
            "The number of nodes; `none` requests no resource that the author suggests, also with the next options.",
            metavar="N",
            limits=(1, _MOST),
        ),
    ]
    tasks: Annotated[
        int | Literal["none"],
        Option("The number of MPI tasks, started by the site's launcher.", metavar="N", limits=(1, _MOST)),
    ]
    cores: Annotated[
        int | Literal["none"],
        Option("The number of cores for each task.", metavar="N", limits=(1, _MOST)),
    ]
    memory: Annotated[
        int | str,
        Option(
            "Memory for each node, such as 16G.",
            metavar="SIZE",
            read=read_memory,
            python="Memory for each node, in bytes or as text such as 16G.",
        ),
    ]
    time: Annotated[
        int | str,
        Option(
            "The time limit of the job: [D-]HH:MM:SS, or a duration such as 90m.",
            metavar="TIME",
            read=_read_time,
            python="The time limit of the job in seconds, or as text: [D-]HH:MM:SS, or a duration such as 90m.",
        ),
    ]
    gpus: Annotated[
        int | Literal["none"],
        Option("GPUs for each node; 0 for none.", metavar="N", limits=(0, 1024)),
    ]
    partition: Annotated[str, Option("The partition or queue of the job.", metavar="P")]
    account: Annotated[str, Option("The account to charge the job to.", metavar="A")]
    reservation: Annotated[str, Option("The reservation for the job.", metavar="R")]
    directives: Annotated[
        Sequence[str],
        Option(
            "An additional option for the scheduler in its own syntax, as in --directive=--qos=long; repeatable.",
            flags="--directive",
            metavar="OPTION",
            python="Additional options for the scheduler in its own syntax, as in --qos=long.",
        ),
    ]


class IdentityOptions(TypedDict, total=False):
    """What distinguishes a run from others."""

    name: Annotated[
        str, Option("A name of your own, to distinguish runs.", metavar="NAME", default="", read=_read_name)
    ]
    new: Annotated[bool, Option("Start a new run, even if this command has an unfinished one.")]
    image: Annotated[
        str,
        Option(
            "Use the image of this archive, or accept this image.", metavar="ARCHIVE|sha256:ID", default=""
        ),
    ]


def resources_from(values: Mapping[str, Any]) -> "Resources":
    """Return the requested resources; raises `UsageError` for text that cannot be a directive."""
    from runs.schedulers.base import Resources, check_directive, check_plain  # start-up: not for --help

    for name in ("partition", "account", "reservation"):
        if values[name] is not None:
            check_plain(values[name], name)
    for text in values["directives"]:
        check_directive(text, components=True)
    return Resources(
        memory_megabytes=values["memory"],
        seconds=values["time"],
        **{name: values[name] for name in ResourceOptions.__annotations__.keys() - {"memory", "time"}},
    )

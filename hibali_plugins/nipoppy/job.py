"""Read the job script that nipoppy renders for a cluster of hibali: text in, commands for the site out."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import Any

from hibali.documents import read_json
from hibali.errors import UsageError
from hibali_plugins.nipoppy.cluster import MARK, Cluster

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*", re.ASCII)
# What distinguishes the commands of one pipeline.
_PART = {"step": "--pipeline-step", "participant": "--participant-id", "session": "--session-id"}
_LABEL = re.compile(r"[A-Za-z0-9]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class NipoppyJob:
    """One call of `nipoppy process --hpc`.

    `study` is the absolute path here, and `commands` are nipoppy's own, one for each of `parts`: the step, participant and session, ""
    without one. `participants` are labels without `sub-`; None if one of the commands is for no single participant.
    """

    cluster: str
    study: str
    pipeline: str
    version: str
    commands: tuple[tuple[str, ...], ...]
    parts: tuple[dict[str, str], ...]
    participants: tuple[str, ...] | None
    preamble: tuple[str, ...]
    resources: dict[str, str]

    @property
    def output(self) -> str:
        """The folder of its results below `derivatives`."""
        return f"{self.pipeline}/{self.version}"

    def rows(self, cluster: Cluster) -> list[dict[str, str]]:
        """Return each part with its command for bash at the site: the preamble, then nipoppy with the copy of the study."""
        program = shlex.split(cluster.program)
        found = []
        for words, part in zip(self.commands, self.parts, strict=True):
            moved = [*program, words[1], words[2], cluster.folder, *words[4:]]
            found.append({**part, "command": "\n".join((*self.preamble, shlex.join(moved)))})
        return found

    def job_options(self) -> dict[str, Any]:
        """Return the options of `hibali.run` for the resources of hpc.json, which are in Slurm's form."""
        wanted = {name: value for name, value in self.resources.items() if value}
        options: dict[str, Any] = {}
        if "TIME" in wanted:
            options["time"] = f"{wanted['TIME']}m" if wanted["TIME"].isdigit() else wanted["TIME"]
        if "MEMORY" in wanted:
            options["memory"] = f"{wanted['MEMORY']}M" if wanted["MEMORY"].isdigit() else wanted["MEMORY"]
        if "CORES" in wanted:
            options["cores"] = int(wanted["CORES"]) if wanted["CORES"].isdigit() else wanted["CORES"]
        known = {"ACCOUNT": "account", "PARTITION": "partition"}
        return options | {ours: wanted[theirs] for theirs, ours in known.items() if theirs in wanted}


def read_job(text: str, subject: str) -> NipoppyJob:
    """Read a job script. Raises `UsageError` for one that nipoppy did not render from hibali's template."""
    try:
        [line] = [each for each in text.splitlines() if each.startswith(MARK)] or [""]
        return _parse(read_json(line.removeprefix(MARK).encode(), subject) if line else None)
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise UsageError(
            "not-a-nipoppy-job",
            f"nipoppy did not render this from hibali's template, or for something that hibali cannot submit: {problem}",
            subject=subject,
            hint="Call `nipoppy process --hpc SITE` after `hibali nipoppy setup STUDY SITE:FOLDER`.",
        ) from None


def _parse(found: Any) -> NipoppyJob:
    if not isinstance(found, dict):
        raise TypeError(f"no line begins with {MARK}")
    study = _text(found["study"])
    commands = tuple(tuple(shlex.split(_text(each))) for each in found["commands"])
    output = {"--pipeline": found["pipeline"], "--pipeline-version": found["version"]}
    parts = tuple(_read_command(words, study, output) for words in commands)
    if len({tuple(each.values()) for each in parts}) < len(parts):
        raise ValueError("two of its commands are for the same participant and session")
    labels = list(dict.fromkeys(found["participants"]))
    for each in labels:
        if each is not None and not _LABEL.fullmatch(_text(each)):
            raise ValueError(f"{each!r} is no label of a participant")
    for name in (found["cluster"], found["pipeline"], found["version"]):
        if not _NAME.fullmatch(_text(name)):
            raise ValueError(f"{name!r} is no name of a cluster, a pipeline or a version")
    return NipoppyJob(
        found["cluster"],
        study,
        found["pipeline"],
        found["version"],
        commands,
        parts,
        None if None in labels else tuple(labels),
        tuple(_text(each) for each in found["preamble"]),
        {str(name): _text(value) for name, value in found["resources"].items()},
    )


def _read_command(words: tuple[str, ...], study: str, output: dict[str, Any]) -> dict[str, str]:
    """Return the step, participant and session of `nipoppy process --study STUDY ...`, which names nothing else than the script."""
    if words[:2] != ("nipoppy", "process"):
        raise ValueError("only `nipoppy process` is possible")
    known = words[2:3] in {("--study",), ("--dataset",)}  # --dataset is the older name
    if not study.startswith("/") or not known or words[3:4] != (study,):
        raise ValueError("its commands are for another study")
    options = _read_options(words[4:])
    if options.keys() & {"--study", "--dataset"}:
        raise ValueError("its commands are for another study")
    if "--layout" in options:
        raise ValueError("only the default layout of studies is possible")
    if any(options.get(name, value) != value for name, value in output.items()):
        raise ValueError("its commands are for another pipeline")
    part = {name: options.get(option, "") for name, option in _PART.items()}
    for each in (part["participant"], part["session"]):
        if each and not _LABEL.fullmatch(each):
            raise ValueError(f"{each!r} is no label of a participant or a session")
    return part


def _read_options(words: tuple[str, ...]) -> dict[str, str]:
    """Return options by their names, flags with ""; they are `--name value`, as nipoppy writes them, or `--name=value`."""
    options = dict[str, str]()
    last = ""
    for word in words:
        name, equals, value = word.partition("=")
        if word.startswith("-"):
            if name in options:
                raise ValueError(f"one of its commands has {name} twice")
            options[name] = value
            last = "" if equals else name
        elif last:
            options[last], last = word, ""
        else:
            raise ValueError(f"{word!r} belongs to no option")
    return options


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{json.dumps(value)[:40]} is not text")
    return value

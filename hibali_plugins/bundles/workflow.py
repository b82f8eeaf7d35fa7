"""Describe runs that use each other's outputs, and sweeps, as the execution of a workflow (Provenance Run Crate).

The workflow is a shell script that makes the runs again; its steps are the runs.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from hibali import __version__
from hibali.text import counted, printable
from hibali_plugins.bundles.archive import DESCRIPTOR, INVOCATION, TASKS, WORKFLOW
from hibali_plugins.bundles.entities import Crate

_PROFILES = (
    ("https://w3id.org/ro/wfrun/process/0.5", "Process Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/workflow/0.5", "Workflow Run Crate", "0.5"),
    ("https://w3id.org/ro/wfrun/provenance/0.5", "Provenance Run Crate", "0.5"),
    ("https://w3id.org/workflowhub/workflow-ro-crate/1.0", "Workflow RO-Crate", "1.0"),
)
_SOURCE = re.compile(r"run:(?P<run>[^/.]+)(?:\.(?P<task>[0-9]+))?/(?P<output>[^/]+)")
_HEAD = """\
#!/bin/sh
# Make these runs again with hibali: sh {name}
# SITE=NAME in the environment takes another site than the recorded ones. Start it in the folder to which the files in the values are relative.
set -eu
crate=$(dirname -- "$0")
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A run of the workflow.

    `sources` are pairs of an input's id and the output that it uses, `run:ID/OUTPUT`; `after` the runs that had to end before. `options`
    are those of the job as they were typed. `tasks` are the numbers of a sweep's tasks, which begin at 1 only in a whole one.
    """

    run: str
    pipeline: str
    site: str
    sources: Sequence[tuple[str, str]] = ()
    after: Sequence[str] = ()
    options: Sequence[str] = ()
    tasks: Sequence[int] = ()

    @property
    def needed(self) -> set[str]:
        """The runs that this one had to wait for."""
        found = (_SOURCE.match(text) for _, text in self.sources)
        return {*self.after, *(each["run"] for each in found if each)}


def is_workflow(steps: Sequence[Step]) -> bool:
    """Return whether one of the runs uses another one, or is a sweep."""
    runs = {each.run for each in steps}
    return any(each.tasks or each.needed & runs for each in steps)


def in_order(steps: Iterable[Step]) -> list[Step]:
    """Return the steps, each after those that it needs; otherwise by id, which is by creation."""
    left = sorted(steps, key=lambda each: each.run)
    ordered: list[Step] = []
    while left:
        waiting = {each.run for each in left}
        # runs name older runs only, but a ledger can be edited: without one that is ready, the oldest is next
        chosen = next((each for each in left if not each.needed & waiting), left[0])
        ordered.append(chosen)
        left.remove(chosen)
    return ordered


def script_of(steps: Sequence[Step]) -> bytes:
    """Return the shell script that makes the runs again, in the order of the steps."""
    lines = [_HEAD.format(name=WORKFLOW)]
    names = {step.run: f"run_{number}" for number, step in enumerate(steps, 1)}
    for step in steps:
        crate, made = (f'"${folder}"/{shlex.quote(step.run)}' for folder in ("crate", "made"))
        others = [each for each in steps if each.run in step.needed]
        changes = " ".join(_changes(step, others, names)) or "-e ''"
        words = [
            "hibali run --new",
            shlex.quote(step.pipeline),
            f"{made}.json",
            *([f"--each {made}.jsonl"] if step.tasks else []),
            '--site "${SITE:-$site}"',
            *(f'--after "${names[each.run]}"' for each in others if each.run in step.after),
            *(shlex.quote(each) for each in step.options),
        ]
        lines += [
            # under the name it had; another pipeline of that name is refused
            f"hibali pipelines add -q --name={shlex.quote(step.pipeline.partition('@')[0])} {crate}/{DESCRIPTOR}\n",
            f"site={shlex.quote(step.site)}\n",
            f"sed {changes} {crate}/{INVOCATION} >{made}.json\n",
            *([f"sed {changes} {crate}/{TASKS} >{made}.jsonl\n"] if step.tasks else []),
            f"{names[step.run]}=$({' '.join(words)})\n",
        ]
    waiting = " ".join(f'"${name}"' for name in names.values())
    lines.append(f"hibali runs wait {waiting}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")


def _changes(step: Step, others: Sequence[Step], names: Mapping[str, str]) -> Iterator[str]:
    """Yield the expressions of sed that name the new runs, and their tasks, which are numbered from 1 on."""
    found = [source for _, text in step.sources if (source := _SOURCE.match(text))]
    for other in others:
        used = {int(each["task"]) for each in found if each["run"] == other.run and each["task"]}
        for position, number in enumerate(other.tasks, 1):
            if number in used and number != position:
                yield f'-e "s|run:{other.run}[.]{number}/|run:${{{names[other.run]}}}.{position}/|g"'
        yield f'-e "s|run:{other.run}|run:${names[other.run]}|g"'


def table_of(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return the tasks of a sweep as a table for `--each`."""
    return "".join(json.dumps(dict(row)) + "\n" for row in rows).encode("ascii")


def describe_workflow(
    crate: Crate, steps: Sequence[Step], actions: Mapping[str, Sequence[Any]], agent: Any
) -> None:
    """Add the workflow, its steps and its execution; `actions` has those of each run that the crate has already."""
    root = crate.library.root_dataset
    tools = {run: each[0]["instrument"] for run, each in actions.items()}
    workflow = crate.file(
        WORKFLOW,
        {
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
            "name": f"Workflow of {', '.join(dict.fromkeys(each.pipeline for each in steps))}",
            "encodingFormat": "application/x-sh",
            "contentSize": str(len(script_of(steps))),
            "programmingLanguage": crate.entity(
                "#sh",
                "ComputerLanguage",
                name="POSIX shell",
                url={"@id": "https://pubs.opengroup.org/onlinepubs/9799919799/utilities/sh.html"},
            ),
            "hasPart": list({tool.id: tool for tool in tools.values()}.values()),
        },
    )
    entities = {
        each.run: crate.entity(
            f"#step-{quote(each.run)}",
            "HowToStep",
            name=f"{printable(each.pipeline)} at {printable(each.site)}",
            position=str(number),
            workExample=tools[each.run],
        )
        for number, each in enumerate(steps, 1)
    }
    workflow["step"] = list(entities.values())
    _connect(crate, steps, entities, tools)
    everything = [action for each in steps for action in actions[each.run]]
    root["mainEntity"] = workflow
    root["conformsTo"] = [
        crate.entity(identifier, "CreativeWork", name=name, version=version)
        for identifier, name, version in _PROFILES
    ]
    root["mentions"] = [
        _execution(crate, steps, workflow, everything, agent),
        _organization(crate, steps, entities, actions, agent),
        *everything,
    ]


def _connect(
    crate: Crate, steps: Sequence[Step], entities: Mapping[str, Any], tools: Mapping[str, Any]
) -> None:
    """Add which output of a step is which input of a later one."""
    for step in steps:
        found = []
        for number, (name, text) in enumerate(step.sources):
            source = _SOURCE.match(text)
            if source is None or source["run"] not in tools:
                continue
            ends = {
                "sourceParameter": _parameter(crate, tools[source["run"]], "output", source["output"]),
                "targetParameter": _parameter(crate, tools[step.run], "input", name),
            }
            found.append(
                crate.entity(f"#connection-{quote(step.run)}-{number}", "ParameterConnection", **ends)
            )
        if found:
            entities[step.run]["connection"] = found


def _parameter(crate: Crate, tool: Any, end: str, name: str) -> Any:
    """Add an input or output of a tool; its example is its name, because the crate has no data."""
    identifier = f"#{end}-{quote(tool.id, safe='')}-{quote(name)}"
    known = crate.get(identifier)
    if known is not None:
        return known
    example = crate.entity(f"{identifier}-name", "PropertyValue", name=printable(name), value=printable(name))
    made = crate.entity(
        identifier, "FormalParameter", name=printable(name), additionalType="Text", workExample=example
    )
    example["exampleOfWork"] = made
    tool[end] = [*tool.get(end, []), made]
    return made


def _execution(crate: Crate, steps: Sequence[Step], workflow: Any, actions: Sequence[Any], agent: Any) -> Any:
    failed = [each for each in actions if str(each["actionStatus"]).endswith("FailedActionStatus")]
    made: dict[str, Any] = {
        "name": "Execution of the workflow",
        "description": f"{counted(len(actions), 'task')} of {counted(len(steps), 'step')}",
        "instrument": workflow,
        "agent": agent,
        "startTime": min(each["startTime"] for each in actions),
        "endTime": max(each["endTime"] for each in actions),
        "actionStatus": f"http://schema.org/{'Failed' if failed else 'Completed'}ActionStatus",
        "object": _unique(actions, "object"),
        "result": _unique(actions, "result"),
    }
    if failed:
        made["error"] = f"{len(failed)} of {len(actions)} did not succeed"
    return crate.entity(
        "#workflow-run", "CreateAction", **{name: fact for name, fact in made.items() if fact}
    )


def _unique(actions: Sequence[Any], name: str) -> list[Any]:
    found: dict[str, Any] = {}
    for action in actions:
        several = action.get(name) or []
        found |= {each.id: each for each in (several if isinstance(several, list) else [several])}
    return list(found.values())


def _organization(
    crate: Crate,
    steps: Sequence[Step],
    entities: Mapping[str, Any],
    actions: Mapping[str, Sequence[Any]],
    agent: Any,
) -> Any:
    controls = [
        crate.entity(
            f"#control-{action.id.removeprefix('#')}",
            "ControlAction",
            name=f"Step {entities[step.run]['position']}",
            instrument=entities[step.run],
            object=action,
        )
        for step in steps
        for action in actions[step.run]
    ]
    engine = crate.entity(
        "#hibali",
        "SoftwareApplication",
        name="hibali",
        description="Runs pipelines at sites and verifies their data",
        softwareVersion=__version__,
    )
    return crate.entity(
        "#organization",
        "OrganizeAction",
        name="hibali ran the workflow",
        instrument=engine,
        agent=agent,
        object=controls,
        result=crate.get("#workflow-run"),
    )

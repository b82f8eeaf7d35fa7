"""Run tools that a CBRAIN portal has installed, as tasks.

A task's description, which the portal keeps and returns, begins with the mark of the run. The portal cannot select tasks by it, so all tasks of
the user are read; their times are those of its clock, which may be wrong. Sources: the portal's swagger document 7.0.0, the recorded requests of its tests, and its tasks controller.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hibali.config.model import Site
from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.locations import Location
from hibali.text import printable
from hibali_plugins.cbrain.client import CbrainClient
from hibali_plugins.cbrain.portal import Portal
from hibali_plugins.cbrain.records import DataProvider, Task, ToolConfig
from registry.descriptor import digest_document
from registry.pipeline import Pipeline, catalogue_version, name_of_title
from runs.model import Output
from runs.schedulers.base import UNKNOWN, Phase, Status
from runs.services.base import (
    LostAnswerError,
    ServiceFacts,
    ServiceHost,
    ServiceInput,
    ServiceJob,
    ServiceOutput,
    ServiceSystem,
    ToolRequest,
    ToolService,
)

_PASSES = 2  # the list is sorted by the last change, so that a task can move to a page that was read
_FEW = 5  # tasks that are queried one by one, instead of reading the list
_WAITING = frozenset({"New", "Standby", "Configured", "Setting Up", "Queued", "On Hold", "Preset"})
_RUNNING = frozenset({"On CPU", "Suspended", "Data Ready", "Post Processing"})
_SHOWN_CHANGES = 5
_MOST_CANDIDATES = 100  # descriptors that are read to find one
# Outputs in which the modules of the portal's Boutiques integration save the streams of a tool.
_STREAMS = {"stdout": ("cbrain_stdout", "stdout"), "stderr": ("cbrain_stderr", "stderr")}
_MOST_STREAM = 64 * 1024 * 1024


class CbrainTasks(ToolService):
    """The tasks of one user at one portal."""

    name = "cbrain"
    facts = ServiceFacts(settling_seconds=60.0)

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._client = portal.client
        self._site = portal.site
        self._seen: dict[str, Task] = {}  # by mark, the last answer

    def find(self, mark: str, since: str) -> str | None:
        """See ToolService."""
        del since
        for _ in range(_PASSES):
            for task in self._client.tasks():
                if _mark_of(task) == mark:
                    self._seen[mark] = task
                    return str(task.id)
        return None

    def create(self, job: ServiceJob) -> str:
        """See ToolService."""
        content = job.content
        try:
            tasks = self._client.create_task(
                tool_config_id=content["tool_config"],
                results_provider_id=content["results_provider"],
                group_id=content["group"],
                description=f"{job.mark} {content['title']}",
                params=content["params"],
            )
        except (TryLaterError, IncompleteError) as problem:
            if problem.transient:  # it was certainly not executed
                raise
            raise LostAnswerError(problem, job.mark) from None
        except (NotFoundError, RefusedError) as problem:
            raise UsageError(
                "submission-rejected",
                f"CBRAIN refuses the task: {problem.message}",
                subject=job.mark,
                hint=f"To check the connection: hibali sites check {self._site.name}",
            ) from None
        if len(tasks) != 1:
            self._client.terminate_tasks([task.id for task in tasks])
            raise UsageError(
                "submission-rejected",
                f"CBRAIN made {len(tasks)} tasks of one; they were terminated",
                subject=job.mark,
                hint="Give each input of the tool one file.",
            )
        self._seen[job.mark] = tasks[0]
        return str(tasks[0].id)

    def states(self, jobs: Sequence[str]) -> Mapping[str, Status]:
        """See ToolService."""
        found = dict.fromkeys(jobs, UNKNOWN)
        for task in self._query(jobs):
            self._seen[_mark_of(task)] = task
            found[str(task.id)] = _status_of(task)
        return found

    def _query(self, jobs: Sequence[str]) -> Iterator[Task]:
        if len(jobs) > _FEW:
            left = set(jobs)
            for task in self._client.tasks():
                if str(task.id) in left:
                    left.remove(str(task.id))
                    yield task
                if not left:
                    return
            jobs = sorted(left)  # moved while the list was read, or gone
        for job in jobs:
            try:
                yield self._client.task(int(job))
            except NotFoundError:
                continue

    def cancel(self, job: str) -> None:
        """See ToolService; the portal answers before the execution server has ended the task."""
        self._client.terminate_tasks([int(job)])

    def find_input(self, location: Location) -> ServiceInput:
        """See ToolService."""
        provider, _, name = location.path.removeprefix("@").partition("/")
        found = self._portal.find(self._portal.provider(provider).id, name) if name else None
        if found is None:
            raise NotFoundError("no-such-input", "the portal has no such userfile", subject=location.text)
        return ServiceInput(str(found.id), f"{found.size}:{found.type}")

    def input_folder(self) -> Location:
        """See ToolService."""
        return self._folder(self._results().name)

    def _folder(self, provider: str) -> Location:
        return Location(self._site, f"@{provider}", f"{self._site.name}:@{provider}", slash=True, bucket="")

    def _results(self) -> DataProvider:
        """Return the data provider of inputs that are copied and of outputs: the one in the settings, else the only one."""
        wanted = self._portal.settings.results
        if wanted is not None:
            return self._portal.provider(wanted.removeprefix("@"))
        found = [each for each in self._portal.providers().values() if each.online and not each.read_only]
        if len(found) == 1:
            return found[0]
        raise UsageError(
            "no-results-provider",
            f"the outputs of runs need a data provider, and you can write to {len(found)} of them",
            subject=self._site.name,
            hint=f"To set it: hibali config set sites.{self._site.name}.cbrain.results PROVIDER",
        )

    def tool_job(self, request: ToolRequest, on_event: Listener) -> Mapping[str, Any]:
        """See ToolService."""
        config = self._find_tool(request.pipeline, on_event)
        files = request.pipeline.document.get("inputs", ())
        kinds = {each["id"]: each.get("type") for each in files}
        invoke = {name: _with_ids(value, kinds.get(name)) for name, value in request.values.items()}
        return {
            "tool_config": config.id,
            "results_provider": self._results().id,
            "group": self._portal.group_id(),
            "title": request.pipeline.reference,
            "params": {
                "interface_userfile_ids": [int(each) for each in request.references],
                "invoke": invoke,
            },
        }

    def _find_tool(self, pipeline: Pipeline, on_event: Listener) -> ToolConfig:
        """Return the tool config with the pipeline's descriptor, else one of the same name and version."""
        similar: list[tuple[ToolConfig, Mapping[str, Any]]] = []
        for config in self._candidates(pipeline):
            document = self._client.boutiques_descriptor(config.id)
            if document is None:
                continue
            if digest_document(document) == pipeline.digest:
                return config
            if _same_version(document, pipeline):
                similar.append((config, document))
        if not similar:
            raise NotFoundError(
                "no-such-tool",
                f"CBRAIN has no tool {pipeline.reference} that you can use",
                subject=self._site.name,
                hint=f"To see the pipeline: hibali pipelines show {pipeline.reference}",
            )
        config, theirs = similar[0]
        changed = _changes(theirs, pipeline.document)
        on_event(
            Noted(
                f"CBRAIN has {pipeline.reference} with another descriptor (tool configuration {config.id}); "
                f"different: {', '.join(changed)}"
            )
        )
        return config

    def _candidates(self, pipeline: Pipeline) -> list[ToolConfig]:
        """Return the tool configs of tools with this name, else of those with this version: each descriptor is a request."""
        names = {tool.id: _plain(tool.name) for tool in self._client.tools()}
        configs = [each for each in self._client.tool_configs() if each.tool_id is not None]
        named = [each for each in configs if names.get(each.tool_id or 0) == pipeline.name]
        version = pipeline.document.get("tool-version")
        return (named or [each for each in configs if each.version == version])[:_MOST_CANDIDATES]

    def outputs(self, mark: str, declared: Sequence[Output]) -> Sequence[ServiceOutput]:
        """See ToolService."""
        task = self._task_of(mark)
        providers = {each.id: each.name for each in self._portal.providers().values()}
        found = []
        for output in declared:
            for userfile_id in task.outputs.get(output.id, ()) if task is not None else ():
                userfile = self._client.userfile(userfile_id)
                folder = self._folder(providers[userfile.provider_id])
                found.append(ServiceOutput(output.id, folder, userfile.name, userfile.is_collection))
        return found

    def read(self, mark: str, name: str, offset: int, maximum: int) -> bytes | None:
        """See ToolService; a stream only of tools that save it as a userfile."""
        if name == "exit.json":
            task = self._task_of(mark)
            content = _exit_record(mark, task) if task is not None and task.status == "Completed" else None
        elif name in _STREAMS:
            task = self._task_of(mark)
            content = self._stream(task, name) if task is not None else None
        else:
            content = None
        return None if content is None else content[offset : offset + maximum]

    def _stream(self, task: Task, name: str) -> bytes | None:
        """Return a stream that the tool saved as a userfile; the API does not give those of other tools."""
        ids = [number for output in _STREAMS[name] for number in task.outputs.get(output, ())]
        if not ids:
            return None
        pieces = bytearray()
        self._client.receive_content(ids[0], pieces.extend, limit=_MOST_STREAM, restart=pieces.clear)
        return bytes(pieces)

    def _task_of(self, mark: str) -> Task | None:
        if mark not in self._seen:
            self.find(mark, "")
        return self._seen.get(mark)

    def close(self) -> None:
        """See ToolService."""
        self._client.close()


class CbrainSystem(ServiceSystem):
    """The portals of CBRAIN as the systems that run jobs."""

    name = "cbrain"


SYSTEM = CbrainSystem()


def open_host(site: Site, on_event: Listener = ignore) -> ServiceHost:
    """Connect to the portal of a site."""
    return ServiceHost(CbrainTasks(Portal(CbrainClient(site, on_event=on_event), site)), site.name)


def _mark_of(task: Task) -> str:
    return task.description.partition(" ")[0]


def _status_of(task: Task) -> Status:
    """Return the status of a task; an unknown state is no end."""
    native = printable(task.status)[:100]
    if task.status in _WAITING:
        return Status(Phase.WAITING, native)
    if task.status == "Completed":
        return Status(Phase.ENDED, native)
    if task.status == "Terminated":
        return Status(Phase.CANCELLED, native)
    if task.status.startswith("Failed"):
        return Status(Phase.KILLED, native)
    reason = "" if task.status in _RUNNING else "hibali does not know this state of CBRAIN"
    return Status(Phase.RUNNING, native, reason)


def _exit_record(mark: str, task: Task) -> bytes:
    """Return what a job script would have written: CBRAIN checks exit codes and outputs before it calls a task completed."""
    record = {
        "run": mark,
        "code": 0,
        "signal": "",
        "host": "",
        "job": str(task.id),
        "started": "",
        "ended": "",
    }
    return json.dumps(record).encode("ascii")


def _with_ids(value: Any, kind: object) -> Any:
    """Return a value of the form's: references of files are ids."""
    if kind != "File":
        return value
    return [int(each) for each in value] if isinstance(value, list) else int(value)


def _plain(title: str) -> str:
    try:
        return name_of_title(title)
    except HibaliError:
        return ""


def _same_version(document: Mapping[str, Any], pipeline: Pipeline) -> bool:
    name, version = document.get("name"), document.get("tool-version")
    if not (isinstance(name, str) and isinstance(version, str)):
        return False
    try:
        return _plain(name) == pipeline.name and catalogue_version(version) == pipeline.version
    except HibaliError:
        return False


def _changes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    """Return the keys in which two descriptors differ, the first few."""
    keys = [key for key in sorted({*theirs, *ours}) if theirs.get(key) != ours.get(key)]
    more = [f"{len(keys) - _SHOWN_CHANGES} more"] if len(keys) > _SHOWN_CHANGES else []
    return [*map(printable, keys[:_SHOWN_CHANGES]), *more]

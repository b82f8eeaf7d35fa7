"""Run short commands as jobs of a facility: what handles large files there."""

from __future__ import annotations

import uuid

from hibali.errors import TryLaterError
from hibali.retry import growing_intervals, pause
from transfers.stores.iri.client import IriClient

_LONGEST_WAIT = 24 * 3600.0
_NOT_LISTED_SECONDS = 60.0  # in which a job appears
_JOB_SECONDS = 3600  # that a job may take
_ENDED = frozenset({"completed", "failed", "canceled"})


def run_job(client: IriClient, folder: bytes, name: str, script: str, what: str) -> None:
    """Run a shell script as a job in an existing folder, where the script stays as `name`. Raise `TryLaterError` if it fails."""
    path = folder + b"/" + name.encode("ascii")
    client.upload(path, script.encode("utf-8", "surrogateescape"))
    settings = client.settings
    attributes = {"duration": _JOB_SECONDS, "account": settings.account, "queue_name": settings.queue}
    job = {
        "executable": "/bin/sh",
        "arguments": [path.decode("utf-8", "surrogateescape")],
        "directory": folder.decode("utf-8", "surrogateescape"),
        "name": f"hibali-{name}",
        "stdout_path": "/dev/null",
        "stderr_path": "/dev/null",
        "resources": {"node_count": 1, "process_count": 1, "exclusive_node_use": False},
        "attributes": {key: value for key, value in attributes.items() if value is not None},
    }
    _wait(client, client.submit(job, str(uuid.uuid4())), what)


def _wait(client: IriClient, job: str, what: str) -> None:
    intervals = growing_intervals(0.3, 20.0)
    waited = 0.0
    while waited < _LONGEST_WAIT:
        found = client.job(job)
        if found is not None and found.state == "completed":
            return
        if found is not None and found.state in _ENDED:
            raise _failed(client, f"that {what} ended as {found.state}")
        if found is None and waited > _NOT_LISTED_SECONDS:
            break
        seconds = intervals.next_pause()
        pause(seconds)
        waited += seconds
    raise _failed(client, f"{job} that {what} did not end")


def _failed(client: IriClient, what: str) -> TryLaterError:
    return TryLaterError(
        "transfer-failed", f"the facility's job {what}", subject=client.subject, transient=False
    )

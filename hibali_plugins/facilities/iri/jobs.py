"""Run short commands as jobs of a facility: what handles large files there."""

from __future__ import annotations

import uuid

from hibali_plugins.facilities.iri.client import IriClient
from hibali_plugins.facilities.operations.waiting import transfer_failed

_JOB_SECONDS = 3600  # that a job may take


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
    started = client.file_jobs.begin(lambda: client.submit(job, str(uuid.uuid4())))
    state = client.file_jobs.wait(started, what)
    if state != "completed":
        raise transfer_failed(client.subject, f"that {what} ended as {state}")

"""Provide a test double of Globus Auth and Transfer on loopback, because test machines cannot reach the service.

It transfers real bytes between real folders. Its answers are compared with the SDK's fixtures (test_globus_shapes.py) and
tested with globus-cli (test_globus_cli.py), but not with Globus itself. Fixture `globus`, with a separate state ("world") per test:

    here = globus.make_collection(tmp_path / "a")               # a GCSv5 mapped collection of that folder
    target = globus.make_collection(tmp_path / "b", data_access=True, https=True)   # consent needed; read by HTTPS
    mine = globus.make_collection(tmp_path / "c", entity_type="GCP_mapped_collection")  # a laptop's
    hibali("push", ..., env=globus.env)                         # GLOBUS_SDK_SERVICE_URL_AUTH and _TRANSFER
    globus.client_id, globus.client_secret                      # a confidential client; globus.native_id a native one
    code = globus.approve(authorize_url)                        # the code that the user copies from the browser
    fault = globus.fault("quota", collection=target.id, path="*.bin", times=2)   # kinds: KINDS in control.py, file_copy.py
    fault.clear(); fault.hits                                   # "held" and "paused" keep a task ACTIVE until then
    globus.fault("lost_answer"); globus.fault("too_many_requests", request="GET /v0.10/task", retry_after=1, times=1)
    globus.fault("file_not_found", path="/x", after=3)          # after three files; fatal=True ends the task
    globus.fault("error", request="GET /v0.10/endpoint", status=403, code="X", body={})      # any other error
    globus.expire(tokens="refresh"); globus.expire(task=id); globus.expire(consents=True); globus.cancel(id)
    globus.settings(token_seconds=1, folder_limit=10, page_limit=5, denies=True)
    globus.tasks(); globus.submissions(); globus.requests(); globus.wait(id); globus.wait(id, nice_status="PAUSED")

| request | globus_sdk.testing and globus-cli (3.43.0, tests/globus.lock); the service's source is not published | the double |
|---|---|---|
| Auth: tokens, revocation, introspection, consents | the fixtures that tests/services/README.md lists | the same members and types |
| Transfer: endpoint, ls, mkdir, rename, stat, submission_id, transfer, delete, tasks, events | likewise | the same members and types |
| faults of tasks | event codes of the documents | those of `fault`; real ones may have other texts |
| limits of tasks | docs.globus.org/api/transfer/task_behavior: 3 transfers and 3 deletions of a user run, others have nice_status "Queued"; the code of a refusal as programs handle it | the same; a refusal beyond 100 has status 409, after its code |
| limits of rates | 429 with Retry-After | only as a fault of a test |
"""

from __future__ import annotations

import json
import os
import secrets
import sys
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.services.processes import start, wait_until

REPOSITORY = Path(__file__).resolve().parents[3]
_PLAIN = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class _Stay(urllib.request.HTTPRedirectHandler):
    """A browser that does not follow redirects."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(frozen=True)
class GlobusServer:
    """The running double; each test creates its own world in it. `env` selects the world of a double that was started manually."""

    url: str
    by_hand: tuple[str, str, str]

    @property
    def env(self) -> dict[str, str]:
        url, client_id, secret = self.by_hand
        return {**_service_urls(url), "GLOBUS_CLI_CLIENT_ID": client_id, "GLOBUS_CLI_CLIENT_SECRET": secret}


@dataclass(frozen=True)
class MadeCollection:
    """A collection and the folder it exports; `https_server` is its HTTPS address, if it has one."""

    id: str
    root: Path
    https_server: str


@dataclass(frozen=True)
class ActiveFault:
    """An active fault."""

    globus: Globus
    id: str

    def clear(self) -> int:
        """Deactivate the fault; return how often it occurred."""
        return int(self.globus.request("DELETE", f"/_test/faults/{self.id}")["hits"])

    @property
    def hits(self) -> int:
        return int(self.globus.request("GET", f"/_test/faults/{self.id}")["hits"])


class Globus:
    """One world of the double, the state of one test."""

    def __init__(self, server: str) -> None:
        self.url: str = _request(server, "POST", "/_test/worlds", {})["url"]
        self.env = _service_urls(self.url)
        self.client_id, self.client_secret = self.make_client()
        self.user_id = self.make_user("ada@example.org", "Ada")

    @cached_property
    def native_id(self) -> str:
        """Register a native app, whose user logs in with a browser."""
        return str(self.request("POST", "/_test/clients", {"name": "a native app"})["id"])

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return _request(self.url, method, path, body)

    def make_client(self) -> tuple[str, str]:
        """Register a confidential client; return its id and secret."""
        secret = f"planted-{secrets.token_urlsafe(24)}"
        return str(self.request("POST", "/_test/clients", {"secret": secret})["id"]), secret

    def make_user(self, username: str, name: str) -> str:
        """Register a user, who becomes the user of the browser."""
        return str(self.request("POST", "/_test/users", {"username": username, "name": name})["id"])

    def make_collection(
        self, root: Path, name: str = "", *, owner: str | None = None, **facts: Any
    ) -> MadeCollection:
        """Export a folder as a collection; `facts`: data_access, https, home, entity_type, force_verify, disable_verify, connected."""
        root.mkdir(parents=True, exist_ok=True)
        shown = {"display_name": name or root.name, "root": str(root), "owner": owner or self.user_id}
        found = str(self.request("POST", "/_test/collections", {**shown, **facts})["id"])
        return MadeCollection(found, root, f"{self.url}/collections/{found}")

    def fault(self, kind: str, **where: Any) -> ActiveFault:
        """Activate a fault; `where`: collection, path (a glob), request, task, times, after, fatal, code, message, retry_after, status, body."""
        return ActiveFault(self, str(self.request("POST", "/_test/faults", {"kind": kind, **where})["id"]))

    def approve(self, authorize_url: str) -> str:
        """Open the authorization page as the world's user; return the code, or the error after a denial."""
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stay).open(
                authorize_url, timeout=30
            )
        except urllib.error.HTTPError as answer:
            if answer.code != 302:
                raise
            query = urllib.parse.parse_qs(urllib.parse.urlsplit(answer.headers["Location"]).query)
            answer.close()
            return query.get("code", query.get("error", [""]))[0]
        raise AssertionError("the page did not lead anywhere")

    def settings(self, **values: Any) -> None:
        """Change settings: token_seconds, folder_limit, page_limit (of tasks and events), active_limit, pending_limit, user (of the browser), denies."""
        self.request("POST", "/_test/settings", values)

    def expire(self, **what: Any) -> None:
        """Expire tokens ("access" or "refresh"), a task (by id) or the consents for collections (True)."""
        self.request("POST", "/_test/expire", what)

    def cancel(self, task: str) -> None:
        """Cancel a task as a collection's administrator."""
        self.request("POST", f"/_test/cancel/{task}")

    def tasks(self) -> list[dict[str, Any]]:
        """Return all tasks, oldest first: their documents with `body` (the request) and `events`, oldest first."""
        return list(self.request("GET", "/_test/tasks")["tasks"])

    def wait(self, task: str, *, nice_status: str = "") -> dict[str, Any]:
        """Wait until the task has ended or has this nice status; return its document."""
        return self.request(
            "GET", f"/_test/wait/{task}" + (f"?nice_status={nice_status}" if nice_status else "")
        )

    def submissions(self) -> list[dict[str, Any]]:
        """Return every submission: kind, submission_id, code (Accepted, Duplicate or an error's), task_id, lost, body."""
        return list(self.request("GET", "/_test/log")["submissions"])

    def requests(self) -> list[dict[str, Any]]:
        """Return every request: method, path, query, status, lost."""
        return list(self.request("GET", "/_test/log")["requests"])

    def close(self) -> None:
        """Delete the world and end its tasks."""
        self.request("DELETE", "/_test")


def start_globus(session: Path, folder: Path) -> GlobusServer:
    """Start the double."""
    folder.mkdir(parents=True)
    ready, log = folder / "url", folder / "globus.log"
    words: list[str | Path] = [sys.executable, "-P", "-m", "tests.services.globus", ready]
    pid = start(session, words, log, {"PYTHONPATH": str(REPOSITORY)})
    wait_until(ready.exists, pid, log)
    url = ready.read_text()
    world = Globus(url)
    return GlobusServer(url, (world.url, world.client_id, world.client_secret))


def _service_urls(url: str) -> dict[str, str]:
    without = os.environ.get("no_proxy", "")
    return {
        "GLOBUS_SDK_SERVICE_URL_AUTH": url,
        "GLOBUS_SDK_SERVICE_URL_TRANSFER": url,
        "no_proxy": f"{without},127.0.0.1".lstrip(","),
    }


def _request(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, method=method)  # noqa: S310 - the test server
    try:
        with _PLAIN.open(request, timeout=120) as answer:
            return dict(json.load(answer))
    except urllib.error.HTTPError as problem:
        raise AssertionError(f"{method} {path}: {problem.read().decode(errors='replace')}") from problem

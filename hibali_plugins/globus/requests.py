"""Send requests to Globus Transfer with retries and translated errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from globus_sdk import MISSING, TransferClient

from hibali.config.model import Site
from hibali.errors import NotFoundError
from hibali.events import Listener, ignore
from hibali.retry import with_retries
from hibali_plugins.globus.clients import client_of, open_access
from hibali_plugins.globus.errors import translated_errors
from transfers.engine.collections import path_in_collection

Document = dict[str, Any]

MOST_EVENTS = 1000  # the newest ones; more are never requested


class Globus:
    """A logged-in client for one thread; errors name `site` and its login command."""

    def __init__(
        self, client: Any, site: Site, *, others: Sequence[Site] = (), on_event: Listener = ignore
    ) -> None:
        """`client` is a `TransferClient` of the SDK; `others` are further sites of the same tasks."""
        self._others = others
        self._client = client
        self.site = site
        self._on_event = on_event

    def submission(self) -> str:
        """Return a new submission id, which makes one submission idempotent."""
        return str(self._request(self._client.get_submission_id)["value"])

    def submit(self, body: Document) -> str:
        """Submit and return the task id; idempotent by submission id, so safe to repeat."""
        if body["DATA_TYPE"] == "delete":
            return str(self._request(lambda: self._client.submit_delete(body))["task_id"])
        return str(self._request(lambda: self._client.submit_transfer(body))["task_id"])

    def task(self, task: str) -> Document:
        """Return the task's document, with extra retries: a few failed polls must not abandon a task."""
        return self._request(lambda: self._client.get_task(task), attempts=8)

    def active(self) -> list[Document]:
        """Return the account's active transfers and those that wait for a login, at most as many as Globus accepts."""
        query = {"filter": "status:ACTIVE,INACTIVE/type:TRANSFER", "limit": 100}
        found = self._request(lambda: self._client.task_list(query_params=query))
        return [task for task in found["DATA"] if task.get("status") in {"ACTIVE", "INACTIVE"}]

    def events(self, task: str) -> list[Document]:
        """Return at most `MOST_EVENTS` events, newest first."""
        found = self._request(lambda: self._client.task_event_list(task, limit=MOST_EVENTS, offset=0))
        return list(found["DATA"])[:MOST_EVENTS]

    def pause_messages(self, task: str) -> str:
        """Return the messages of those who paused the task or its collections."""
        found = self._request(lambda: self._client.task_pause_info(task))
        texts = [rule.get("message") for rule in found.get("pause_rules") or []]
        texts += [found.get(key) for key in ("message", "source_pause_message", "destination_pause_message")]
        return "; ".join(dict.fromkeys(str(text) for text in texts if text))

    def skipped(self, task: str) -> list[Document]:
        """Return the source files that the task skipped, and the reasons."""
        return self._pages(lambda query: self._client.task_skipped_errors(task, query_params=query))

    def moved(self, task: str) -> list[Document]:
        """Return the files that the task transferred."""
        return self._pages(lambda query: self._client.task_successful_transfers(task, query_params=query))

    def cancel(self, task: str) -> None:
        """Cancel the task, unless it ended."""
        self._request(lambda: self._client.cancel_task(task))

    def endpoint(self, collection: str) -> Document:
        """Return the document of a collection."""
        return self._request(lambda: self._client.get_endpoint(collection))

    def access_rules(self, collection: str) -> list[Document]:
        """Return the access rules of a guest collection."""
        found = self._request(lambda: self._client.endpoint_acl_list(collection))
        return list(found["DATA"])

    def add_access(self, collection: str, rule: Document) -> None:
        """Add an access rule; one of the same person for the same folder must not exist."""
        self._request(lambda: self._client.add_endpoint_acl_rule(collection, rule))

    def change_access(self, collection: str, rule_id: str, rule: Document) -> None:
        """Change an access rule."""
        self._request(lambda: self._client.update_endpoint_acl_rule(collection, rule_id, rule))

    def delete_access(self, collection: str, rule_id: str) -> None:
        """Delete an access rule; one that is gone is a success."""
        try:
            self._request(lambda: self._client.delete_endpoint_acl_rule(collection, rule_id))
        except NotFoundError:
            return

    def stat(self, collection: str, path: str) -> Document:
        """Return the document of one path. Raise `NotFoundError`."""
        return self._request(lambda: self._client.operation_stat(collection, path), subject=path)

    def page(self, collection: str, path: str, *, offset: int, limit: int) -> Document:
        """Return one page of a folder, with hidden names."""
        return self._request(
            lambda: self._client.operation_ls(
                collection, path, show_hidden=True, limit=limit, offset=offset, orderby="name"
            ),
            subject=path,
        )

    def make_folder(self, collection: str, path: str) -> None:
        """Create a folder; its parent must exist."""
        self._request(lambda: self._client.operation_mkdir(collection, path), subject=path)

    def _pages(self, get_page: Callable[[Document], Any]) -> list[Document]:
        found: list[Document] = []
        marker: Any = None
        while True:
            query = {} if marker is None else {"marker": marker}
            page = self._request(lambda query=query: get_page(query))  # type: ignore[misc]
            found += page["DATA"]
            marker = page.get("next_marker")
            if marker is None:
                return found

    def _request(self, call: Callable[[], Any], *, subject: str = "", attempts: int = 4) -> Document:
        def attempt() -> Document:
            with translated_errors(
                self.site, f"{self.site.name}:{subject}" if subject else "", others=self._others
            ):
                return dict(call().data)

        return with_retries(attempt, subject=self.site.name, attempts=attempts, on_event=self._on_event)


def inspect_collection(site: Site, facts: dict[str, str | int | bool]) -> None:
    """Fill `facts` from the collection. Raise `AccessError`, `NotFoundError`, `TryLaterError`."""
    confidential = client_of(site).confidential
    with open_access([site]) as access:
        facts["globus login"] = "as the client itself" if confidential else "of a person"
        with translated_errors(site):
            list_a_little(access.transfer(), site, facts)


def list_a_little(client: TransferClient, site: Site, facts: dict[str, str | int | bool]) -> None:
    """Query the collection and list one name, which requires the data consent. Raise errors of the SDK."""
    assert site.globus is not None
    found = client.get_endpoint(site.globus.collection)
    facts["globus collection"] = str(found["display_name"])
    facts["globus type"] = str(found["entity_type"])
    start = site.roots[site.default_root] if site.default_root else None
    path = path_in_collection(site, start) if start is not None else None
    listed = client.operation_ls(site.globus.collection, MISSING if path is None else path, limit=1)
    facts["globus folder"] = str(listed["path"])

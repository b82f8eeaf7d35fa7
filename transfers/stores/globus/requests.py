"""Send requests to Globus Transfer with retries and translated errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from globus_sdk import MISSING, TransferClient

from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali.retry import with_retries
from transfers.stores.globus.clients import client_of, open_access
from transfers.stores.globus.errors import answered
from transfers.stores.globus.paths import path_in_collection

Result = TypeVar("Result")
Answer = dict[str, Any]

MOST_EVENTS = 1000  # the newest ones; more are never asked for
_PAGE = 1000


class Globus:
    """One client, logged in, for one thread; `site` is named in errors, and its line to log in."""

    def __init__(
        self, client: Any, site: Site, *, others: Sequence[Site] = (), on_event: Listener = ignore
    ) -> None:
        """`client` is a `TransferClient` of the SDK; `others` are sites that the same tasks are about."""
        self._others = others
        self._client = client
        self.site = site
        self._on_event = on_event

    def submission(self) -> str:
        """A new id under which something can be submitted once."""
        return str(self._ask(self._client.get_submission_id)["value"])

    def submit(self, body: Answer) -> str:
        """The id of the task that this is, submitted now or before: the submission's id decides, so a lost answer does no harm."""
        if body["DATA_TYPE"] == "delete":
            return str(self._ask(lambda: self._client.submit_delete(body))["task_id"])
        return str(self._ask(lambda: self._client.submit_transfer(body))["task_id"])

    def task(self, task: str) -> Answer:
        """How it stands. Nobody gives up a task because a few questions are not answered."""
        return self._ask(lambda: self._client.get_task(task), attempts=8)

    def active(self, label: str) -> str | None:
        """The task of this very label that is not over, if there is one."""
        asked = {"filter": "status:ACTIVE,INACTIVE/type:TRANSFER,DELETE", "limit": 100}
        found = self._ask(lambda: self._client.task_list(query_params=asked))
        for task in found["DATA"]:
            if task.get("label") == label and task.get("status") in {"ACTIVE", "INACTIVE"}:
                return str(task["task_id"])
        return None

    def events(self, task: str) -> list[Answer]:
        """Its newest events, the newest first, at most `MOST_EVENTS`."""
        found = self._ask(lambda: self._client.task_event_list(task, limit=MOST_EVENTS, offset=0))
        return list(found["DATA"])[:MOST_EVENTS]

    def pause_words(self, task: str) -> str:
        """What those say who paused it, or its collections."""
        found = self._ask(lambda: self._client.task_pause_info(task))
        said = [rule.get("message") for rule in found.get("pause_rules") or []]
        said += [found.get(key) for key in ("message", "source_pause_message", "destination_pause_message")]
        return "; ".join(dict.fromkeys(str(words) for words in said if words))

    def skipped(self, task: str) -> list[Answer]:
        """The files of the source that it left out, and why."""
        return self._pages(lambda asked: self._client.task_skipped_errors(task, query_params=asked))

    def moved(self, task: str) -> list[Answer]:
        """The files that it did move."""
        return self._pages(lambda asked: self._client.task_successful_transfers(task, query_params=asked))

    def cancel(self, task: str) -> None:
        """Have it end; one that has ended is left as it is."""
        self._ask(lambda: self._client.cancel_task(task))

    def endpoint(self, collection: str) -> Answer:
        """What Globus knows of a collection."""
        return self._ask(lambda: self._client.get_endpoint(collection))

    def stat(self, collection: str, path: str) -> Answer:
        """One name. Raises `NotFoundError`."""
        return self._ask(lambda: self._client.operation_stat(collection, path), subject=path)

    def page(self, collection: str, path: str, *, offset: int, limit: int) -> Answer:
        """Some names of a folder, hidden ones too."""
        return self._ask(
            lambda: self._client.operation_ls(
                collection, path, show_hidden=True, limit=limit, offset=offset, orderby="name"
            ),
            subject=path,
        )

    def make_folder(self, collection: str, path: str) -> None:
        """Make it; the one above it is there."""
        self._ask(lambda: self._client.operation_mkdir(collection, path), subject=path)

    def _pages(self, ask: Callable[[Answer], Any]) -> list[Answer]:
        found: list[Answer] = []
        marker: Any = None
        while True:
            asked = {} if marker is None else {"marker": marker}
            page = self._ask(lambda asked=asked: ask(asked))  # type: ignore[misc]
            found += page["DATA"]
            marker = page.get("next_marker")
            if marker is None:
                return found

    def _ask(self, question: Callable[[], Any], *, subject: str = "", attempts: int = 4) -> Answer:
        from transfers.stores.globus.errors import answered

        def once() -> Answer:
            with answered(self.site, f"{self.site.name}:{subject}" if subject else "", others=self._others):
                return dict(question().data)

        return with_retries(once, subject=self.site.name, attempts=attempts, on_event=self._on_event)


def look_at(site: Site, facts: dict[str, str | int | bool]) -> None:
    """Fill `facts` with what the collection says of itself. Raises `AccessError`, `NotFoundError`, `TryLaterError`."""
    confidential = client_of(site).confidential
    with open_access([site]) as access:
        facts["globus login"] = "as the client itself" if confidential else "of a person"
        with answered(site):
            list_a_little(access.transfer(), site, facts)


def list_a_little(client: TransferClient, site: Site, facts: dict[str, str | int | bool]) -> None:
    """Ask what the collection is and for one name in it, which needs the consent that data needs; raises what the SDK raises."""
    assert site.globus is not None
    found = client.get_endpoint(site.globus.collection)
    facts["globus collection"] = str(found["display_name"])
    facts["globus type"] = str(found["entity_type"])
    start = site.roots[site.default_root] if site.default_root else None
    path = path_in_collection(site, start) if start is not None else None
    listed = client.operation_ls(site.globus.collection, MISSING if path is None else path, limit=1)
    facts["globus folder"] = str(listed["path"])

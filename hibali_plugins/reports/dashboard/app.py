"""The pages of the dashboard: which values and which template each address shows."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from hibali import __version__
from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali_plugins.reports.dashboard.access import REFRESH, AccessControl, Application, Keys
from hibali_plugins.reports.dashboard.data import LedgerReader
from hibali_plugins.reports.dashboard.pages import (
    PAGE_ROWS,
    live_values,
    log_values,
    operation_rows,
    receipt_values,
    run_rows,
    run_values,
    search_operations,
    site_values,
    sweep_values,
)
from hibali_plugins.reports.dashboard.refresh import Refresher
from hibali_plugins.reports.page import clock, environment, style_sheet
from transfers.history.operations import Result

_FOLDER = Path(__file__).parent
_STATIC = {
    "htmx.js": "text/javascript",
    "dashboard.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
_PAGES = (("", "Overview"), ("runs", "Runs"), ("sweeps", "Sweeps"), ("history", "History"))
_RECENT = 10
_NO_CONTENT = 204
_MOST_SHOWN = 1024 * 1024  # bytes of a log in one page


class Dashboard:
    """The pages, made from one reader of the ledger. Every method that takes a request answers it."""

    def __init__(self, reader: LedgerReader, base: str) -> None:
        self._reader = reader
        self._base = base
        self._refresher = Refresher(reader.config)
        sheets = style_sheet("run_page.css", "status_page.css")
        self._style = sheets + (_FOLDER / "static" / "dashboard.css").read_text("ascii")

    def routes(self) -> list[Route]:
        """Return the addresses below the base."""
        found: dict[str, Callable[[Request], Response]] = {
            "/": self.overview,
            "/live": self.live,
            "/runs": self.runs,
            "/runs/{identifier}": self.run,
            "/runs/{identifier}/log/{name}": self.log,
            "/sweeps": self.sweeps,
            "/history": self.history,
            "/history/{identifier}": self.operation,
            "/static/{name}": self.static,
        }
        reading = [Route(path, endpoint, methods=["GET"]) for path, endpoint in found.items()]
        return [*reading, Route(REFRESH, self.refresh, methods=["POST"])]

    def _page(self, template: str, page: str, title: str, *, status: int = 200, **values: Any) -> Response:
        text = self._rendered(template, page=page, pages=_PAGES, title=title, **values)
        return Response(text, status, media_type="text/html")

    def _rendered(self, template: str, **values: Any) -> str:
        found = environment(_FOLDER / "templates").get_template(template)
        values |= {"unreadable": self._reader.unreadable}
        return found.render(base=self._base, version=__version__, now=clock(time.time()), **values)

    def overview(self, request: Request) -> Response:
        """Show what runs now, the sites, and the latest operations."""
        del request
        operations, now = self._reader.operations(), time.time()
        return self._page(
            "overview.html",
            "",
            "Overview",
            live=self._live(),
            sites=site_values(self._reader.sites(operations), now),
            operations=operation_rows(operations[: -_RECENT - 1 : -1]),
        )

    def live(self, request: Request) -> Response:
        """Answer the browser's poll: the changed part of the overview, or nothing if the browser has it already."""
        values = self._live()
        if request.query_params.get("seen") == values["digest"]:
            return Response(status_code=_NO_CONTENT)
        return Response(self._rendered("live.html", live=values), media_type="text/html")

    def _live(self) -> dict[str, Any]:
        present = self._reader.present()
        values = live_values(present, self._reader.schedules(present), self._reader.site_names())
        return {**values, "digest": hashlib.sha256(repr(values).encode("utf-8", "replace")).hexdigest()[:32]}

    def refresh(self, request: Request) -> Response:
        """Query the sites of unfinished runs; the overview then shows the states that its polls read."""
        del request
        text = self._rendered("refreshed.html", lines=self._refresher.refresh())
        return Response(text, media_type="text/html")

    def runs(self, request: Request) -> Response:
        """Show all runs, a page at a time, all of them or those in one state."""
        state = request.query_params.get("state", "")
        found = [run for run in self._reader.runs() if not state or run.state == state.upper()]
        rows, pager = self._part(run_rows(found), request)
        return self._page("runs.html", "runs", "Runs", rows=rows, pager=pager, state=state.lower())

    def run(self, request: Request) -> Response:
        """Show one run."""
        found = self._reader.run(request.path_params["identifier"])
        values = run_values(found, self._reader.log_parts(found.run), time.time())
        title = f"{found.run.spec.pipeline} at {found.run.site}"
        return self._page("run.html", "runs", title, **values)

    def log(self, request: Request) -> Response:
        """Answer the browser's poll for what a run has printed since; the page is loaded again before it becomes too long."""
        run = self._reader.run(request.path_params["identifier"]).run
        after, shown = (_number(request.query_params.get(name, "")) for name in ("after", "shown"))
        part = self._reader.log_parts(run, after).get(request.path_params["name"])
        if part is None:
            raise HTTPException(404)
        if shown > _MOST_SHOWN or part.end < after:  # or the file was written anew
            return Response(headers={"HX-Refresh": "true"})
        if not part.text and not run.state.ended:
            return Response(status_code=_NO_CONTENT)
        values = log_values(run, request.path_params["name"], part, shown)
        return Response(self._rendered("log.html", log=values), media_type="text/html")

    def sweeps(self, request: Request) -> Response:
        """Show the latest sweeps as grids of their tasks."""
        del request
        return self._page("sweeps.html", "sweeps", "Sweeps", sweeps=sweep_values(self._reader.runs()))

    def history(self, request: Request) -> Response:
        """Show the operations that match a search, a page at a time."""
        query, result = (request.query_params.get(name, "") for name in ("q", "result"))
        found = search_operations(self._reader.operations(), query, result)
        some, pager = self._part(found, request)
        return self._page(
            "history.html",
            "history",
            "History",
            rows=operation_rows(some),
            pager=pager,
            query=query,
            result=result,
            results=[str(each) for each in Result],
        )

    def operation(self, request: Request) -> Response:
        """Show the receipt of one operation."""
        details = self._reader.operation(request.path_params["identifier"])
        each = details.operation
        title = f"{each.operation} {each.source} {each.target}"
        return self._page("operation.html", "history", title, **receipt_values(details))

    def _part(self, rows: list[Any], request: Request) -> tuple[list[Any], dict[str, Any]]:
        """Return the rows of the requested page, and the links to the others."""
        last = max(1, -(-len(rows) // PAGE_ROWS))
        number = min(last, max(1, _number(request.query_params.get("page", ""))))
        links = {
            name: str(request.url.include_query_params(page=other).query) if 1 <= other <= last else ""
            for name, other in (("newer", number - 1), ("older", number + 1))
        }
        start = (number - 1) * PAGE_ROWS
        return rows[start : start + PAGE_ROWS], {"count": len(rows), "number": number, "last": last, **links}

    def static(self, request: Request) -> Response:
        """Send a style sheet, script or icon."""
        name = request.path_params["name"]
        if name == "style.css":
            return Response(self._style, media_type="text/css")
        if name not in _STATIC:
            raise HTTPException(404)
        return Response((_FOLDER / "static" / name).read_bytes(), media_type=_STATIC[name])

    def failed(self, request: Request, problem: Exception) -> Response:
        """Show an error: of the address, of the ledger, or of hibali itself."""
        del request
        ambiguous = isinstance(problem, UsageError) and problem.code == "ambiguous-id"
        if ambiguous or isinstance(problem, HTTPException | NotFoundError):
            status, message = 404, "There is no such page, run or operation."
        elif isinstance(problem, HibaliError):
            status, message = 500, f"{problem.subject}: {problem.message}"
        else:
            status, message = 500, f"{type(problem).__name__}. To see the same on the terminal: hibali status"
        hint = problem.hint if isinstance(problem, HibaliError) and status != 404 else ""
        return self._page("error.html", "none", "Error", status=status, message=message, hint=hint)


def _number(text: str) -> int:
    """Return a number of an address; 0 for anything else."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else 0


def make_application(reader: LedgerReader, keys: Keys) -> Application:
    """Return the application, which answers only requests with the cookie of these keys."""
    dashboard = Dashboard(reader, keys.base)
    app = Starlette(
        routes=[Mount(keys.base, routes=dashboard.routes())],
        exception_handlers={
            HTTPException: dashboard.failed,
            HibaliError: dashboard.failed,
            Exception: dashboard.failed,
        },
    )
    return AccessControl(app, keys)

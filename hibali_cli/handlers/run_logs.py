"""Print the output of runs, once or until they have ended, and open tunnels to their nodes."""

from __future__ import annotations

import sys

from hibali.errors import NotFoundError
from hibali.text import path_fields, printable
from hibali_cli.handlers.run_sites import opener, run_site, session_opener, update_runs
from hibali_cli.options import Common
from hibali_cli.output import flush_results, is_terminal, write_message, write_message_raw
from hibali_cli.progress import listening
from runs.logs import Stream, follow_logs, read_log
from runs.model import Run, State
from runs.records import choose_task
from runs.store import RunStore
from runs.tunnel import OpenTunnel, Ports, open_tunnel
from transfers.remote.one_session import kept_session

_LONGEST_LETTER = 4  # bytes of UTF-8


class LogLines:
    """The streams of one run, printed as they arrive; with `apart`, its stderr goes to hibali's stderr."""

    def __init__(self, common: Common, run_id: str, *, apart: bool) -> None:
        self._common = common
        self._run_id = run_id
        self._apart = apart
        self._held: dict[Stream, bytes] = {}  # incomplete bytes, held back until more arrive
        self._unfinished: Stream | None = None  # the stream whose unfinished line is on the terminal

    def show(self, stream: Stream, piece: bytes) -> None:
        """Print one more piece at once. Raises `IncompleteError` if stdout fails."""
        aside = self._is_aside(stream)
        if self._common.json:
            fields = {"id": self._run_id, "stream": stream, **path_fields(piece, "text")}
            self._common.output.record("log", fields, flush=True)
        elif is_terminal(sys.stderr if aside else sys.stdout):
            self._show_safely(stream, self._held.pop(stream, b"") + piece)
        elif aside:
            write_message_raw(piece)
        else:
            self._common.output.raw(piece)
            flush_results()

    def head(self, stream: Stream) -> None:
        """Print which stream follows."""
        if not self._common.json:
            self._common.output.line(f"==> {stream} <==")
            flush_results()

    def end(self) -> None:
        """Print what is held back, and end the last line."""
        for stream, rest in list(self._held.items()):
            if half := rest.rstrip(b"\r"):
                self._write(stream, printable(half))
        self._held.clear()
        self._end_line()

    def _show_safely(self, stream: Stream, content: bytes) -> None:
        *lines, last = content.splitlines(keepends=True) or [b""]
        if last.endswith(b"\n"):
            lines, last = [*lines, last], b""
        for line in lines:
            self._write(stream, printable(line.rstrip(b"\r\n")))
            self._end_line()
        whole = _without_half_letter(last.rstrip(b"\r"))  # the other half of a line end may follow
        self._held[stream] = last[len(whole) :]
        if whole:
            self._write(stream, printable(whole))

    def _write(self, stream: Stream, text: str) -> None:
        if self._unfinished is not None and self._unfinished != stream:
            self._end_line()
        self._put(stream, text)
        self._unfinished = stream

    def _end_line(self) -> None:
        if self._unfinished is not None:
            self._put(self._unfinished, "\n")
            self._unfinished = None

    def _put(self, stream: Stream, text: str) -> None:
        if self._is_aside(stream):
            write_message(text, end="")
        else:
            self._common.output.text(text)
            flush_results()

    def _is_aside(self, stream: Stream) -> bool:
        return self._apart and stream == "stderr"


def _without_half_letter(content: bytes) -> bytes:
    """Return the content without an incomplete UTF-8 character at its end."""
    for length in range(1, min(_LONGEST_LETTER, len(content) + 1)):
        first = content[-length]
        if first & 0xC0 == 0x80:
            continue
        wanted = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1
        return content[:-length] if length < wanted else content
    return content


def print_logs(
    common: Common, run_id: str, *, follow: bool, stream: Stream | None, task: int | None
) -> int | None:
    """Print the output of a run, once or until it has ended."""
    run_store = RunStore()
    run = choose_task(run_store.load(run_id), task, log_of_job=stream == "scheduler.log")
    lines = LogLines(common, run.id, apart=follow and stream is None)
    if not follow:
        failed = stream is None and run.state in {State.FAILED, State.LOST}
        _print(common, run, ("stdout", "stderr") if failed else (stream or "stdout",), lines)
        return None
    try:
        ended = _follow(
            common, run_store, run, task, ("stdout", "stderr") if stream is None else (stream,), lines
        )
    finally:
        lines.end()
    if common.json:
        common.output.record("run", ended.to_record())
    else:
        common.output.info(f"{ended.id} {ended.state}")
    return None


def _print(common: Common, run: Run, streams: tuple[Stream, ...], lines: LogLines) -> None:
    """Print streams, several of them with a heading each; one of several that does not exist is left out."""
    with listening(common, f"logs {run.id}") as on_event:
        host = opener(run_site(common, run.site), on_event)()
        try:
            missing, empty = [], True
            for stream in streams:
                if len(streams) > 1:
                    lines.head(stream)
                try:
                    for piece in read_log(host, run, stream):
                        lines.show(stream, piece)
                        empty = empty and not piece
                except NotFoundError as problem:
                    missing.append(problem)
                lines.end()
            if len(missing) == len(streams):
                raise missing[0]
            if empty:
                common.output.info(f"{run.id} wrote nothing to {' and '.join(streams)}.")
        finally:
            host.close()


def _follow(
    common: Common,
    run_store: RunStore,
    run: Run,
    task: int | None,
    streams: tuple[Stream, ...],
    lines: LogLines,
) -> Run:
    with listening(common, f"logs {run.id}") as on_event:
        site = session_opener(common, run_store, run, on_event)
        return follow_logs(site, run, streams, lines.show, task=task)


def tunnel(common: Common, run_id: str, port: int, *, local_port: int | None, task: int | None) -> int | None:
    """Forward a port to the node of a run until it has ended."""
    run_store = RunStore()
    run, ports = run_store.load(run_id), Ports(port, local_port or 0)
    site = run_site(common, run.site)

    def show(opened: OpenTunnel) -> None:
        local, remote = opened.ports.local, opened.ports.remote
        if common.json:
            fields = {
                "id": run.id,
                "site": site.name,
                "node": opened.node,
                "port": remote,
                "local_port": local,
            }
            common.output.record("tunnel", fields)
        else:
            common.output.info(
                f"http://127.0.0.1:{local} is port {remote} at the node of {run.id}. To close it: Ctrl-C"
            )
        flush_results()

    with kept_session(site), listening(common, f"tunnel {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event)
        ended = open_tunnel(
            session_opener(common, run_store, run, on_event), run, ports, task=task, on_open=show
        )
    if common.json:
        common.output.record("run", ended.to_record())
    else:
        common.output.info(f"{ended.reference} {ended.state}; the tunnel is closed")
    return None

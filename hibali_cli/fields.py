"""Choose the fields of a list, as columns of a table or keys of JSON lines: the option `--fields`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from hibali_cli.options import Common

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from hibali_cli.output import Cell


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# The keys of the JSON lines that each list writes (docs/json.md).
ENTRY = _names("path type size mtime mode etag digest offline link")
SITE = _names(
    "name type default_root work roots read_only stripe ssh reached_from s3 url credentials_command username secret_keyring login_url read_back globus proxy gridftp"
    " scheduler container gpus limits purge tiers fast files_at"
)
RUN = _names(
    "id pipeline pipeline_digest site name scheduler container state collected collected_to cleaned receipts hibali image created"
    " folder outputs after sources on_hold reused tasks rerun_of counts pilot"
)
OPERATION = _names(
    "id operation began source target sites schedule result exit_code files bytes files_moved bytes_moved files_kept files_deleted"
    " files_failed proof_moved proof_tree seconds code message about hint"
)
SOURCE = _names("name type address uuid enabled files bytes state code message hint")
PIPELINE = _names("name version digest title description deprecated image")
SCHEDULE = _names(
    "name cron command folder since by missed jitter max_time retry_for silent_after paused environment next installed held_by"
    " last"
)
RUNNING = _names(
    "id operation source target began schedule host pid phase files files_to_do bytes bytes_to_do files_deleted files_failed retries"
    " bytes_per_second seconds_left seconds_silent following"
)
# `hibali status` lists three kinds of lines, so `kind` is a column there.
STATUS = tuple(dict.fromkeys(("kind", *RUNNING, *RUN, *SCHEDULE)))
_SIZES = frozenset({"size", "bytes", "bytes_moved", "bytes_to_do"})  # printed as `1.2 GB` in a table


def fields_option(known: Sequence[str]) -> Callable[[Any], Any]:
    """Return the option `--fields` of a list whose JSON lines have these keys; its value is None without it."""

    def read(context: click.Context, option: click.Parameter, text: str | None) -> tuple[str, ...] | None:
        if text is None:
            return None
        chosen = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
        for name in chosen:
            if name.partition(".")[0] not in known:
                message = f"unknown field {name!r}. The fields are {', '.join(known)}."
                raise click.BadParameter(message, context, option)
        return chosen

    def complete(context: click.Context, option: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem  # start-up: only to complete words

        del context, option
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in known if name.startswith(last)]

    return click.option(
        "--fields",
        metavar="FIELD,...",
        callback=read,
        shell_complete=complete,
        help="Show only these fields, in this order, also with --json: its keys (docs/json.md); ssh.host is a part of ssh.",
    )


def write_list(
    common: Common,
    kind: str | None,
    records: Iterable[Mapping[str, Any]],
    chosen: Sequence[str] | None = None,
    *,
    exact: bool = False,
    code: int = 0,
) -> bool:
    """Write a list with --fields as a table, with `exact` sizes in bytes, or with --json as JSON lines and `end`.

    Returns False, and reads no record, with neither: the caller writes its table for people. Without a `kind`, each record
    has its own as `kind`; `code` is the exit code.
    """
    if common.json:
        count = 0
        for record in records:
            count += 1
            fields = record if chosen is None else _chosen(chosen, record)
            common.output.record(kind or record["kind"], fields)
        common.output.record("end", {"count": count, "exit": code})
    elif chosen is not None:
        cells = [[_cell(name, record, exact=exact) for name in chosen] for record in records]
        common.output.table(chosen, cells)
    return common.json or chosen is not None


def _chosen(chosen: Sequence[str], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the chosen fields; a name that is not UTF-8 has its exact bytes, too."""
    found: dict[str, Any] = {}
    for name in chosen:
        found[name] = _value(name, record)
        exact = f"{name}_base64"
        if exact in record:
            found[exact] = record[exact]
    return found


def _value(name: str, record: Mapping[str, Any]) -> Any:
    value: Any = record
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _cell(name: str, record: Mapping[str, Any], *, exact: bool) -> Cell:
    value = _value(name, record)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and name in _SIZES and not exact:
        from hibali.amounts import format_size  # start-up: not for --help

        return format_size(value)
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " ".join(value) or None
    return json.dumps(value, separators=(",", ":")) if value else None

"""Search descriptors at Zenodo, and publish them there."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from hibali.errors import RefusedError
from hibali.subprocesses import hide_variable
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_cli.output import is_terminal
from hibali_cli.progress import listening
from registry.catalogue import Catalogue
from registry.zenodo import (
    TOKEN_VARIABLE,
    ZenodoClient,
    ZenodoRecord,
    login_error,
    metadata_of,
    publish_at_zenodo,
    search_zenodo,
)

_SANDBOX = "https://sandbox.zenodo.org"


def search_records(common: Common, words: Sequence[str], *, sandbox: bool) -> int | None:
    """List the descriptors at Zenodo that contain all words."""
    settings = common.settings().catalogue
    origin = _SANDBOX if sandbox else settings.zenodo
    with listening(common, "search Zenodo"):
        found = search_zenodo(origin, frozenset(settings.origins), words)
    if write_list(common, "zenodo-record", (_fields(each, None, "found") for each in found)):
        return None
    rows = [
        (
            each.id,
            each.title + (" (deprecated)" if each.is_deprecated else ""),
            each.version,
            str(each.downloads),
            each.description[:60],
        )
        for each in found
    ]
    common.output.table(("ID", "TITLE", "VERSION", "DOWNLOADS", "DESCRIPTION"), rows)
    return None


def publish_records(common: Common, pipelines: Sequence[str], *, sandbox: bool, yes: bool) -> int | None:
    """Publish descriptors at Zenodo after a confirmation; all are checked before the first."""
    catalogue = Catalogue()
    wanted = [catalogue.find(each) for each in pipelines]
    for each in wanted:
        metadata_of(each)
    origin = _SANDBOX if sandbox else common.settings().catalogue.zenodo
    token = os.environ.get(TOKEN_VARIABLE, "")
    hide_variable(TOKEN_VARIABLE)
    if not token:
        raise login_error(f"publishing needs a token in {TOKEN_VARIABLE}", origin)
    if not yes:
        _confirm(common, [each.reference for each in wanted], origin)
    client = ZenodoClient(origin, token)
    for pipeline in wanted:
        with listening(common, f"publish {pipeline.reference}"):
            done = publish_at_zenodo(client, pipeline)
        state = "published" if done.is_new else "present"
        if common.json:
            common.output.record("zenodo-record", _fields(done.record, pipeline.reference, state))
        else:
            said = "published as" if done.is_new else "was published before as"
            common.output.line(f"{pipeline.reference}: {said} doi:{done.record.doi} ({done.record.id})")
    return None


def _confirm(common: Common, references: Sequence[str], origin: str) -> None:
    """Prompt for confirmation; raises `RefusedError` without it."""
    message = f"publishing {', '.join(references)} at {origin} cannot be taken back"
    if common.json or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        hint = "To confirm, add --yes. To try it first, add --sandbox."
        raise RefusedError("unconfirmed", f"{message}, and this is not a terminal", hint=hint)
    if not click.confirm(f"{message[0].upper()}{message[1:]}. Go on?", err=True):
        raise RefusedError("unconfirmed", "nothing was published")


def _fields(record: ZenodoRecord, pipeline: str | None, state: str) -> dict[str, object]:
    return {
        "id": record.id,
        "doi": record.doi,
        "title": record.title,
        "version": record.version,
        "description": record.description,
        "downloads": record.downloads,
        "deprecated": record.is_deprecated,
        "pipeline": pipeline,
        "state": state,
    }

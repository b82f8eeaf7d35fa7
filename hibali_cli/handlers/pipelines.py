"""Add, list, show, compare and remove the pipelines of the catalogue."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hibali.amounts import format_size
from hibali.errors import HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.text import counted, printable
from hibali_cli.cells import id_cell, time_cell
from hibali_cli.failure import Failures
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_cli.output import Output
from registry.catalogue import Catalogue, open_local_catalogue
from registry.catalogue_folder import Deprecation
from registry.images.record import ImageRecord
from registry.pipeline import Change, Input, OutputFile, Pipeline, find_changes, split_reference
from registry.search import Damaged, Summary, search_pipelines

if TYPE_CHECKING:
    from registry.sources import Access
    from runs.store import SiteRuns


def open_catalogue(common: Common) -> Catalogue:
    """Open the catalogue of this machine."""
    return open_local_catalogue(common.settings().catalogue, common.output.detail)


def access_of(common: Common) -> Access:
    """Return what sources of descriptors may use."""
    from registry import sources  # start-up: only to add descriptors

    return sources.access_of(common.settings().catalogue)


def image_fields(record: ImageRecord, *, here: bool) -> dict[str, Any]:
    """Return the fields of an image, and whether its content is on this machine."""
    return {
        "digest": record.digest,
        "size": record.size,
        "format": record.format,
        "id": record.id,
        "names": list(record.names),
        "here": here,
    }


def describe_image(record: ImageRecord, *, here: bool) -> str:
    """Describe an image in one line."""
    names = f" {', '.join(record.names)}" if record.names else ""
    state = "stored locally" if here else "not stored locally"
    return f"{record.digest} ({record.format}, {format_size(record.size)}, {state}){names}"


def print_image(
    common: Common, catalogue: Catalogue, pipeline: Pipeline, record: ImageRecord, change: str
) -> None:
    """Show the result for an image."""
    here = catalogue.images.local_file(pipeline, record) is not None
    if common.json:
        fields = {"name": pipeline.name, "version": pipeline.version, **image_fields(record, here=here)}
        common.output.record("image", {**fields, "change": change})
    else:
        common.output.line(record.digest)
        common.output.info(f"{pipeline.reference}: image {change}")


def pipeline_record(pipeline: Pipeline | Summary, deprecation: Deprecation | None = None) -> dict[str, Any]:
    """Return the fields that identify and describe a pipeline."""
    deprecated = (
        {"deprecated": {"successor": deprecation.successor, "because": deprecation.because}}
        if deprecation
        else {}
    )
    return {
        "name": pipeline.name,
        "version": pipeline.version,
        "digest": pipeline.digest,
        "title": pipeline.title,
        "description": pipeline.description,
        **deprecated,
    }


def full_record(
    pipeline: Pipeline,
    deprecation: Deprecation | None,
    image: Mapping[str, Any] | None,
    *,
    trusted: bool,
    origin: str = "",
) -> dict[str, Any]:
    """Return all fields: the author's descriptor unchanged, and those of hibali; `image` is from `image_fields`."""
    return {
        **pipeline_record(pipeline, deprecation),
        **({"image": dict(image)} if image else {}),
        **({"origin": origin} if origin else {}),
        "trusted": trusted,
        "runnable": _why_unrunnable(pipeline) == "",
        "descriptor": dict(pipeline.document),
    }


def _list_pipelines(
    common: Common,
    catalogue: Catalogue,
    entries: Iterable[Summary | Damaged],
    chosen: tuple[str, ...] | None = None,
) -> int:
    """Print a line for each entry. Returns 6 when an entry is damaged, else 0."""
    images = catalogue.image_digests()
    found: list[tuple[Summary, Deprecation | None, str]] = []
    code = 0
    for each in entries:
        if isinstance(each, Damaged):
            code = 6
            common.output.warn(f"{each.reference}: {each.error.message}")
        else:
            found.append((each, catalogue.deprecation(each), images.get((each.name, each.version), "")))
    records = (
        pipeline_record(each, deprecation) | ({"image": {"digest": image}} if image else {})
        for each, deprecation, image in found
    )
    if write_list(common, "pipeline", records, chosen, code=code):
        return code
    if not found:
        common.output.info("No pipelines were found. To add one: hibali pipelines add FILE")
        return code
    rows = [
        (
            each.name,
            each.version,
            each.digest[:12],
            *([image.removeprefix("sha256:")[:12]] if images else []),
            _one_line(f"({deprecation}) {each.description}" if deprecation else each.description),
        )
        for each, deprecation, image in found
    ]
    common.output.table(["name", "version", "digest", *(["image"] if images else []), "description"], rows)
    return code


def show_pipeline(
    output: Output,
    pipeline: Pipeline,
    deprecation: Deprecation | None,
    image: str,
    *,
    trusted: bool,
    origin: str = "",
) -> None:
    """Show everything needed to write an invocation; `image` is a line about its image."""
    output.pairs(
        {
            "name": pipeline.reference,
            "title": pipeline.title,
            "digest": f"sha256 {pipeline.digest}",
            **({"origin": printable(origin)} if origin else {}),
            "description": _one_line(pipeline.description),
            "command": pipeline.command_template,
            "container": _describe_container(pipeline),
            **({"image": image} if image else {}),
            "bare": "trusted" if trusted else "not trusted",
            **({"note": str(deprecation)} if deprecation else {}),
            **({"not run": _why_unrunnable(pipeline)} if _why_unrunnable(pipeline) else {}),
        }
    )
    if pipeline.inputs:
        output.text("\n")
        output.table(
            ["input", "type", "needed", "default", "about"],
            [
                (each.id, _describe_type(each), "" if each.optional else "yes", _default(each), each.name)
                for each in pipeline.inputs
            ],
        )
    if pipeline.outputs:
        output.text("\n")
        output.table(
            ["output", "path", "needed", "about"],
            [
                (each.id, _describe_path(each), "" if each.optional else "yes", each.name)
                for each in pipeline.outputs
            ],
        )
    for group in pipeline.groups:
        output.line(f"{group.id}: {_describe_group(group)} {', '.join(group.members)}")


def show_sites(output: Output, sites: Sequence[SiteRuns]) -> None:
    """Show the last run at each site, and the results of all runs there."""
    if sites:
        output.text("\n")
        output.table(
            ["site", "last run", "state", "begun", "runs"],
            [
                (
                    each.site,
                    id_cell(each.last.id),
                    each.last.state,
                    time_cell(each.last.created, f"{each.last.created[:19]}Z"),
                    _states(each),
                )
                for each in sites
            ],
        )


def _states(site: SiteRuns) -> str:
    return ", ".join(f"{count} {state.lower()}" for state, count in site.states.items())


def _why_unrunnable(pipeline: Pipeline) -> str:
    from registry.command_line import refuse_unrunnable  # start-up: only to show one pipeline

    try:
        refuse_unrunnable(pipeline)
    except HibaliError as error:
        return f"{error.subject}: {error.message}"
    return ""


def _describe_container(pipeline: Pipeline) -> str:
    container = pipeline.container
    if container is None:
        return "none"
    return f"{container.kind} {container.index} {container.image or container.url}".replace("  ", " ")


def _describe_type(tool_input: Input) -> str:
    kind = "Integer" if tool_input.integer else tool_input.kind
    choices = f": {', '.join(str(each) for each in tool_input.choices)}" if tool_input.choices else ""
    return f"{kind}{' list' if tool_input.is_list else ''}{choices}"


def _describe_path(output: OutputFile) -> str:
    return output.path_template or "; ".join(
        f"{template} ({'otherwise' if condition == 'default' else f'if {condition}'})"
        for condition, template in output.conditions
    )


def _default(tool_input: Input) -> str:

    return "" if tool_input.default is None else json.dumps(tool_input.default, ensure_ascii=False)


def _describe_group(group: Any) -> str:
    rules = [
        (group.mutually_exclusive, "at most one of"),
        (group.one_is_required, "at least one of"),
        (group.all_or_none, "all or none of"),
    ]
    return " and ".join(text for applies, text in rules if applies) or "together:"


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= 80 else joined[:76] + " ..."


_MARKS = {"added": "+", "removed": "-", "changed": "~"}
_LONGEST = 60


def show_changes(common: Common, changes: list[Change], code: int) -> None:
    """Print a line for each change; `code` is the exit code."""
    records = (
        {
            "change": each.kind,
            "path": each.path,
            "before": each.before,
            "after": each.after,
            "breaking": each.breaking,
        }
        for each in changes
    )
    if write_list(common, "difference", records, code=code):
        return
    for each in changes:
        mark = "!" if each.breaking else " "
        common.output.line(f"{mark} {_MARKS[each.kind]} {each.path}{_values(each)}")
    if not changes:
        common.output.info("No differences.")


def _values(change: Change) -> str:
    if isinstance(change.before, dict) or isinstance(change.after, dict):
        part = change.after or change.before
        name = part.get("name") if isinstance(part, dict) else None
        return f": {name}" if isinstance(name, str) else ""
    if change.kind == "added":
        return f": {_format_value(change.after)}"
    if change.kind == "removed":
        return f": {_format_value(change.before)}"
    return f": {_format_value(change.before)} -> {_format_value(change.after)}"


def _format_value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."


def add_pipelines(common: Common, sources: Sequence[str], name: str | None) -> int:
    """Check the descriptors of each source and add them to the catalogue; raise the worst failure at the end."""
    if name is not None and len(sources) > 1:
        raise UsageError("usage", "--name needs a single descriptor, but several sources were named")
    failures = Failures(json=common.json)
    for source in dict.fromkeys(sources):
        with failures.collect():
            _add_from(common, source, name)
    return failures.end()


def _add_from(common: Common, source: str, name: str | None) -> None:
    from registry.sources import find_candidates  # start-up: only to add descriptors

    catalogue = open_catalogue(common)
    added, failures = 0, list[HibaliError]()
    for candidate in find_candidates(source, access_of(common)):
        if name is not None and added + len(failures):
            raise UsageError(
                "usage", "--name needs a single descriptor; the source has several", subject=source
            )
        try:
            pipeline = catalogue.add(
                candidate.raw, name or candidate.name, subject=candidate.subject, origin=candidate.origin
            )
        except HibaliError as problem:
            failures.append(problem)
            continue
        added += 1
        others = [] if name is not None else catalogue.find_other_titles(pipeline)
        if others:
            common.output.warn(
                f"{pipeline.reference}: its title is '{printable(pipeline.title)}', but that of other versions of {pipeline.name} is "
                f"'{printable(others[0])}'. If it is another pipeline, remove it and add it with --name."
            )
        for change in candidate.changes:
            common.output.warn(f"{pipeline.reference}: {change}")
        origin = catalogue.origin(pipeline)
        if common.json:
            common.output.record(
                "pipeline", {**pipeline_record(pipeline), **({"origin": origin} if origin else {})}
            )
        else:
            common.output.line(pipeline.reference)
            common.output.info(f"sha256 {pipeline.digest}{f', from {printable(origin)}' if origin else ''}")
    _report_failures(common, source, added, failures)


def _report_failures(common: Common, source: str, added: int, failures: list[HibaliError]) -> None:
    if not added and len(failures) == 1:
        raise failures[0]
    if not added and not failures:
        raise NotFoundError("no-descriptor", "the source has no Boutiques descriptor", subject=source)
    for each in failures:
        common.output.warn(f"{each.subject}: {each.message}")
    if failures:
        raise IncompleteError(
            "not-all-added",
            f"{len(failures)} of {counted(added + len(failures), 'descriptor')} were not added; see above",
            subject=source,
        )


def deprecate_pipelines(
    common: Common, pipeline: str, successor: str | None, because: str, *, undo: bool
) -> int | None:
    """Deprecate versions, or remove their deprecation."""
    if undo and (successor or because):
        raise UsageError("usage", "--undo cannot be used with --successor or --because", subject=pipeline)
    catalogue = open_catalogue(common)
    instead = catalogue.find(successor).reference if successor else ""
    deprecation = None if undo else Deprecation(instead, because)
    for each in catalogue.deprecate(pipeline, deprecation):
        if common.json:
            common.output.record("pipeline", pipeline_record(each, catalogue.deprecation(each)))
        else:
            common.output.line(f"{each.reference}: {deprecation or 'not deprecated'}")
    return None


def compare_versions(common: Common, old: str, new: str, *, detailed_exit_code: bool) -> int | None:
    """Show the differences of two versions; return the exit code."""
    catalogue = Catalogue()
    changes = find_changes(catalogue.find(old), catalogue.find(new))
    code = 10 if changes and detailed_exit_code else 0
    show_changes(common, changes, code)
    return code


def list_catalogue(common: Common, fields: tuple[str, ...] | None) -> int | None:
    """List the pipelines of the catalogue."""
    catalogue = Catalogue()
    return _list_pipelines(common, catalogue, catalogue.entries(), fields)


def remove_version(common: Common, pipeline: str) -> int | None:
    """Remove a version from the catalogue."""
    open_catalogue(common).remove(pipeline)
    name, version = split_reference(pipeline)
    if common.json:
        common.output.record("pipeline-change", {"name": name, "version": version, "change": "removed"})
    else:
        common.output.info(f"{name}@{version} removed")
    return None


def search_catalogue(common: Common, words: tuple[str, ...]) -> int | None:
    """List the pipelines of the catalogue that contain all words, best first."""
    catalogue = Catalogue()
    sound = [each for each in catalogue.entries() if isinstance(each, Summary)]
    found = (each for each, _ in search_pipelines(sound, words))
    return _list_pipelines(common, catalogue, found)


def show_details(common: Common, pipeline: str) -> int | None:
    """Show a pipeline in full, and its runs."""
    from runs.store import runs_by_site, runs_of  # start-up: lists need nothing of runs

    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    trusted, deprecation = catalogue.is_trusted(found), catalogue.deprecation(found)
    sites, origin = runs_by_site(runs_of(found.digest)), catalogue.origin(found)
    image = catalogue.image(found)
    here = image is not None and catalogue.images.local_file(found, image) is not None
    if common.json:
        fields = image_fields(image, here=here) if image else None
        runs = [each.to_record() for each in sites]
        record = full_record(found, deprecation, fields, trusted=trusted, origin=origin)
        common.output.record("pipeline", {**record, "runs": runs})
    else:
        words = describe_image(image, here=here) if image else ""
        show_pipeline(common.output, found, deprecation, words, trusted=trusted, origin=origin)
        show_sites(common.output, sites)
    return None


def trust_version(common: Common, pipeline: str) -> int | None:
    """Allow a version to run without a container."""
    found = Catalogue().trust(pipeline)
    if common.json:
        common.output.record("pipeline", {**pipeline_record(found), "trusted": True})
    else:
        common.output.info(f"{found.reference} may run without a container (sha256 {found.digest})")
    return None


def show_image(common: Common, pipeline: str) -> int | None:
    """Show the image of a pipeline."""
    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    record = catalogue.images.require(found)
    file = catalogue.images.local_file(found, record)
    if common.json:
        fields = {"name": found.name, "version": found.version, **image_fields(record, here=file is not None)}
        common.output.record("image", {**fields, **({"file": str(file)} if file else {})})
    else:
        common.output.pairs(
            {
                "pipeline": found.reference,
                "digest": record.digest,
                "id": record.id,
                "format": record.format,
                "size": record.size,
                "names": ", ".join(record.names),
                "file": str(file) if file else "not stored locally",
            }
        )
    return None

"""How pipelines are shown: as JSON records, as rows, and one in full."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from hibali_cli.output import Cell, Output

if TYPE_CHECKING:
    from registry.catalogue_folder import Deprecation
    from registry.pipeline import Input, OutputFile, Pipeline
    from registry.search import Damaged, Summary
    from runs.store import SiteRuns

    Said = Callable[[Summary], Deprecation | None]


def pipeline_record(pipeline: Pipeline | Summary, said: Deprecation | None = None) -> dict[str, Any]:
    """What identifies a pipeline and says what it is for."""
    deprecated = {"deprecated": {"successor": said.successor, "because": said.because}} if said else {}
    return {
        "name": pipeline.name,
        "version": pipeline.version,
        "digest": pipeline.digest,
        "title": pipeline.title,
        "description": pipeline.description,
        **deprecated,
    }


def full_record(
    pipeline: Pipeline, said: Deprecation | None, image: Mapping[str, Any] | None, *, trusted: bool
) -> dict[str, Any]:
    """All of it: the author's descriptor as it is, and what hibali adds; `image` as `image_fields` tells it."""
    return {
        **pipeline_record(pipeline, said),
        **({"image": dict(image)} if image else {}),
        "trusted": trusted,
        "runnable": _why_unrunnable(pipeline) == "",
        "descriptor": dict(pipeline.document),
    }


def list_pipelines(
    output: Output,
    entries: Iterable[Summary | Damaged],
    deprecation: Said,
    images: Mapping[tuple[str, str], str],
) -> int:
    """A line for each; `images` has the digests of those that have one. 6 when something that was added cannot be used, else 0."""
    from registry.search import Damaged

    rows: list[tuple[Cell, ...]] = []
    damaged = 0
    for each in entries:
        if isinstance(each, Damaged):
            damaged += 1
            output.warn(f"{each.reference}: {each.error.message}")
            continue
        said = deprecation(each)
        image = images.get((each.name, each.version))
        if output.json:
            kept = {"image": {"digest": image}} if image else {}
            output.record("pipeline", {**pipeline_record(each, said), **kept})
        about = f"({said}) {each.description}" if said else each.description
        digests = (
            each.digest[:12],
            *([image.removeprefix("sha256:")[:12] if image else ""] if images else []),
        )
        rows.append((each.name, each.version, *digests, _one_line(about)))
    code = 6 if damaged else 0
    if output.json:
        output.record("end", {"count": len(rows), "exit": code})
    elif rows:
        image_heading = ["image"] if images else []
        output.table(["name", "version", "digest", *image_heading, "description"], rows)
    return code


def show_pipeline(
    output: Output, pipeline: Pipeline, said: Deprecation | None, image: str, *, trusted: bool
) -> None:
    """Everything a person needs to write an invocation; `image` says in a line which one is kept."""
    output.pairs(
        {
            "name": pipeline.reference,
            "title": pipeline.title,
            "digest": f"sha256 {pipeline.digest}",
            "description": _one_line(pipeline.description),
            "command": pipeline.command_template,
            "container": _container_words(pipeline),
            **({"image": image} if image else {}),
            "bare": "trusted" if trusted else "not trusted",
            **({"note": str(said)} if said else {}),
            **({"not run": _why_unrunnable(pipeline)} if _why_unrunnable(pipeline) else {}),
        }
    )
    if pipeline.inputs:
        output.text("\n")
        output.table(
            ["input", "type", "needed", "default", "about"],
            [
                (each.id, _kind_words(each), "" if each.optional else "yes", _default(each), each.name)
                for each in pipeline.inputs
            ],
        )
    if pipeline.outputs:
        output.text("\n")
        output.table(
            ["output", "path", "needed", "about"],
            [
                (each.id, _path_words(each), "" if each.optional else "yes", each.name)
                for each in pipeline.outputs
            ],
        )
    for group in pipeline.groups:
        output.line(f"{group.id}: {_group_words(group)} {', '.join(group.members)}")


def show_sites(output: Output, sites: Sequence[SiteRuns]) -> None:
    """Where it has run: the last run at each site, and how all of them ended."""
    if sites:
        output.text("\n")
        output.table(
            ["site", "last run", "state", "begun", "runs"],
            [
                (each.site, each.last.id, each.last.state, each.last.created[:19] + "Z", _states(each))
                for each in sites
            ],
        )


def _states(site: SiteRuns) -> str:
    return ", ".join(f"{count} {state.lower()}" for state, count in site.states.items())


def _why_unrunnable(pipeline: Pipeline) -> str:
    from hibali.errors import HibaliError
    from registry.command_line import refuse_unrunnable

    try:
        refuse_unrunnable(pipeline)
    except HibaliError as error:
        return f"{error.about}: {error.message}"
    return ""


def _container_words(pipeline: Pipeline) -> str:
    container = pipeline.container
    if container is None:
        return "none"
    return f"{container.kind} {container.index} {container.image or container.url}".replace("  ", " ")


def _kind_words(question: Input) -> str:
    kind = "Integer" if question.integer else question.kind
    choices = f": {', '.join(str(each) for each in question.choices)}" if question.choices else ""
    return f"{kind}{' list' if question.is_list else ''}{choices}"


def _path_words(output: OutputFile) -> str:
    return output.path_template or "; ".join(
        f"{template} ({'otherwise' if condition == 'default' else f'if {condition}'})"
        for condition, template in output.conditions
    )


def _default(question: Input) -> str:
    import json

    return "" if question.default is None else json.dumps(question.default, ensure_ascii=False)


def _group_words(group: Any) -> str:
    words = [
        (group.mutually_exclusive, "at most one of"),
        (group.one_is_required, "at least one of"),
        (group.all_or_none, "all or none of"),
    ]
    return " and ".join(text for given, text in words if given) or "together:"


def _one_line(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= 80 else joined[:76] + " ..."

"""`hibali pipelines add`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali.errors import HibaliError


@as_command(
    "add",
    examples=[
        ("hibali pipelines add bet.json", "Check a descriptor and keep it under its own name and version."),
        ("hibali pipelines add bet.json --name brain-extraction", "Keep it under another name."),
        ("hibali pipelines add zenodo.3267250", "Fetch what was published on Zenodo."),
        (
            "hibali pipelines add git+https://github.com/lab/tools@v2#boutiques",
            "Take all descriptors of a repository.",
        ),
        ("hibali pipelines add bosh:", "Take what bosh has fetched on this machine."),
    ],
)
@click.argument("source")
@click.option("--name", metavar="NAME", help="Name in the catalogue, instead of the descriptor's own.")
def command(common: Common, source: str, name: str | None) -> int | None:
    """Check Boutiques descriptors and keep them.

    SOURCE is a file (- is standard input), a folder, an https URL, git+URL[@REF][#FOLDER], zenodo.NUMBER or a DOI of Zenodo,
    or bosh: for the cache of bosh. The same content again changes nothing; other content under the same name and version
    is refused (8). Of several, those that can be kept are; then the exit code is 6.
    """
    from hibali.errors import HibaliError, UsageError
    from hibali.text import printable
    from hibali_cli.catalogue import access_of, open_catalogue
    from hibali_cli.pipeline_record import pipeline_record
    from registry.sources.base import find_candidates

    catalogue = open_catalogue(common)
    kept, failures = 0, list[HibaliError]()
    for candidate in find_candidates(source, access_of(common)):
        if name is not None and kept + len(failures):
            raise UsageError("usage", "--name is for one descriptor, and there are several", about=source)
        try:
            pipeline = catalogue.add(candidate.raw, name, about=candidate.about)
        except HibaliError as problem:
            failures.append(problem)
            continue
        kept += 1
        others = [] if name is not None else catalogue.find_other_titles(pipeline)
        if others:
            common.output.warn(
                f"{pipeline.reference}: it is called '{printable(pipeline.title)}', and other versions of {pipeline.name} are called "
                f"'{printable(others[0])}'; if it is another pipeline, remove it and add it with --name"
            )
        if common.json:
            common.output.record("pipeline", pipeline_record(pipeline))
        else:
            common.output.line(pipeline.reference)
            common.output.say(f"sha256 {pipeline.digest}")
    return _judge(common, source, kept, failures)


def _judge(common: Common, source: str, kept: int, failures: list[HibaliError]) -> int | None:
    from hibali.errors import IncompleteError, NotFoundError

    if not kept and len(failures) == 1:
        raise failures[0]
    if not kept and not failures:
        raise NotFoundError("no-descriptor", "there is no Boutiques descriptor", about=source)
    for each in failures:
        common.output.warn(f"{each.about}: {each.message}")
    if failures:
        raise IncompleteError(
            "not-all-added", f"{len(failures)} of {kept + len(failures)} were not added", about=source
        )
    return None

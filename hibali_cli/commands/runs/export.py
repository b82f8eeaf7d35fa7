"""`hibali runs export`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, Common


@as_command(
    "export",
    examples=[
        ("hibali runs export 20260102-030405-0a1b2c3d --ro-crate run.zip", "Describe a run in one file."),
        ("hibali runs export ID ID --ro-crate crate", "Several runs, as a folder."),
    ],
)
@click.argument("run_ids", metavar="ID...", nargs=-1, required=True)
@click.option(
    "--ro-crate",
    "crate",
    required=True,
    metavar="DIR|FILE.zip",
    type=OUTPUT_FILE,
    help="Write an RO-Crate there.",
)
def command(common: Common, run_ids: tuple[str, ...], *, crate: str) -> int | None:
    """Describe runs that have ended as an RO-Crate: pipeline, answers, digests of inputs and outputs, times.

    No data goes into it; `hibali bundle create` makes a file that a peer can repeat. What was not collected is hashed at its site.
    Of a sweep each task is an action with its own values, times and outputs.
    """
    import os
    from pathlib import Path

    from hibali.files import account_names
    from hibali.text import path_fields
    from hibali_cli.progress import listening
    from hibali_cli.run_site import run_site, update_runs
    from registry.catalogue import Catalogue
    from runs.bundles.create import check_pipeline, left_by
    from runs.bundles.export import Exported, crate_texts, write_crate
    from runs.store import Book
    from runs.sweeps.table import read_again

    book, catalogue = Book(), Catalogue()
    target = Path(crate)
    with listening(common, "export") as tell:
        runs = update_runs(common, book, [book.load(run_id) for run_id in dict.fromkeys(run_ids)], tell)
        found = []
        for run in runs:
            left = left_by(run, book, lambda run=run: run_site(common, run.site))  # type: ignore[misc]
            pipeline = catalogue.find(run.pipeline)
            check_pipeline(run, pipeline)
            tasks = read_again(run, book, pipeline, tuple(run.sweep.tasks)).tasks if run.sweep else ()
            found.append(Exported(run, pipeline, left, tasks))
        texts = crate_texts(found, account_names()[0])
        write_crate(texts, target)
    for each in found:
        for problem in each.left.problems:
            common.output.warn(f"{each.run.id}: {os.fsdecode(problem.path)}: {problem.message}")
    if not common.json:
        common.output.line(os.fsencode(target))
        return None
    fields = {
        **path_fields(os.fsencode(target)),
        "format": "ro-crate",
        "runs": [run.id for run in runs],
        "bytes": sum(len(content) for content in texts.values()),
    }
    common.output.record("exported", fields)
    return None

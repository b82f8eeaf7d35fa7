"""Export runs as an RO-Crate or as an HTML report."""

from __future__ import annotations

import os
from pathlib import Path

from hibali.files import account_names
from hibali.text import path_fields
from hibali_cli.handlers.run_sites import run_site, update_runs
from hibali_cli.options import Common
from hibali_cli.progress import listening
from registry.catalogue import Catalogue
from runs.bundles.create import check_pipeline, outputs_of
from runs.bundles.export import Exported, crate_texts, write_crate
from runs.store import RunStore
from runs.sweeps.table import read_rerun_request


def export_crate(common: Common, run_ids: tuple[str, ...], *, crate: str) -> int | None:
    """Write runs that have ended as an RO-Crate."""
    run_store, catalogue = RunStore(), Catalogue()
    target = Path(crate)
    with listening(common, "export") as on_event:
        runs = update_runs(
            common, run_store, [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)], on_event
        )
        found = []
        for run in runs:
            left = outputs_of(run, run_store, lambda run=run: run_site(common, run.site))  # type: ignore[misc]
            pipeline = catalogue.find(run.spec.pipeline)
            check_pipeline(run, pipeline)
            tasks = (
                read_rerun_request(run, run_store, pipeline, tuple(run.sweep.tasks)).tasks
                if run.sweep
                else ()
            )
            found.append(Exported(run, pipeline, left, tasks))
        texts = crate_texts(found, account_names()[0])
        write_crate(texts, target)
    for each in found:
        for problem in each.outputs.problems:
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

"""Render command lines with the reference implementation (bosh), in a separate process and folder."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
from pathlib import Path


def make_lines(jobs: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return for each descriptor and invocation the output of `bosh exec simulate`, or its error."""
    from boutiques.localExec import LocalExecutor

    options = {
        "forcePathType": True,
        "destroyTempScripts": True,
        "changeUser": True,
        "skipDataCollect": True,
        "sandbox": False,
    }
    answers = []
    for job in jobs:
        output = io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            try:
                executor = LocalExecutor(job["descriptor"], job["invocation"], options)
                answers.append({"line": executor.cmd_line[0]})
            except (Exception, SystemExit) as problem:  # noqa: BLE001  # the exception is the result
                answers.append({"stopped": repr(problem)[:500]})
    return answers


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    Path("answers.json").write_text(json.dumps(make_lines(json.loads(Path("jobs.json").read_text()))))

"""`hibali schedule metrics`."""

from __future__ import annotations

from pathlib import Path

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, Common

_EXAMPLES = [
    ("hibali schedule metrics", "See the metrics as they are now."),
    (
        "hibali schedule metrics --file /var/lib/node_exporter/textfile/hibali.prom",
        "Keep them in a file that node_exporter reads, renewed after each run.",
    ),
]


@as_command("metrics", examples=_EXAMPLES)
@click.option(
    "--file",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write them there now, and again after each run of a schedule.",
)
@click.option("--off", is_flag=True, help="Write them nowhere any more; the file stays.")
def command(common: Common, *, file: str | None, off: bool) -> int | None:
    """Write OpenMetrics about schedules: last success, duration, bytes, files, failures, proof, and what expires."""
    from runs.schedules.schedule import load_schedules, put_metrics_file
    from runs.schedules.tend import all_credentials, current_metrics, write_metrics

    known = load_schedules(common.config)
    if off:
        put_metrics_file(common.config, "")
        return None
    credentials = all_credentials(common.config, known)
    if file is None:
        text = current_metrics(known, credentials)
        if common.json:
            common.output.record("metrics", {"file": known.metrics_file or None, "text": text})
        else:
            common.output.text(text)
        return None
    path = Path(file).expanduser().absolute()
    write_metrics(path, known, credentials)
    put_metrics_file(common.config, str(path))
    if common.json:
        common.output.record("metrics", {"file": str(path), "text": path.read_text("utf-8")})
    common.output.say(f"The metrics are in {path}, and renewed after each run.")
    return None

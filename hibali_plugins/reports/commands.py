"""`hibali report`, `hibali runs report` and `hibali dashboard`: what was done and what runs now, as pages."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command
from hibali_cli.options import OUTPUT_FILE


@command(
    "dashboard",
    calls="hibali_plugins.reports.dashboard.start:show_dashboard",
    section=Section.REPORTS,
    examples=[
        ("hibali dashboard", "Open the dashboard in your browser."),
        ("hibali dashboard --no-open --port 8123", "Only print its link, for example on a login node."),
    ],
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port on 127.0.0.1 (default: any free one).",
)
@click.option("--no-open", is_flag=True, help="Only print the link; do not open a browser.")
def dashboard_command() -> None:
    """Show what runs now and what was done in a browser: transfers, runs, sweeps, schedules, sites and history.

    The dashboard is on this machine only, and only you can open it: the link has a secret that works once. It reads the ledger, and
    contacts sites only if you press the button that queries those of unfinished runs. Ctrl-C ends it.
    """


@command(
    "report",
    calls="hibali_plugins.reports.report:show_report",
    section=Section.REPORTS,
    examples=[
        ("hibali report", "Show the status report."),
        ("hibali report --html report.html", "Write the report as one page to open, print or send."),
        (
            "hibali report -o /var/www/hibali/",
            "Write index.html there, for example each morning by a schedule.",
        ),
    ],
)
@click.option(
    "-o",
    "--output",
    "--html",
    "output",
    metavar="DIR|FILE",
    type=OUTPUT_FILE,
    help="Write one HTML page with pictures of transfers and runs, atomically.",
)
@click.option(
    "--days",
    type=click.IntRange(2, 366),
    default=60,
    show_default=True,
    metavar="N",
    help="The number of days in charts.",
)
def report_command() -> None:
    """Show the status report: schedules, failures and how to fix them, transfers, and unverified files.

    It is made from the ledger of this machine, without connections. The HTML page is self-contained and has no scripts.
    """


@command(
    "report",
    section="Following runs",
    calls="hibali_plugins.reports.report:write_report",
    examples=[
        ("hibali runs report -o runs.html", "Write a page about all runs."),
        ("hibali runs report 20260102-030405-0a1b2c3d -o run.html", "Write a page about one run."),
    ],
)
@click.argument("run_ids", metavar="[ID]...", nargs=-1)
@click.option(
    "-o",
    "--output",
    "output",
    required=True,
    metavar="FILE.html",
    type=OUTPUT_FILE,
    help="Write the report to FILE.html, atomically.",
)
@click.option("--update", is_flag=True, help="Query each site with unfinished runs once.")
def runs_report_command() -> None:
    """Write an HTML report of runs: timeline, resource usage, inputs and outputs.

    The page is self-contained and has no scripts: it can be opened, printed and sent by mail. Runs are shown as they were last observed.
    """

"""`hibali dashboard`: what runs now and what was done, in a browser."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command
from hibali_cli.options import Common


@command(
    "dashboard",
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
def dashboard_command(common: Common, *, port: int, no_open: bool) -> int | None:
    """Show what runs now and what was done in a browser: transfers, runs, sweeps, schedules, sites and history.

    The dashboard is on this machine only, and only you can open it: the link has a secret that works once. It reads the ledger, contacts
    no site and changes nothing. Ctrl-C ends it.
    """
    from hibali_cli.dashboard.start import show_dashboard

    return show_dashboard(common, port=port, opens=not no_open)

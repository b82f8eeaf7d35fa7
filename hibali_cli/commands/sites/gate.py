"""`hibali sites gate`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "gate",
    examples=[
        ("hibali sites gate >hibali-gate", "Print the gate, to give to a site's administrators."),
        ("hibali sites gate --no-agent", "Print one that lets only SFTP and the scheduler through."),
    ],
)
@click.option(
    "--python", default="python3", metavar="WORD", help="The python of the site that the agent runs in."
)
@click.option("--no-agent", is_flag=True, help="Leave the agent out.")
def command(common: Common, *, python: str, no_agent: bool) -> int | None:
    """Print a forced command that lets through only what hibali needs.

    A site can name it in sshd_config (ForceCommand) or in authorized_keys (command="..."). It allows the SFTP
    server, the agent's one constant command, and sbatch, squeue, sacct, scancel and scontrol with plain arguments.
    """
    from transfers.remote.host import gate_script

    script = gate_script(python, agent=not no_agent)
    if common.json:
        common.output.record("gate", {"script": script})
    else:
        common.output.text(script)
    return None

"""`hibali runs participants`, and the options of `hibali run` for participants and sessions."""

from __future__ import annotations

import click

from hibali_cli.command import AddedOptions, command


@command(
    "participants",
    section="Following runs",
    calls="hibali_plugins.participants.running:list_participants",
    examples=[
        ("hibali runs participants fmriprep values.json bids", "Show the state of each participant."),
        (
            "hibali runs participants fmriprep values.json juwels:bids --sessions",
            "Show that of each session.",
        ),
    ],
)
@click.argument("pipeline")
@click.argument("words", metavar="[INVOCATION.json] DATASET", nargs=-1, required=True)
@click.option("--sessions", is_flag=True, help="Show each session of each participant.")
@click.option(
    "--whole-dataset", is_flag=True, help="Show the runs that had this option: other values than without."
)
def participants_command() -> None:
    """Show what became of each participant of a BIDS dataset.

    Give the pipeline, the invocation and the dataset of `hibali run PIPELINE INVOCATION.json --each-participant DATASET`. A participant is SUCCEEDED
    if the pipeline succeeded for exactly these values, otherwise as in its latest run, and MISSING if there was none, or SKIPPED if a run left
    it out because it lacked a required file.
    """


run_options = AddedOptions(
    (
        click.Option(
            ["--each-participant", "each_participant"],
            metavar="DATASET",
            help="Run a task for each participant of a BIDS dataset, whose label replaces {participant} in the values.",
        ),
        click.Option(
            ["--each-session", "each_session"],
            metavar="DATASET",
            help="The same for each session, whose label replaces {session}.",
        ),
        click.Option(
            ["--only-missing"],
            is_flag=True,
            help="Leave out participants or sessions for which the pipeline has succeeded with these values.",
        ),
        click.Option(
            ["--required-file", "required_files"],
            metavar="PATTERN",
            multiple=True,
            help="Start nothing if a participant or session has no such file, as 'anat/*_T1w.nii*'; repeatable.",
        ),
        click.Option(
            ["--skip-incomplete"],
            is_flag=True,
            help="Leave out participants or sessions that lack a required file, or one that the values name.",
        ),
        click.Option(
            ["--whole-dataset"],
            is_flag=True,
            help="Give each task the whole dataset, not only its participant's part.",
        ),
    ),
    after="parameters",
    calls="hibali_plugins.participants.running:run_participants",
)

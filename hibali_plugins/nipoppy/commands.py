"""`hibali nipoppy`: run the jobs of a study of nipoppy at a site."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from hibali.errors import UsageError
from hibali_cli.command import Section, command, command_group
from hibali_cli.options import INPUT_FILE, OUTPUT_FILE, OUTPUT_PLACE, Common


@command(
    "setup",
    examples=[
        (
            "hibali nipoppy setup study juwels:/p/project/study",
            "Make the site juwels a cluster of the study, with a copy of the study in that folder.",
        ),
        (
            "hibali nipoppy setup study juwels:/p/project/study --program /p/project/env/bin/nipoppy --exclude /containers/",
            "With nipoppy in an environment of the site, and images that are there already.",
        ),
    ],
)
@click.argument("study", type=OUTPUT_FILE)
@click.argument("place", type=OUTPUT_PLACE, metavar="SITE:FOLDER")
@click.option(
    "--program",
    default="nipoppy",
    show_default=True,
    metavar="COMMAND",
    help="What starts nipoppy at the site.",
)
@click.option(
    "--exclude", multiple=True, metavar="PATTERN", help="Do not send these files of the study; repeatable."
)
def setup_command(common: Common, study: str, place: str, program: str, exclude: tuple[str, ...]) -> None:
    """Make a site a cluster of a study of nipoppy: `nipoppy process --hpc SITE`.

    This writes code/hpc/hibali in the study, and a line in code/hpc/clusters.yaml. FOLDER is an absolute path: there, jobs find a copy
    of the study, which each submission updates. The jobs run what the study says, with all your rights: this command
    is the consent to that.
    """
    from hibali.config.settings import site_for_runs  # start-up: not for --help
    from hibali.locations import read_target  # start-up: not for --help
    from hibali_plugins.nipoppy.cluster import Cluster, write_cluster  # start-up: not for --help
    from hibali_plugins.nipoppy.jobs import study_of  # start-up: not for --help

    settings = common.settings()
    target = read_target(place, settings)
    if target.typed_local or not target.path.startswith("/"):
        raise UsageError("usage", "the copy of the study is SITE:FOLDER with an absolute path", subject=place)
    site = site_for_runs(settings, target.site.name)
    cluster = Cluster(
        site.name, target.path.rstrip("/"), " ".join(map(shlex.quote, shlex.split(program))), exclude
    )
    folder = write_cluster(Path(study_of(study)), cluster)
    if common.json:
        changed = {"study": study_of(study), "change": "set-up", "place": cluster.place}
        common.output.record("nipoppy", {**changed, "output": None, "runs": []})
        return
    common.output.line(f'PATH={shlex.quote(str(folder))}:"$PATH" nipoppy process --hpc {site.name} ...')


@command(
    "submit",
    calls="hibali_plugins.nipoppy.submitting:submit_script",
    examples=[
        (
            "hibali nipoppy submit scratch/work/bet-6.0.4/run_queue.sh",
            "Submit the jobs of a script that nipoppy wrote.",
        )
    ],
)
@click.argument("script", type=INPUT_FILE)
def submit_command() -> None:
    """Submit the jobs that nipoppy has written; `sbatch` of the study calls this.

    First the study is sent, without raw data, results and logs, and of its participants those of the jobs. A participant whose
    job has not ended, or succeeded and was not fetched, is not submitted again. Killed at any moment, the same
    `nipoppy process` continues.
    """


@command(
    "fetch",
    calls="hibali_plugins.nipoppy.fetching:fetch_results",
    examples=[("hibali nipoppy fetch study --wait", "Wait for the jobs, and fetch their results.")],
)
@click.argument("study", type=OUTPUT_FILE)
@click.option("--wait", is_flag=True, help="Wait until the jobs have ended.")
def fetch_command() -> None:
    """Fetch results of jobs that succeeded, and logs of all, into the study, where nipoppy looks for them.

    Results of a pipeline are fetched when all of its jobs have ended; those of failed jobs, and of participants without a new job, are
    left out as far as names have `sub-LABEL`. Exits with 5 if some have not ended, with 7 if one failed. A file of the study
    that is replaced is kept in scratch/replaced.
    """


nipoppy_command = command_group(
    "nipoppy",
    section=Section.PIPELINES,
    commands=(fetch_command, setup_command, submit_command),
    help_text="Run the jobs of a study of nipoppy at a site.",
)

"""`hibali pipelines example` and `test`: try a descriptor with an example, and with its own tests."""

from __future__ import annotations

import click

from hibali_cli.command import command
from hibali_cli.options import OUTPUT_FILE, SITE


@command(
    "example",
    calls="hibali_plugins.authoring.writing:write_example",
    section="Using pipelines",
    examples=[
        (
            "hibali pipelines example fsl_bet > bet-invocation.json",
            "Write an invocation with the required inputs.",
        ),
        ("hibali pipelines example fsl_bet --complete", "Include every input that can be set together."),
        (
            "hibali pipelines example fsl_bet --ask -o bet-invocation.json",
            "Answer questions; TAB completes file names.",
        ),
    ],
)
@click.argument("pipeline")
@click.option("--complete", is_flag=True, help="Set every input that can be set together.")
@click.option("--ask", is_flag=True, help="Prompt for every value, and check each at once.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write it to FILE; an existing file is only replaced with --ask, after confirmation.",
)
def example_command() -> None:
    """Write an example invocation, or with --ask one from your answers.

    It is valid for PIPELINE, a NAME[@VERSION], but without --ask its values are only examples.
    """


@command(
    "test",
    calls="hibali_plugins.authoring.running:test_pipelines",
    section="Using pipelines",
    examples=[
        ("hibali pipelines test fsl_bet --site juwels", "Run the tests of a descriptor at a site."),
        (
            "hibali pipelines test fsl_bet@1.0.0 --site juwels --only quick --junit tests.xml",
            "Run one of them, and write the result for continuous integration.",
        ),
        ("hibali pipelines test --all --site juwels", "Check a site with the tests of all pipelines."),
    ],
)
@click.argument("pipeline", required=False)
@click.option(
    "--all",
    "every",
    is_flag=True,
    help="Run the tests of all pipelines that have some and are not deprecated.",
)
@click.option(
    "--site", type=SITE, metavar="SITE", help="The site to run the tests at (default: the default site)."
)
@click.option("--only", "names", metavar="TEST", multiple=True, help="Run only the test TEST; repeatable.")
@click.option("--image", metavar="PATH", default="", help="Use this image at the site.")
@click.option("--junit", metavar="FILE", type=OUTPUT_FILE, help="Write the results to FILE as JUnit XML.")
def test_command() -> None:
    """Run the tests in the descriptor of a pipeline, or of all, and compare exit codes and outputs.

    Each test is a run with the test's invocation; all run at the same time. Relative paths of inputs are those of the current folder. A test
    passes if the tool exits with the expected code and creates the expected outputs, with the expected MD5 if the descriptor has it.
    The exit code is 7 if a test fails.
    """

"""`hibali pipelines`: manage the catalogue of Boutiques pipelines."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command, command_group
from hibali_cli.fields import PIPELINE, fields_option
from hibali_cli.options import INPUT_FILE, SITE


@command(
    "add",
    calls="hibali_cli.handlers.pipelines:add_pipelines",
    examples=[
        ("hibali pipelines add bet.json", "Check a descriptor and add it under its own name and version."),
        ("hibali pipelines add bet.json conform.json", "Add several descriptors."),
        ("hibali pipelines add bet.json --name brain-extraction", "Add it under another name."),
        ("hibali pipelines add zenodo.3267250", "Fetch a descriptor published on Zenodo."),
        (
            "hibali pipelines add git+https://github.com/lab/tools@v2#boutiques",
            "Add all descriptors of a repository.",
        ),
        (
            "hibali pipelines add niwrap:fsl/bet",
            "Add a tool that niwrap describes; niwrap:fsl adds all of FSL.",
        ),
        ("hibali pipelines add bosh:", "Add the descriptors in the cache of bosh on this machine."),
    ],
)
@click.argument("sources", type=INPUT_FILE, metavar="SOURCE...", nargs=-1, required=True)
@click.option("--name", metavar="NAME", help="Name in the catalogue, instead of the descriptor's own.")
def add_command() -> None:
    """Check Boutiques descriptors and add them to the catalogue.
    SOURCE is a file (- is standard input), a folder, an https URL, git+URL[@REF][#FOLDER], zenodo:NUMBER or a DOI of Zenodo,
    cbrain:NUMBER for a tool configuration of CBRAIN, niwrap[@COMMIT]:SUITE[/VERSION][/TOOL], or bosh: for the cache of bosh. Adding the same content twice changes nothing; different content under the same name and
    version is refused (8). If only some of several descriptors are valid, they are added and the exit code is 6. With several sources
    each is tried, and the exit code is that of the worst failure.
    """


@command(
    "deprecate",
    calls="hibali_cli.handlers.pipelines:deprecate_pipelines",
    examples=[
        (
            "hibali pipelines deprecate fsl_bet@1.0.0 --successor fsl_bet@1.1.0",
            "Deprecate a version, and name its successor.",
        ),
        (
            'hibali pipelines deprecate fsl_bet --because "wrong units"',
            "Deprecate all versions, with the reason.",
        ),
        ("hibali pipelines deprecate fsl_bet@1.0.0 --undo", "Remove the deprecation."),
    ],
)
@click.argument("pipeline")
@click.option("--successor", metavar="PIPELINE", help="The pipeline to use instead, as NAME@VERSION.")
@click.option("--because", metavar="TEXT", default="", help="The reason.")
@click.option("--undo", is_flag=True, help="Remove the deprecation.")
def deprecate_command() -> None:
    """Mark a pipeline as deprecated.

    It stays in the catalogue and can be run, with a warning. Without a version, all versions are deprecated.
    """


@command(
    "diff",
    calls="hibali_cli.handlers.pipelines:compare_versions",
    examples=[("hibali pipelines diff fsl_bet@1.0.0 fsl_bet@1.1.0", "Show the changes of a new version.")],
)
@click.argument("old")
@click.argument("new")
@click.option("--detailed-exit-code", is_flag=True, help="Exit 10 when there are differences.")
def diff_command() -> None:
    """Show the differences between two versions.
    OLD and NEW are NAME@VERSION. A change that can break existing invocations is marked with an exclamation mark.
    """


@command(
    "evaluate",
    calls="hibali_cli.handlers.descriptors:evaluate_invocation",
    examples=[
        ("hibali pipelines evaluate fsl_bet bet-invocation.json", "Show where its outputs will be."),
        (
            "hibali pipelines evaluate bet.json bet-invocation.json --json",
            "For scripts; a descriptor needs no catalogue.",
        ),
    ],
)
@click.argument("file", metavar="FILE|NAME[@VERSION]")
@click.argument("invocation")
def evaluate_command() -> None:
    """Show the outputs that an invocation will produce, without running it.

    Paths are relative to the work folder of the run, as `runs collect` will place them; they may have wildcards. Outputs whose conditions do not
    hold are left out.
    """


@command(
    "list",
    calls="hibali_cli.handlers.pipelines:list_catalogue",
    examples=[("hibali pipelines list", "List every pipeline and version.")],
)
@fields_option(PIPELINE)
def list_command() -> None:
    """List the pipelines of the catalogue.

    The versions of a pipeline are in the order in which they were added.
    """


@command(
    "remove",
    calls="hibali_cli.handlers.pipelines:remove_version",
    examples=[("hibali pipelines remove fsl_bet@1.0.0", "Remove one version of a pipeline.")],
)
@click.argument("pipeline")
def remove_command() -> None:
    """Remove a version from the catalogue.

    PIPELINE is NAME@VERSION. Its runs are kept.
    """


@command(
    "search",
    calls="hibali_cli.handlers.pipelines:search_catalogue",
    examples=[
        ("hibali pipelines search brain mask", "Find pipelines that contain both words."),
    ],
)
@click.argument("words", nargs=-1, required=True)
def search_command() -> None:
    """Search pipelines; the best match is first.

    All WORDS must occur in the name, title, tags, description or inputs. A word that occurs nowhere is replaced by the most
    similar word that does.
    """


@command(
    "show",
    calls="hibali_cli.handlers.pipelines:show_details",
    examples=[("hibali pipelines show fsl_bet", "Show the inputs and outputs of the latest fsl_bet.")],
)
@click.argument("pipeline")
def show_command() -> None:
    """Show a pipeline: inputs, command, outputs, image, and its runs by site.

    PIPELINE is NAME or NAME@VERSION; a NAME alone is the version added last. No site is queried: runs are shown as they were last observed.
    """


@command(
    "stage",
    calls="hibali_cli.handlers.pipeline_images:stage_image",
    resumes=True,
    examples=[
        ("hibali pipelines stage conform@1.0 --site juwels", "Stage its image at juwels."),
        ("hibali pipelines stage conform --site juwels --image conform.tar", "Stage another image."),
    ],
)
@click.argument("pipeline")
@click.option(
    "--site",
    "site_name",
    type=SITE,
    metavar="SITE",
    help="The site to stage it at (default: the default site).",
)
@click.option(
    "--image", default="", metavar="ARCHIVE", help="Stage this archive instead of the catalogue's image."
)
def stage_command() -> None:
    """Stage a pipeline's image at a site, ready for runs.

    The archive is uploaded to the site's cache once and converted there once, even if several commands need it at the same time;
    an image that is ready is not changed. `run` does the same for an image that is missing.
    """


@command(
    "trust",
    calls="hibali_cli.handlers.pipelines:trust_version",
    examples=[("hibali pipelines trust nib-conform@5.3.2", "Allow this version to run without a container.")],
)
@click.argument("pipeline")
def trust_command() -> None:
    """Allow a pipeline to run without a container, and to set variables such as PATH.

    PIPELINE, a NAME@VERSION, then runs with all rights of your account. The consent applies to this content only, by its digest.
    """


@command(
    "upgrade",
    calls="hibali_cli.handlers.descriptors:upgrade_descriptor",
    examples=[
        ("hibali pipelines upgrade old.json > new.json", "Convert a descriptor from schema 0.4 to 0.5."),
        (
            "hibali pipelines upgrade niwrap.json > new.json",
            "Convert one of Styx (0.5+styx); changes are named.",
        ),
    ],
)
@click.argument("file")
def upgrade_command() -> None:
    """Convert an older descriptor, or one of Styx, to the current schema.

    The result is written to stdout; FILE is not changed. If the result is not valid, its errors are shown and nothing is written.
    """


@command(
    "validate",
    calls="hibali_cli.handlers.descriptors:validate_files",
    examples=[
        ("hibali pipelines validate bet.json", "Show all errors of a descriptor."),
        ("hibali pipelines validate bet.json bet-invocation.json", "Also check an invocation of it."),
        ("hibali pipelines validate fsl_bet@1.0.0", "Check a pipeline of the catalogue."),
        ("hibali pipelines validate --strict bet.json", "Also fail on advice."),
    ],
)
@click.argument("file", metavar="FILE|NAME[@VERSION]")
@click.argument("invocation", required=False)
@click.option("--strict", is_flag=True, help="Exit 2 also when there is advice.")
def validate_command() -> None:
    """Validate a descriptor and an invocation of it.

    An argument with a slash, or that ends in .json, is a file. Any other is a pipeline of the catalogue, or a file if the catalogue has none
    of that name. Nothing is stored. All errors are shown together, with line and correction; then the exit code is 2. Advice is about
    valid descriptors that hibali would refuse to run, or that are better written differently.
    """


@command(
    "add",
    calls="hibali_cli.handlers.pipeline_images:add_image",
    resumes=True,
    examples=[
        (
            "hibali pipelines image add fsl_bet@1.0.0 --archive bet.tar",
            "Store an archive of `docker save` or `podman save` as the image of this version.",
        ),
        ("hibali pipelines image add fsl_bet --archive bet.sif", "Store a SIF for the version added last."),
    ],
)
@click.argument("pipeline")
@click.option(
    "--archive", metavar="FILE", required=True, help="A docker-archive, an OCI layout in a tar, or a SIF."
)
def image_add_command() -> None:
    """Store an archive as the image of a pipeline.

    It must be complete, and hold the image that the descriptor names. The image of a version never changes: another one is refused (8).
    Publish the pipeline to upload the image to a remote, too; sign it again, if it is signed.
    """


@command(
    "show",
    calls="hibali_cli.handlers.pipelines:show_image",
    examples=[("hibali pipelines image show fsl_bet", "Show the image, and its local file if there is one.")],
)
@click.argument("pipeline")
def image_show_command() -> None:
    """Show the image of a pipeline.

    PIPELINE is NAME or NAME@VERSION. Without an image, the exit code is 3.
    """


image_command = command_group(
    "image",
    commands=(
        image_add_command,
        image_show_command,
    ),
    help_text="Manage the container images of pipelines, pinned by digest, and fetch them from remotes.",
)


pipelines_command = command_group(
    "pipelines",
    section=Section.PIPELINES,
    commands={
        "The catalogue": (
            add_command,
            list_command,
            search_command,
            show_command,
            diff_command,
            validate_command,
            upgrade_command,
            deprecate_command,
            remove_command,
        ),
        "Using pipelines": (
            evaluate_command,
            trust_command,
            stage_command,
            image_command,
        ),
    },
    help_text="Manage the local catalogue of Boutiques pipelines: add, show, validate, sign, publish and fetch.",
)

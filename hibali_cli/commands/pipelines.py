"""`hibali pipelines`: the catalogue of Boutiques tools."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hibali.errors import NotFoundError, UsageError
from hibali_cli.command import command, command_group
from hibali_cli.commands.pipelines_remotes import image_command, remotes_command
from hibali_cli.options import OUTPUT_FILE, Common

if TYPE_CHECKING:
    from hibali.config.model import Site
    from hibali.errors import HibaliError
    from registry.pipeline import Pipeline
    from runs.containers.base import Container
    from runs.images import Pinned, Staged


@command(
    "add",
    examples=[
        ("hibali pipelines add bet.json", "Check a descriptor and keep it under its own name and version."),
        ("hibali pipelines add bet.json --name brain-extraction", "Keep it under another name."),
        ("hibali pipelines add zenodo.3267250", "Fetch what was published on Zenodo."),
        (
            "hibali pipelines add git+https://github.com/lab/tools@v2#boutiques",
            "Take all descriptors of a repository.",
        ),
        ("hibali pipelines add bosh:", "Take what bosh has fetched on this machine."),
    ],
)
@click.argument("source")
@click.option("--name", metavar="NAME", help="Name in the catalogue, instead of the descriptor's own.")
def add_command(common: Common, source: str, name: str | None) -> int | None:
    """Check Boutiques descriptors and keep them.

    SOURCE is a file (- is standard input), a folder, an https URL, git+URL[@REF][#FOLDER], zenodo.NUMBER or a DOI of Zenodo,
    or bosh: for the cache of bosh. The same content again changes nothing; other content under the same name and version
    is refused (8). Of several, those that can be kept are; then the exit code is 6.
    """
    from hibali.errors import HibaliError, UsageError
    from hibali.text import printable
    from hibali_cli.handlers.pipelines import access_of, open_catalogue, pipeline_record
    from registry.sources import find_candidates

    catalogue = open_catalogue(common)
    added, failures = 0, list[HibaliError]()
    for candidate in find_candidates(source, access_of(common)):
        if name is not None and added + len(failures):
            raise UsageError("usage", "--name is for one descriptor, and there are several", subject=source)
        try:
            pipeline = catalogue.add(candidate.raw, name, subject=candidate.subject)
        except HibaliError as problem:
            failures.append(problem)
            continue
        added += 1
        others = [] if name is not None else catalogue.find_other_titles(pipeline)
        if others:
            common.output.warn(
                f"{pipeline.reference}: it is called '{printable(pipeline.title)}', and other versions of {pipeline.name} are called "
                f"'{printable(others[0])}'; if it is another pipeline, remove it and add it with --name"
            )
        if common.json:
            common.output.record("pipeline", pipeline_record(pipeline))
        else:
            common.output.line(pipeline.reference)
            common.output.info(f"sha256 {pipeline.digest}")
    return _judge(common, source, added, failures)


def _judge(common: Common, source: str, added: int, failures: list[HibaliError]) -> int | None:
    from hibali.errors import IncompleteError, NotFoundError

    if not added and len(failures) == 1:
        raise failures[0]
    if not added and not failures:
        raise NotFoundError("no-descriptor", "there is no Boutiques descriptor", subject=source)
    for each in failures:
        common.output.warn(f"{each.subject}: {each.message}")
    if failures:
        raise IncompleteError(
            "not-all-added", f"{len(failures)} of {added + len(failures)} were not added", subject=source
        )
    return None


@command(
    "deprecate",
    examples=[
        (
            "hibali pipelines deprecate fsl_bet@1.0.0 --successor fsl_bet@1.1.0",
            "Say what is to be used instead.",
        ),
        ('hibali pipelines deprecate fsl_bet --because "wrong units"', "Say it of all versions, and why."),
        ("hibali pipelines deprecate fsl_bet@1.0.0 --undo", "Say it no more."),
    ],
)
@click.argument("pipeline")
@click.option("--successor", metavar="PIPELINE", help="What is to be used instead, as NAME@VERSION.")
@click.option("--because", metavar="TEXT", default="", help="Why.")
@click.option("--undo", is_flag=True, help="Take it back.")
def deprecate_command(
    common: Common, pipeline: str, successor: str | None, because: str, *, undo: bool
) -> int | None:
    """Say that a pipeline should not be used any more.

    It stays in the catalogue and can be run; whoever does is told. Without a version all versions are meant.
    """
    from hibali.errors import UsageError
    from hibali_cli.handlers.pipelines import open_catalogue, pipeline_record
    from registry.catalogue_folder import Deprecation

    if undo and (successor or because):
        raise UsageError("usage", "--undo takes neither --successor nor --because", subject=pipeline)
    catalogue = open_catalogue(common)
    instead = catalogue.find(successor).reference if successor else ""
    deprecation = None if undo else Deprecation(instead, because)
    for each in catalogue.deprecate(pipeline, deprecation):
        if common.json:
            common.output.record("pipeline", pipeline_record(each, catalogue.deprecation(each)))
        else:
            common.output.line(f"{each.reference}: {deprecation or 'not deprecated'}")
    return None


@command(
    "diff",
    examples=[
        ("hibali pipelines diff fsl_bet@1.0.0 fsl_bet@1.1.0", "See what a new version asks otherwise.")
    ],
)
@click.argument("old")
@click.argument("new")
@click.option("--detailed-exit-code", is_flag=True, help="End with 10 when there are differences.")
def diff_command(common: Common, old: str, new: str, *, detailed_exit_code: bool) -> int | None:
    """Show what changed from one version to another.

    OLD and NEW are NAME@VERSION. A change that may make an invocation wrong is marked with an exclamation mark.
    """
    from hibali_cli.handlers.pipelines import show_changes
    from registry.catalogue import Catalogue
    from registry.pipeline import find_changes

    catalogue = Catalogue()
    changes = find_changes(catalogue.find(old), catalogue.find(new))
    code = 10 if changes and detailed_exit_code else 0
    show_changes(common.output, changes, code)
    return code


@command(
    "example",
    examples=[
        (
            "hibali pipelines example fsl_bet > bet-invocation.json",
            "Start an invocation with what is required.",
        ),
        ("hibali pipelines example fsl_bet --complete", "See every answer that can be given at once."),
        ("hibali pipelines example fsl_bet --ask -o bet-invocation.json", "Be asked, with TAB for files."),
    ],
)
@click.argument("pipeline")
@click.option("--complete", is_flag=True, help="Answer everything that can be answered together.")
@click.option("--ask", is_flag=True, help="Ask for every answer; each is checked at once.")
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="Write it to FILE; what stands there is only replaced after --ask has asked.",
)
def example_command(
    common: Common, pipeline: str, *, complete: bool, ask: bool, output: str | None
) -> int | None:
    """Write an invocation to start from, or with --ask the one that you mean.

    It is valid for PIPELINE, a NAME[@VERSION], but without --ask its values are made up.
    """
    from hibali.errors import UsageError
    from registry.catalogue import Catalogue
    from registry.example import make_example

    if ask and complete:
        raise UsageError("usage", "--ask and --complete exclude each other")
    found = Catalogue().find(pipeline)
    target = Path(output) if output is not None else None
    if ask:
        from hibali_cli.handlers.pipeline_example import prompt_for_invocation

        invocation, target = prompt_for_invocation(found, target)
    else:
        invocation = make_example(found, complete=complete)
        if target is not None and os.path.lexists(target):
            raise UsageError(
                "file-exists",
                "something stands there, and stays",
                subject=str(target),
                hint="Name another file.",
            )
    text = json.dumps(invocation, indent=4) + "\n"
    if target is not None:
        _write(target, text)
        common.output.info(f"{target}: written")
    if common.json:
        values = {"name": found.name, "version": found.version, "values": invocation}
        common.output.record("invocation", values)
    elif target is None:
        common.output.text(text)
    return None


def _write(path: Path, text: str) -> None:
    from hibali.files import WholeFile

    with WholeFile(path) as file:
        file.write(text.encode("ascii"))
        file.commit()


@command(
    "fetch",
    resumes=True,
    examples=[
        ("hibali pipelines fetch --from lab", "Take all that others left there."),
        ("hibali pipelines fetch fsl_bet --from lab", "Take all versions of one."),
    ],
)
@click.argument("pipelines", nargs=-1)
@click.option("--from", "remote_name", metavar="REMOTE", required=True, help="The remote to take them from.")
@click.option("--accept-rewritten", is_flag=True, help="Go on where the remote's history was rewritten.")
def fetch_command(
    common: Common, pipelines: tuple[str, ...], remote_name: str, *, accept_rewritten: bool
) -> int | None:
    """Take pipelines that other sites left at a remote.

    Everything is checked before anything is kept: a descriptor that is none, other content under a version that is known here, or
    a signature that config.toml asks for and that is missing ends with 8 or 2, and the catalogue stays as it was. Of images only what is
    known of them comes; `pipelines image get` brings their content.
    """
    from hibali_cli.handlers.pipeline_exchange import open_remote, policy_of, show_exchanged
    from hibali_cli.handlers.pipelines import open_catalogue
    from registry.exchange import fetch

    catalogue = open_catalogue(common)
    remote, seen = open_remote(common, remote_name)
    policy = policy_of(common)
    done = fetch(catalogue, remote, remote_name, seen, pipelines, policy, accept_rewritten=accept_rewritten)
    show_exchanged(common, remote_name, done)
    return None


@command("list", examples=[("hibali pipelines list", "See every pipeline and version.")])
def list_command(common: Common) -> int | None:
    """List the pipelines of the catalogue.

    Within a name, the latest added comes last.
    """
    from hibali_cli.handlers.pipelines import list_pipelines
    from registry.catalogue import Catalogue

    catalogue = Catalogue()
    return list_pipelines(
        common.output, catalogue.entries(), catalogue.deprecation, catalogue.image_digests()
    )


@command(
    "publish",
    resumes=True,
    examples=[
        ("hibali pipelines publish fsl_bet@1.0.0 --to lab", "Leave one version for others."),
        ("hibali pipelines publish --to lab", "Leave all that are in the catalogue."),
    ],
)
@click.argument("pipelines", nargs=-1)
@click.option("--to", "remote_name", metavar="REMOTE", required=True, help="The remote to leave them at.")
def publish_command(common: Common, pipelines: tuple[str, ...], remote_name: str) -> int | None:
    """Leave pipelines at a remote for other sites.

    PIPELINES are NAME or NAME@VERSION; none means all. What is there stays; other content under the same name and version
    is refused (8), and then nothing was published. The content of an image goes first, where the remote has a place for images
    and does not have it yet.
    """
    from hibali.errors import IncompleteError
    from hibali.files import account_names
    from hibali_cli.handlers.pipeline_exchange import open_image_store, open_remote, show_exchanged
    from hibali_cli.handlers.pipelines import open_catalogue
    from registry.exchange import publish

    catalogue = open_catalogue(common)
    remote, seen = open_remote(common, remote_name)
    wanted = [catalogue.find(each) for each in pipelines] or catalogue.all()
    by = account_names()[1]
    image_store = open_image_store(common, remote_name)
    done = publish(catalogue, remote, remote_name, seen, wanted, by, image_store)
    show_exchanged(common, remote_name, done)
    missing = [each.pipeline.reference for each in done if each.content == "missing"]
    if missing:
        raise IncompleteError(
            "image-not-here",
            f"the content of {len(missing)} images is neither there nor here",
            subject=", ".join(missing[:5]),
            hint="Get it where it is, and publish again: hibali pipelines image get NAME --from REMOTE",
        )
    return None


@command("remove", examples=[("hibali pipelines remove fsl_bet@1.0.0", "Forget one version of a pipeline.")])
@click.argument("pipeline")
def remove_command(common: Common, pipeline: str) -> int | None:
    """Remove a version from the catalogue.

    PIPELINE is NAME@VERSION. Runs that were made with it are kept.
    """
    from hibali_cli.handlers.pipelines import open_catalogue
    from registry.pipeline import split_reference

    open_catalogue(common).remove(pipeline)
    name, version = split_reference(pipeline)
    if common.json:
        common.output.record("pipeline-change", {"name": name, "version": version, "change": "removed"})
    else:
        common.output.info(f"{name}@{version} removed")
    return None


@command("search", examples=[("hibali pipelines search brain mask", "Find what both words occur in.")])
@click.argument("words", nargs=-1, required=True)
def search_command(common: Common, words: tuple[str, ...]) -> int | None:
    """Find pipelines by words, best first.

    All WORDS have to occur in the name, title, tags, description or inputs; one that occurs nowhere is taken for what
    is nearest to it.
    """
    from hibali_cli.handlers.pipelines import list_pipelines
    from registry.catalogue import Catalogue
    from registry.search import Summary, search_pipelines

    catalogue = Catalogue()
    sound = [each for each in catalogue.entries() if isinstance(each, Summary)]
    found = (each for each, _ in search_pipelines(sound, words))
    return list_pipelines(common.output, found, catalogue.deprecation, catalogue.image_digests())


@command(
    "show", examples=[("hibali pipelines show fsl_bet", "See what the latest fsl_bet asks for and leaves.")]
)
@click.argument("pipeline")
def show_command(common: Common, pipeline: str) -> int | None:
    """Show what a pipeline asks for, runs and leaves, and where you have run it.

    PIPELINE is NAME or NAME@VERSION; a NAME alone is the version added last. No site is asked: runs are shown as they were last heard of.
    """
    from hibali_cli.handlers.pipelines import (
        describe_image,
        full_record,
        image_fields,
        show_pipeline,
        show_sites,
    )
    from registry.catalogue import Catalogue
    from runs.store import runs_by_site, runs_of

    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    trusted, deprecation = catalogue.is_trusted(found.digest), catalogue.deprecation(found)
    sites = runs_by_site(runs_of(found.digest))
    image = catalogue.image(found)
    here = image is not None and catalogue.images.local_file(found, image) is not None
    if common.json:
        fields = image_fields(image, here=here) if image else None
        runs = [each.to_record() for each in sites]
        common.output.record(
            "pipeline", {**full_record(found, deprecation, fields, trusted=trusted), "runs": runs}
        )
    else:
        words = describe_image(image, here=here) if image else ""
        show_pipeline(common.output, found, deprecation, words, trusted=trusted)
        show_sites(common.output, sites)
    return None


@command(
    "sign",
    examples=[
        (
            "hibali pipelines sign fsl_bet@1.0.0 --key ~/.ssh/id_ed25519",
            "Vouch for a version with your ssh key.",
        ),
    ],
)
@click.argument("pipeline")
@click.option(
    "--key",
    metavar="FILE",
    required=True,
    help="An ssh key; a public one where an agent holds the other half.",
)
def sign_command(common: Common, pipeline: str, key: str) -> int | None:
    """Vouch for a version with an ssh key.

    Name, version, digest and the digest of its image are signed: sign again when an image was added. The signature goes along when it is published.
    """
    from hibali_cli.handlers.pipeline_exchange import policy_of
    from hibali_cli.handlers.pipelines import open_catalogue, pipeline_record
    from registry.signature import sign, signed_text

    catalogue = open_catalogue(common)
    found = catalogue.find(pipeline)
    image = catalogue.images.record(found.name, found.version)
    covered = image.digest if image else ""
    text = signed_text(found, covered)
    file, signature = sign(text, Path(key).expanduser(), policy_of(common).scratch, covered)
    catalogue.sign(found, file, signature)
    if common.json:
        common.output.record("pipeline", pipeline_record(found, catalogue.deprecation(found)))
    else:
        common.output.line(f"{found.reference}: signed")
    return None


@command(
    "stage",
    resumes=True,
    examples=[
        ("hibali pipelines stage conform@1.0 --site juwels", "Bring its image there, ready to start."),
        ("hibali pipelines stage conform --site juwels --image conform.tar", "Bring an image of your own."),
    ],
)
@click.argument("pipeline")
@click.option("--site", "site_name", required=True, metavar="SITE", help="Bring it there.")
@click.option("--image", default="", metavar="ARCHIVE", help="This archive, not the catalogue's.")
def stage_command(common: Common, *, pipeline: str, site_name: str, image: str) -> int | None:
    """Bring a pipeline's image to a site and make of it what runs start there.

    The archive goes into the site's cache once, and is converted there once, whoever else asks at the same time; what is
    ready is not touched again. `run` does the same for what is not there yet.
    """
    from hibali_cli.handlers.pipelines import pinned_image
    from hibali_cli.handlers.run_sites import run_site
    from registry.catalogue import Catalogue
    from runs.containers.base import load_container

    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    site = run_site(common, site_name)
    container = load_container(site.container.name)
    staged = _stage(common, found, site, container, image, pinned_image(catalogue, found))
    if common.json:
        record = {
            "pipeline": found.reference,
            "site": site.name,
            "container": container.name,
            "id": staged.id,
        }
        made = {"path": staged.path or None, "digest": staged.digest or None, "fresh": staged.fresh}
        common.output.record("staged-image", {**record, **made})
    else:
        done = "is ready" if staged.fresh else "was ready"
        location = f": {staged.path}" if staged.path else ""
        common.output.info(f"{found.reference}: {staged.id} {done} at {site.name}{location}")
    return None


def _stage(
    common: Common, pipeline: Pipeline, site: Site, container: Container, archive: str, pinned: Pinned | None
) -> Staged:
    from pathlib import Path

    from hibali.errors import NotFoundError, UsageError
    from hibali_cli.handlers.run_sites import opener
    from hibali_cli.progress import listening
    from runs.images import open_images, stage_archive, stage_pinned
    from runs.stage import Synchroniser

    if not container.isolates:
        raise UsageError("no-image", f"{container.name} runs without images", subject=site.name)
    name = container.image_name(pipeline.container)
    if not archive and pinned is None:
        raise NotFoundError(
            "no-image",
            "the catalogue has no image of this pipeline",
            subject=pipeline.reference,
            hint=f"FILE is of docker save: hibali pipelines image add {pipeline.reference} --archive FILE",
        )
    with listening(common, f"stage {pipeline.reference} at {site.name}") as on_event:
        host = opener(site, on_event)()
        try:
            images = open_images(host, site, container, Synchroniser(), on_event)
            if archive:
                return stage_archive(pipeline, name, images, Path(archive))
            assert pinned is not None
            return stage_pinned(name, images, pinned)
        finally:
            host.close()


@command(
    "trust",
    examples=[("hibali pipelines trust nib-conform@5.3.2", "Let this content run without a container.")],
)
@click.argument("pipeline")
def trust_command(common: Common, pipeline: str) -> int | None:
    """Let a pipeline run without a container, and set variables such as PATH.

    PIPELINE, a NAME@VERSION, then runs as you, with all your rights. The consent is for this very content, by its digest.
    """
    from hibali_cli.handlers.pipelines import pipeline_record
    from registry.catalogue import Catalogue

    found = Catalogue().trust(pipeline)
    if common.json:
        common.output.record("pipeline", {**pipeline_record(found), "trusted": True})
    else:
        common.output.info(f"{found.reference} may run without a container (sha256 {found.digest})")
    return None


@command(
    "upgrade",
    examples=[
        ("hibali pipelines upgrade old.json > new.json", "Write a descriptor of schema 0.4 as schema 0.5."),
    ],
)
@click.argument("file")
def upgrade_command(common: Common, file: str) -> int | None:
    """Write an older descriptor in the schema of today.

    The result goes to stdout. FILE stays as it is; what is still wrong with the result is named, and nothing is written then.
    """
    import json

    from hibali.documents import read_json_file
    from registry.boutiques_schema import upgrade_document
    from registry.descriptor import read_descriptor

    upgraded = upgrade_document(read_json_file(Path(file)), file)
    text = json.dumps(upgraded, indent=4)
    read_descriptor(text.encode(), file)
    if common.json:
        common.output.record("descriptor", {"file": file, "descriptor": upgraded})
    else:
        common.output.text(text + "\n")
    return None


@command(
    "validate",
    examples=[
        ("hibali pipelines validate bet.json", "Name everything that is wrong with a descriptor."),
        ("hibali pipelines validate bet.json bet-invocation.json", "Check an invocation against it, too."),
        ("hibali pipelines validate fsl_bet@1.0.0", "Check one of the catalogue."),
        ("hibali pipelines validate --strict bet.json", "Accept nothing that has to be excused."),
    ],
)
@click.argument("file", metavar="FILE|NAME[@VERSION]")
@click.argument("invocation", required=False)
@click.option("--strict", is_flag=True, help="End with 2 where there is advice, too.")
def validate_command(common: Common, file: str, invocation: str | None, *, strict: bool) -> int | None:
    """Check a descriptor and an invocation of it.

    A word with a slash, or that ends in .json, is a file. Any other is a pipeline of the catalogue, and a file where the catalogue has none of that name.
    Nothing is kept. What is wrong is named all at once, with its line and what to write instead; then the exit code is 2.
    What would be refused to run, or is better written otherwise, is advice.
    """
    from registry.descriptor import find_advice, find_repeated_advice, read_descriptor
    from registry.invocation import read_invocation
    from registry.problems import DescriptorError, InvocationError, Problem, read_file_bytes

    raw, file = _read(common, file)
    pipeline = read_descriptor(raw, file)
    advice = find_advice(raw, file)
    if strict and advice:
        raise DescriptorError(advice, subject=file)
    answer_advice: list[Problem] = []
    if invocation is not None:
        checked = read_invocation(pipeline, Path(invocation))
        answer_advice = find_repeated_advice(read_file_bytes(Path(invocation)))
        answer_advice += [
            Problem(each, f"its default does not apply beside {other}", advice=True)
            for each, other in checked.withdrawn.items()
        ]
        if strict and answer_advice:
            raise InvocationError(answer_advice, reference=pipeline.reference, subject=invocation)
    if common.json:
        common.output.record(
            "validation",
            {
                "file": file,
                "invocation": invocation,
                "name": pipeline.name,
                "version": pipeline.version,
                "digest": pipeline.digest,
                "valid": True,
                "advice": [each.to_record() for each in advice],
                "invocation_advice": [each.to_record() for each in answer_advice],
            },
        )
    else:
        for each in advice:
            common.output.warn(f"{file}: advice: {each}")
        common.output.line(f"{file}: valid ({pipeline.reference})")
        for each in answer_advice:
            common.output.warn(f"{invocation}: advice: {each}")
        if invocation is not None:
            common.output.line(f"{invocation}: valid")
    return None


def _read(common: Common, word: str) -> tuple[bytes, str]:
    """The bytes of the descriptor that is meant, and what to call it.

    Raises `NotFoundError` for what is neither a file nor in the catalogue.
    """
    from registry.catalogue import Catalogue
    from registry.problems import read_file_bytes

    path = Path(word)
    if "/" in word or word.endswith(".json"):
        return read_file_bytes(path), word
    try:
        pipeline = Catalogue().find(word)
    except (NotFoundError, UsageError) as problem:
        if path.exists():
            return read_file_bytes(path), word
        if isinstance(problem, NotFoundError):
            problem.hint = f"{problem.hint} A file: ./{word}".strip()
        raise
    if path.exists():
        common.output.warn(f"{pipeline.reference} of the catalogue is checked; the file is ./{word}")
    return pipeline.raw, pipeline.reference


pipelines_command = command_group(
    "pipelines",
    commands=(
        add_command,
        deprecate_command,
        diff_command,
        example_command,
        fetch_command,
        list_command,
        publish_command,
        remove_command,
        search_command,
        show_command,
        sign_command,
        stage_command,
        trust_command,
        upgrade_command,
        validate_command,
        image_command,
        remotes_command,
    ),
    help_text="Keep Boutiques pipelines in the local catalogue, look at them and check invocations.",
)

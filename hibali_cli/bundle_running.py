"""What `bundle run` does at the peer: check, keep, stage, run, collect, compare."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hibali.errors import Exit, IncompleteError, NotFoundError, RefusedError, RunFailedError, UsageError
from hibali.files import write_atomic
from hibali.locations import read_location, read_target
from hibali.text import printable
from hibali_cli.bundle_record import show_comparison
from hibali_cli.catalogue import open_catalogue
from hibali_cli.exchanging import policy_of
from hibali_cli.launching import read_request, require_consent
from hibali_cli.options import Common
from hibali_cli.output import flush_results
from hibali_cli.progress import listening
from hibali_cli.run_record import find_failure
from hibali_cli.run_site import opener, run_site, wait_for_runs
from registry.exchange import judge_image
from registry.images.record import FILE as IMAGE
from registry.images.record import write_record
from registry.remotes.base import Arrival
from runs.bundles.archive import Archive
from runs.bundles.create import real_place, take_content
from runs.bundles.read import Bundle, below, check_contents, forget, place_of, read_bundle, unpack
from runs.collect import collect
from runs.compare import Compared, Fate, compare_outputs
from runs.containers.base import load_container
from runs.images import Pinned
from runs.launch import launch
from runs.model import Input, Run, State
from runs.outputs import hash_outputs
from runs.request import Request, with_job_proxy
from runs.send import no_room
from runs.stage import Synchroniser
from runs.store import Book

if TYPE_CHECKING:
    from hibali.events import Listener
    from registry.catalogue import Catalogue
    from transfers.journal import Receipt


@dataclass(frozen=True, slots=True)
class Asked:
    """What the command line said."""

    file: str
    site: str
    target: str | None
    places: tuple[str, ...]
    name: str | None
    image: str
    wait: bool
    new: bool


def run_bundle(common: Common, asked: Asked) -> int:
    """Repeat a bundle's run; returns the exit code. Raises what stopped it."""
    site = run_site(common, asked.site)
    book = Book()
    with listening(common, f"bundle {asked.file}") as tell:
        with Archive(Path(asked.file)) as archive:
            bundle = read_bundle(archive, asked.name)
            places = _places(bundle, asked.places)
            check_contents(archive, bundle)
            catalogue = open_catalogue(common)
            _keep(common, catalogue, bundle, asked.file)
            require_consent(common, catalogue, bundle.pipeline, load_container(site.container))
            turn = f"bundle-{bundle.content}-{site.name}"
            with book.claim(turn, tell=tell):
                folder = unpack(archive, bundle, site.name)
                run = _launch(common, _request(common, asked, bundle, folder, places, tell), book, tell)
        if not asked.wait:
            return _leave(common, run)
        [run] = wait_for_runs(common, book, [run], tell)
        if run.state is State.LOST:
            raise find_failure(run) or RunFailedError("run-lost", "the run is lost", about=run.id)
        receipt, compared = _collect(common, asked, bundle, run, tell)
        with book.claim(turn, tell=tell):
            forget(bundle, site.name)
    return _tell(common, asked, bundle, run, receipt, compared)


def _keep(common: Common, catalogue: Catalogue, bundle: Bundle, about: str) -> None:
    """The pipeline into the catalogue, under the rules for what comes from elsewhere."""
    pipeline = bundle.pipeline
    beside, image = dict(bundle.signatures), ""
    if bundle.image is not None:
        beside[IMAGE] = write_record(bundle.image)
        image = judge_image(pipeline, beside[IMAGE], printable(about))
    here = catalogue.beside(pipeline.name, pipeline.version)
    known = catalogue.pins().get((pipeline.name, pipeline.version)) == pipeline.digest
    if not known or (IMAGE in beside and IMAGE not in here):
        policy_of(common).check(pipeline, bundle.signatures, printable(about), image)
    catalogue.take([Arrival(pipeline, beside)], f"Take {pipeline.reference} from a bundle")


def _places(bundle: Bundle, given: Sequence[str]) -> dict[int, str]:
    """Where the inputs lie that did not travel, by number. Raises `UsageError`, and `NotFoundError` with all that is not said."""
    away = [(number, each) for number, each in enumerate(bundle.record.inputs) if not each.included]
    places: dict[int, str] = {}
    for text in given:
        identifier, separator, location = text.partition("=")
        number = next((n for n, each in away if each.id == identifier and n not in places), None)
        if not separator or not location or number is None:
            raise UsageError(
                "bad-input",
                "it names no input that is not in the bundle",
                about=f"--input {text}",
                hint="Write --input ID=LOCATION; `hibali bundle show FILE` says which are not in it.",
            )
        places[number] = location
    lacking = [each for number, each in away if number not in places]
    if lacking:
        lines = [f"{each.id}, which lay at {each.location}" for each in lacking]
        raise NotFoundError(
            "inputs-not-included",
            "\n".join(["the bundle has only the digests of these inputs", *lines]),
            hint=" ".join(f"--input {each.id}=LOCATION" for each in lacking[:3]),
        )
    return places


def _request(
    common: Common, asked: Asked, bundle: Bundle, folder: Path, places: Mapping[int, str], tell: Listener
) -> Request:
    """The request of `hibali run` with the inputs as they lie now, each compared with its digests."""
    located = {
        number: str(place_of(folder, each)) if each.included else places[number]
        for number, each in enumerate(bundle.record.inputs)
    }
    answers = folder / "answers.json"
    write_atomic(answers, json.dumps(_values(bundle, located)).encode("ascii"))
    request = read_request(common, bundle.pipeline, answers, asked.site, asked.image, identify=True)
    for number, each in enumerate(bundle.record.inputs):
        identity = request.identities[number]
        same = (
            identity is not None and identity.files == below(bundle.inputs[number])
            if each.included
            else _is_same(common, bundle, number, places[number], tell)
        )
        if not same:
            raise RefusedError(
                "input-differs",
                f"this is not the input {each.id} that the bundle is of: its digests are others",
                about=printable(located[number]),
                hint=f"Remove {folder} and type the same line again." if each.included else "",
            )
    return replace(_with_image(request, bundle, folder, asked.image), new=asked.new)


def _with_image(request: Request, bundle: Bundle, folder: Path, given: str) -> Request:
    """What `--image` said; else the image in the bundle, the one that the catalogue has by now, or the one of the bundle's run."""
    if given or not request.container.isolates:
        return replace(request, image=given)
    if bundle.image is not None and bundle.image_file:
        archive = folder / bundle.image_file
        return replace(request, pinned=Pinned(bundle.image, lambda: archive))
    if request.pinned is None and bundle.record.run is not None:
        return replace(request, image=bundle.record.run.image)
    return request


def _values(bundle: Bundle, located: Mapping[int, str]) -> dict[str, Any]:
    """The answers, with files where they lie now."""
    values = dict(bundle.values)
    for identifier in {each.id for each in bundle.record.inputs}:
        own = [located[n] for n, each in enumerate(bundle.record.inputs) if each.id == identifier]
        values[identifier] = own if isinstance(values[identifier], list) else own[0]
    return values


def _is_same(common: Common, bundle: Bundle, number: int, location: str, tell: Listener) -> bool:
    """Whether what lies there is file by file what the bundle's digests say, whatever its own name is."""
    recorded = bundle.record.inputs[number]
    place = real_place(read_location(location, common.settings()))
    content = take_content(Input(recorded.id, number, location), place, tell)
    return content.folder == (recorded.type == "folder") and below(content.digests) == below(
        bundle.inputs[number]
    )


def _launch(common: Common, request: Request, book: Book, tell: Listener) -> Run:
    request = with_job_proxy(request)
    far = opener(request.site, tell)()
    try:
        return launch(request, far, book, Synchroniser(), began=lambda run: _announce(common, run), tell=tell)
    finally:
        far.close()


def _announce(common: Common, run: Run) -> None:
    """The id comes out as soon as there is one, whatever happens next."""
    if not common.json:
        common.output.say(f"run {run.id}")


def _leave(common: Common, run: Run) -> int:
    """Only submitted: the same line without --no-wait goes on from here. Raises `TryLaterError` where the queue has no room."""
    if common.json:
        common.output.record("run", run.to_record())
    else:
        common.output.line(run.id)
    if run.waits:
        flush_results()
        raise no_room(run)
    if not common.json:
        common.output.say(f"{run.state} at {run.site}; the same line without --no-wait compares its outputs.")
    return int(Exit.DONE)


def _collect(
    common: Common, asked: Asked, bundle: Bundle, run: Run, tell: Listener
) -> tuple[Receipt, list[Compared]]:
    """Pull what the run left, verified, and compare its digests with the recorded ones."""
    site = run_site(common, run.site)
    target = read_target(asked.target or f"./{run.id}", common.settings())
    receipt = collect(run, site, target, Book(), tell)
    return receipt, compare_outputs(bundle.outputs, hash_outputs(run, site).digests)


def _tell(
    common: Common, asked: Asked, bundle: Bundle, run: Run, receipt: Receipt, compared: Sequence[Compared]
) -> int:
    """The comparison; from then on the same line starts a new run. Raises how it ended, where people are told."""
    differs = bundle.record.run is not None and any(each.fate is not Fate.EQUAL for each in compared)
    code = _judge(receipt, differs=differs)
    show_comparison(common, run, bundle, receipt.target, compared, int(code))
    flush_results()
    if not run.reported:
        Book().note(run.id, "reported")
    failure = find_failure(run)
    if differs and code is Exit.INCOMPLETE:
        failure = IncompleteError(
            "outputs-differ", "not every output is what the bundle says", about=printable(asked.file)
        )
    if failure is not None and not common.json:
        raise failure
    return int(code)


def _judge(receipt: Receipt, *, differs: bool) -> Exit:
    """RUN_FAILED before all else, then whatever kept outputs from coming, then the comparison."""
    if receipt.exit is Exit.DONE and differs:
        return Exit.INCOMPLETE
    return receipt.exit

"""Podman 4: own user, no network, no capabilities, inputs read-only, images by id (podman-run(1))."""

from __future__ import annotations

import json
import re
import shlex

from hibali.errors import TryLaterError, UsageError
from hibali.text import printable
from registry.pipeline import Container as Wanted
from runs.container import Image, Task, wrong_kind
from transfers.far import Finished

_ID = re.compile(r"[0-9a-f]{64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}")
_HUBS = {"", "docker.io", "index.docker.io", "registry.hub.docker.com"}
# Rootless, the user keeps the own number inside; root has no such mapping and is root without capabilities.
_OWN_USER = """\
if [ "$(id -u)" = 0 ]; then set -- --user=0:0; else set -- --userns=keep-id; fi
"""


class Podman:
    """Docker images, started without a daemon."""

    name = "podman"
    isolates = True

    def image_name(self, wanted: Wanted | None) -> str:
        """`image` with its `index` before it, where that is a host; a `docker://` before either is dropped."""
        if wanted is None:
            raise UsageError(
                "no-image",
                "the pipeline names no container image",
                hint='Add `container-image` to its descriptor, or run it at a site with [container] name = "bare".',
            )
        from_docker = wanted.image.startswith("docker://") or wanted.index.startswith("docker://")
        if wanted.kind != "docker" and not (wanted.kind == "singularity" and from_docker):
            raise wrong_kind(self.name, wanted)
        image = wanted.image.removeprefix("docker://")
        index = wanted.index.removeprefix("docker://").strip("/")
        name = image if index in _HUBS else f"{index}/{image}"
        if not _IMAGE.fullmatch(name):
            raise UsageError("bad-image", "this is not the name of an image", about=printable(name))
        return name

    def start(self, task: Task) -> str:
        """One long line; mounts are CSV, so that any path can be written."""
        words = [
            "podman",
            "run",
            "--rm",
            f"--name=hibali-{task.run}",
            "--pull=never",
            "--network=none",
            "--cap-drop=all",
            "--security-opt=no-new-privileges",
            "--http-proxy=false",
            "--log-driver=none",
            f"--workdir={task.sees_work}",
            _mount(task.work, task.sees_work, read_only=False),
        ]
        if task.words is None:
            words.append(_mount(task.command, task.command, read_only=True))
            words.append(f"--entrypoint={task.shell}")
        words += [_mount(bind.source, bind.target, read_only=True) for bind in task.binds]
        if task.memory:
            words.append(f"--shm-size={task.memory}")
        environment = {"HOME": task.sees_work, **task.environment}
        words += [f"--env={name}={value}" for name, value in environment.items()]
        after = [task.image, *((task.command,) if task.words is None else task.words)]
        return f'{_OWN_USER}exec {_quoted(words)} "$@" {_quoted(after)}'

    def image_words(self, name: str) -> tuple[str, ...]:
        """`inspect` looks at what is stored there and pulls nothing."""
        return ("podman", "image", "inspect", "--format=json", name)

    def read_image(self, finished: Finished) -> Image | None:
        """Its id is what is started, its digests are what a descriptor can name."""
        if finished.exit_code == 127:
            raise UsageError(
                "no-runtime",
                "there is no podman at the site",
                hint="Correct [container] name, or PATH of non-interactive logins there.",
            )
        if finished.exit_code != 0:
            if b"no such image" in finished.stderr or b"image not known" in finished.stderr:
                return None
            said = printable(finished.stderr.strip()[-500:])
            raise TryLaterError("runtime-silent", f"podman gave no answer: {said}")
        try:
            found = json.loads(finished.stdout)[0]
            identifier = str(found["Id"]).removeprefix("sha256:")
            names = [str(found.get("Digest", "")), *(str(each) for each in found.get("RepoDigests") or ())]
        except (ValueError, LookupError, TypeError, AttributeError):
            raise TryLaterError("runtime-silent", "podman gave an answer that cannot be read") from None
        if not _ID.fullmatch(identifier):
            raise TryLaterError("runtime-silent", "podman gave an image without an id")
        digests = {digest for name in names for digest in _DIGEST.findall(name)}
        return Image(identifier, tuple(sorted(digests)))

    def load_words(self, archive: str) -> tuple[str, ...]:
        """Docker and OCI archives."""
        return ("podman", "load", "--quiet", f"--input={archive}")


def _mount(source: str, target: str, *, read_only: bool) -> str:
    fields = ["type=bind", f"src={source}", f"dst={target}", "bind-propagation=rprivate"]
    if read_only:
        fields.append("ro=true")
    return "--mount=" + ",".join(_csv(each) for each in fields)


def _csv(field: str) -> str:
    """One field of RFC 4180, quoted where it has to be."""
    if any(letter in field for letter in ',"\n\r'):
        return '"' + field.replace('"', '""') + '"'
    return field


def _quoted(words: list[str]) -> str:
    return " ".join(shlex.quote(word) for word in words)


CONTAINER = Podman()

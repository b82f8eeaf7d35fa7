"""Start tools in Shifter 18.03 and later (shifter(1), shifterimg(1))."""

from __future__ import annotations

import re

from hibali.errors import UsageError
from hibali.text import printable
from registry.pipeline import Container as Wanted
from runs.containers.base import (
    Container,
    Image,
    Task,
    docker_name,
    handed_on,
    quoted,
    require_program,
    unsafe_path,
)
from transfers.remote.host import CommandResult

_ID = re.compile(r"[0-9a-f]{64}")
# It drops any other character from a path it is given, without a word (userInputPathFilter in its utility.c).
_PATH = re.compile(r"[A-Za-z0-9_.+/-]*")

# It is not looked up in a PATH that a descriptor sets.
_FOUND = "shifter=$(command -v shifter) || exit 127\n"


class Shifter(Container):
    """Docker images that were pulled into the site's gateway (`shifterimg pull`), by their id there.

    It binds nothing to a path that the image does not have, and shows what the site mounts into every container: the run's
    folder has to be among that. So the tool can write whatever the user can there.
    """

    name = "shifter"
    binds_inputs = False
    formats: frozenset[str] = frozenset()  # images come in by the gateway alone, which pulls them
    gpus = frozenset({"nvidia", "amd"})

    def image_name(self, wanted: Wanted | None) -> str:
        """Return Docker's name of an image."""
        return docker_name(self.name, wanted)

    def start(self, task: Task) -> str:
        """The whole environment is handed on, so that it gets none but the tool's own; so no SHIFTER_* of the site's, either.

        The modules that a site turns on for all are left to tasks that need its MPI; GPUs come by one of the name `gpu`.
        """
        if task.sees_work != task.work:
            raise UsageError(
                "bad-working-directory",
                "Shifter cannot mount the work folder at another path",
                subject=printable(task.sees_work),
                hint="Run it at a site with another container runtime, or remove `working-directory` from the descriptor.",
            )
        for path in (task.work, task.command):
            if not _PATH.fullmatch(path):
                raise unsafe_path(path, "other characters than letters, digits and _.+/-")
        argv = [f"--image=id:{task.image}", f"--workdir={task.sees_work}"]
        if task.gpus:
            argv.append("--module=gpu")
        elif task.tasks == 1:
            argv.append("--module=none")
        if task.argv is None:
            argv += ["--", task.shell, task.command]
        else:
            argv += ["--entrypoint", "--", *task.argv]
        environment = {"HOME": task.sees_work, **task.environment}
        variables = [f"{name}={value}" for name, value in environment.items()]
        known = handed_on(task, 'set -- "$@" "$name=$value"')
        head = f'set --\n{known}{_FOUND}exec env -i PATH="$PATH" "$@"'
        return f'{head} {quoted(variables)} "$shifter" {quoted(argv)}'

    def image_argv(self, name: str) -> tuple[str, ...]:
        """Query the gateway, which accepts an id as a name."""
        return ("shifterimg", "lookup", f"docker:{name.removeprefix('sha256:')}")

    def read_image(self, finished: CommandResult, name: str) -> Image | None:
        """Parse the id of an available image."""
        del name
        require_program("shifterimg", finished)
        lines = finished.stdout.decode("utf-8", "replace").split()
        found = next((line for line in lines if _ID.fullmatch(line)), None)
        return Image(found) if found and finished.exit_code == 0 else None

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Return (): there are no archives."""
        del archive, result, kind, image
        return ()


CONTAINER = Shifter()

"""Start tools in Shifter 18.03 and later (shifter(1), shifterimg(1))."""

from __future__ import annotations

import re

from hibali.errors import UsageError
from hibali.text import printable
from runs.containers.base import (
    Container,
    Image,
    Task,
    forwarded_variables,
    quoted,
    require_program,
    unsafe_path,
)
from transfers.remote.host import CommandResult

_ID = re.compile(r"[0-9a-f]{64}")
# Shifter silently removes any other character from a path (userInputPathFilter in its utility.c).
_PATH = re.compile(r"[A-Za-z0-9_.+/-]*")

# Find shifter before a descriptor can set PATH.
_FOUND = "shifter=$(command -v shifter) || exit 127\n"


class Shifter(Container):
    """Docker images that were pulled into the site's gateway (`shifterimg pull`), by their id there.

    Shifter cannot bind to a path that the image does not have, but mounts the site's folders into every container: the
    run's folder must be in one of them. So the tool can write wherever the user can in these folders.
    """

    name = "shifter"
    binds_inputs = False
    formats: frozenset[str] = frozenset()  # only the gateway adds images, by pulling them
    gpus = frozenset({"nvidia", "amd"})

    def start(self, task: Task) -> str:
        """Return the line, with only the tool's environment: Shifter passes all of it to the tool, and reads SHIFTER_*.

        Only tasks that need MPI load the modules that a site enables by default; the module `gpu` adds GPUs.
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
        known = forwarded_variables(task, 'set -- "$@" "$name=$value"')
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
        """Return (): the gateway cannot load archives."""
        del archive, result, kind, image
        return ()


CONTAINER = Shifter()

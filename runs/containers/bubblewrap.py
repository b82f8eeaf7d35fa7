"""Start tools in Bubblewrap 0.5 and later (bwrap(1))."""

from __future__ import annotations

from runs.containers.base import (
    DOCKER_ARCHIVE,
    OCI_ARCHIVE,
    PATH,
    SHARED_MEMORY,
    Container,
    Task,
    forwarded_variables,
    quoted,
    without_network,
)

_OFFLINE = without_network("--unshare-net")

# Kernel files that root can write without any capability, as in podman's list.
_KERNEL = ("/proc/sys", "/proc/sysrq-trigger", "/proc/irq", "/proc/bus", "/proc/fs", "/proc/asound")


class Bubblewrap(Container):
    """Unpacked Docker images, started without daemon and network; every path is a separate argument."""

    name = "bubblewrap"
    programs = ("bwrap", "tar")
    confines = True
    place = "/mnt"  # the image is read-only, and only below this folder can anything be bound
    form = "image"
    formats = frozenset({DOCKER_ARCHIVE, OCI_ARCHIVE})
    flattens = True
    gpus = frozenset({"amd"})  # NVIDIA needs the driver's libraries of the host

    def start(self, task: Task) -> str:
        """Return the line."""
        argv = [
            "bwrap",
            *(f"--unshare-{each}" for each in ("user-try", "pid", "uts", "cgroup-try")),
            *(("--unshare-ipc",) if task.tasks == 1 else ()),
            "--die-with-parent",
            "--new-session",
            "--cap-drop",
            "ALL",
            "--clearenv",
            *("--ro-bind", task.image, "/"),
            *("--dev", "/dev"),
            *_devices(task),
            *("--proc", "/proc"),
            *(argument for path in _KERNEL for argument in ("--ro-bind-try", path, path)),
            *("--tmpfs", "/tmp"),  # noqa: S108 - the tool's own
            *("--tmpfs", f"{self.place}/1"),
        ]
        for bind in task.binds:
            argv += ["--ro-bind", bind.source, bind.target]
        if task.argv is None:
            argv += ["--ro-bind", task.command, task.sees_command]
        argv += ["--remount-ro", f"{self.place}/1", "--bind", task.work, task.sees_work]
        environment = {"PATH": PATH, **task.image_environment, "HOME": task.sees_work, **task.environment}
        for name, value in environment.items():
            argv += ["--setenv", name, value]
        argv += ["--chdir", task.sees_work]
        after = [task.shell, task.sees_command] if task.argv is None else [*task.entrypoint, *task.argv]
        known = forwarded_variables(task, 'set -- "$@" --setenv "$name" "$value"')
        network = "set --\n" if task.tasks > 1 else _OFFLINE
        return f'{network}{known}exec {quoted(argv)} "$@" -- {quoted(after)}'

    def convert_argv(self, archive: str, result: str, kind: str, image: str) -> tuple[tuple[str, ...], ...]:
        """Unpack the flat tar as the user's own files; tar(1) follows no symlinks that it made."""
        del kind, image
        unpack = ("tar", "--extract", "--no-same-owner", "--delay-directory-restore")
        return (("mkdir", result), (*unpack, f"--file={archive}", f"--directory={result}"))


def _devices(task: Task) -> tuple[str, ...]:
    """Return the GPU devices as in ROCm's guide for containers, and those that several tasks share."""
    found: tuple[str, ...] = ()
    if task.gpus:
        found += ("--dev-bind", "/dev/kfd", "/dev/kfd", "--dev-bind", "/dev/dri", "/dev/dri")
    if task.tasks > 1:
        found += ("--bind", SHARED_MEMORY, SHARED_MEMORY)
    return found


CONTAINER = Bubblewrap()

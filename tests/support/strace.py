"""Kill or fail a command at its Nth system call, with strace(1)'s fault injection."""

from __future__ import annotations

import shutil

from tests.support.requirements import skip_or_fail

# All system calls that a kernel and a libc use for the same operation.
RENAME = "rename,renameat,renameat2"
SYNC = "fsync,fdatasync,syncfs"
MAKE_FOLDER = "mkdir,mkdirat"
UNLINK = "unlink,unlinkat,rmdir"
LINK = "link,linkat,symlink,symlinkat"
WRITE = "write,writev,pwrite64"
TIMES = "utimensat,fchmod,fchmodat"


def require_strace() -> None:
    if shutil.which("strace") is None:
        skip_or_fail("strace is missing")


def kill_at(calls: str, number: int) -> list[str]:
    """Return the arguments before a command that kill any of its processes at its `number`th such call."""
    return _strace(f"{calls}:signal=SIGKILL:when={number}")


def fail_at(calls: str, error: str, when: str) -> list[str]:
    """Return arguments that let such calls fail with `error`; `when` as in strace(1) (`3`, `3+`)."""
    return _strace(f"{calls}:error={error}:when={when}")


def _strace(fault: str) -> list[str]:
    # without --seccomp-bpf: with it some kernels silently inject nothing
    calls = fault.partition(":")[0]
    return [
        "strace",
        "-f",
        "-qqq",
        "-o",
        "/dev/null",
        "-e",
        f"trace={calls}",
        "-e",
        f"inject={fault}",
    ]

"""Write the scripts of a run: the job script, dependency checks, and checks of required outputs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hibali.errors import UsageError
from runs.containers.base import Bind, Container, Task
from runs.model import OUTPUT_ID, Input, Output
from runs.schedulers.base import JobVariables

_RUN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{6}-[0-9a-f]{8}")
EXIT_NOT_RUN = 75  # sysexits.h EX_TEMPFAIL: the job did not execute the tool

# The exclusive mkdir is the first step: a duplicate or requeued job stops there. `exit.json` is written completely or
# not at all, outside the one folder that a container shows to the tool. A signal to all processes of the job can
# reach the tool's child first, and the tool then exits with 0: the file `cancel` shows that the end was requested before.
# A tool that a signal ended may have received it before this shell, on a busy node by milliseconds: the shell waits for its own,
# so that the record says that the tool was stopped and not that it failed.
# A tool that exited with 0 without creating a required output did not succeed: the record then has `missing` between the code and
# the signal, and the job exits with 9, so that no scheduler starts a dependent job.
# fast.sh copies the tool's files back regardless of its exit code (74 is EX_IOERR), within the remaining time: a tool
# that does not end is killed, and signals to the whole group do not reach the copying. The proxy is removed before the exit record
# is written, and by a trap if the script ends earlier.
_JOB = r"""
mask=$(umask) host=
umask 077
case "$PWD" in
  */"$run") ;;
  *) cd -- "${native_folder:-.}" ;;
esac
case "$PWD" in
  */"$run") ;;
  *) echo "hibali: this is not the folder of run $run: $PWD" >&2; exit 75 ;;
esac
job=${1:-$native_job}
job=$(printf '%s' "$job" | tr -cd '][A-Za-z0-9._:+-')
cancel_file=cancel
"""
# Change to the folder of the chunk: schedulers may start jobs elsewhere.
ENTER_CHUNK = r"""
mask=$(umask) host=
umask 077
case "$PWD" in
  */"$run/chunks/$chunk") ;;
  *) cd -- "${native_folder:-.}" ;;
esac
case "$PWD" in
  */"$run/chunks/$chunk") ;;
  *) echo "hibali: this is not the folder of chunk $chunk of run $run: $PWD" >&2; exit 75 ;;
esac
"""
# A job array starts this once for each index. The first one records the job's id for the chunk; then each changes to the folder of
# its own task. Arguments of hibali's launcher take precedence over variables, which may be those of an enclosing job.
_ARRAY = r"""
job=${1:-$native_array}
job=$(printf '%s' "$job" | sed 's/\[[0-9]*\]/[]/' | tr -cd 'A-Za-z0-9._:+[]-')
index=${2:-$native_index}
task=
case "$index" in
  ''|*[!0-9]*) ;;
  *) task=$(sed -n "${index}p" tasks) ;;
esac
case "$task" in
  ''|*[!0-9]*) echo "hibali: chunk $chunk of run $run has no task for the index $index" >&2; exit 75 ;;
esac
if mkdir started 2>/dev/null; then
  printf '%s\n' "$job" >started/job.partial && mv started/job.partial started/job || exit 75
fi
cd ../../tasks/"$task" || exit 75
run=$run/$task
runs=../../..
cancel_file=../../cancel
"""
RUN_TOOL = r"""
if ! mkdir started; then
  printf '%s\n' "$job" >>again
  echo "hibali: run $run was started before; this job does nothing" >&2
  exit 75
fi
printf '%s\n' "$job" >started/job.partial && mv started/job.partial started/job || exit 75
[ -n "${host:-}" ] || host=$(uname -n | tr -cd 'A-Za-z0-9._-')
printf '%s\n' "$host" >started/host  # where `hibali runs tunnel` finds the tool
began=$(date -u +%Y-%m-%dT%H:%M:%SZ)
caught= tool= killer= code=0
work=work folder=$PWD
if [ -f proxy ]; then
  trap 'rm -f -- "$folder/proxy"' EXIT
  X509_USER_PROXY=$folder/proxy
  export X509_USER_PROXY
fi
for name in TERM INT HUP USR1 USR2; do trap "caught=$name; [ -z \"\$tool\" ] || kill -TERM \"\$tool\" 2>/dev/null" "$name"; done
if [ -f fast.sh ]; then
  . ./fast.sh
  fast_in 2>stderr || code=75
fi
if [ "$code" = 0 ] && [ -z "$caught" ]; then
  (umask "$mask"; check_earlier_jobs && cd "$work" && exec /bin/sh "$folder/start") </dev/null >stdout 2>>stderr &
  tool=$!
  [ -z "$caught" ] || kill -TERM "$tool" 2>/dev/null
  wait "$tool"
  code=$?
  while [ -n "$caught" ] && kill -0 "$tool" 2>/dev/null; do
    if [ "$work" != work ] && [ -z "$killer" ]; then
      (trap '' TERM; sleep 15; kill -KILL "$tool" 2>/dev/null) </dev/null >/dev/null 2>&1 &
      killer=$!
    fi
    wait "$tool"
    code=$?
  done
  if [ -n "$caught" ]; then
    # the signal may have interrupted `wait` just after the tool ended: that status is the signal's, this one the tool's
    wait "$tool" 2>/dev/null
    again=$?
    [ "$again" = 127 ] || code=$again
  fi
  [ -z "$killer" ] || kill -KILL "$killer" 2>/dev/null
  if [ -z "$caught" ] && [ "$code" -gt 128 ]; then
    tool=
    sleep 1
  fi
elif [ "$code" = 0 ]; then
  code=143
fi
if [ -f fast.sh ]; then
  trap '' TERM INT HUP USR1 USR2
  fast_out 2>>stderr || [ "$code" != 0 ] || code=74
fi
missing=
if [ "$code" = 0 ] && [ -f outputs.sh ]; then
  missing=$(. ./outputs.sh)
  [ -z "$missing" ] || missing="\"missing\":[$missing],"
fi
[ ! -f proxy ] || rm -f proxy
ended=$(date -u +%Y-%m-%dT%H:%M:%SZ)
[ -n "$caught" ] || [ ! -e "$cancel_file" ] || caught=cancel
times >started/times  # in this shell: a subshell has no children
{ read -r used && read -r used; } <started/times
case "$used" in *[!0-9ms.,\ ]*) used= ;; esac
printf '{"schema":1,"kind":"exit","run":"%s","job":"%s","host":"%s","code":%d,%s"signal":"%s","started":"%s","ended":"%s","times":"%s"}\n' \
  "$run" "$job" "$host" "$code" "$missing" "$caught" "$began" "$ended" "$used" >exit.json.partial || exit 75
sync exit.json.partial 2>/dev/null
mv exit.json.partial exit.json || exit 75
[ -z "$missing" ] || code=9
exit "$code"
"""


# Some schedulers start a job regardless of the results of its dependencies (Grid Engine, OAR, `direct`): their ids are then in
# HIBALI_AFTER or the third argument, and the job checks their records in the folders next to its run's: for a job array, those of
# all its tasks. A shared filesystem may show them late.
CHECK_EARLIER_JOBS = r"""
before=${HIBALI_AFTER:-${3:-}}
unset HIBALI_AFTER
runs=..
succeeded() {
  seconds=0
  until [ -e "$1" ] || [ "$seconds" -ge 60 ]; do sleep 1; seconds=$((seconds+1)); done
  grep -q '"code":0,"signal":""' "$1" 2>/dev/null
}
job_succeeded() {
  for each in "$runs"/*/started/job "$runs"/*/chunks/*/started/job; do
    read -r its 2>/dev/null <"$each" && [ "$its" = "$1" ] || continue
    each=${each%/started/job}
    [ -f "$each/tasks" ] || { succeeded "$each/exit.json"; return; }
    while read -r task; do
      succeeded "$each/../../tasks/$task/exit.json" || return 1
    done <"$each/tasks"
    return 0
  done
  return 1
}
check_earlier_jobs() {
  if [ -n "${HIBALI_LACKS:-}" ]; then
    printf '%s\n' "$HIBALI_LACKS" >unmet
    echo "hibali: the tool was not started: $HIBALI_LACKS" >&2
    exit 75
  fi
  for number in $(printf '%s' "$before" | tr / ' '); do
    job_succeeded "$number" && continue
    echo "hibali: the tool was not started: job $number, which must succeed first, did not" >&2
    exit 75
  done
}
"""


def job_script(run: str, directives: Sequence[str], variables: JobVariables) -> str:
    """Return the script that the scheduler starts in the run's folder (S9); `directives` are checked comment lines."""
    return script_head(run, directives) + read_variables(variables) + _JOB + RUN_TOOL


def array_script(run: str, chunk: int, directives: Sequence[str], variables: JobVariables) -> str:
    """Return the script that the scheduler starts in a chunk's folder, for each line of the file `tasks` there; see `job_script`."""
    return f"{script_head(run, directives)}{read_variables(variables)}chunk={chunk:d}{ENTER_CHUNK}{_ARRAY}{RUN_TOOL}"


def read_variables(variables: JobVariables) -> str:
    """Return shell lines that read the variables of the scheduler: `native_job`, `native_array`, `native_index`, `native_folder`."""
    values = [
        ("job", variables.job),
        ("array", variables.array),
        ("index", variables.index),
        ("folder", variables.folder),
    ]
    found = {name: first_set(names) for name, names in values}
    # a system without arrays starts a job for each task
    return "".join(
        f"native_{name}={text or ('1' if name == 'index' else '')}\n" for name, text in found.items()
    )


def first_set(names: Sequence[str]) -> str:
    """Return a shell expression for the first of these variables that is set."""
    return f"${{{names[0]}:-{first_set(names[1:])}}}" if names else ""


def script_head(run: str, directives: Sequence[str]) -> str:
    """Return the head of each job script: directives, the run's id, and a function that checks the jobs it depends on."""
    if not _RUN.fullmatch(run):
        raise UsageError("bad-run-id", "this is not the identifier of a run", subject=ascii(run))
    return "\n".join(["#!/bin/sh", *directives, f"run={run}"]) + CHECK_EARLIER_JOBS


# A result of the wrong software is worse than none. As with `set -e`, the left side of `&&` and conditions may fail; unlike with it, so may
# commands inside functions and sourced files, which are not the user's own lines.
_CHECK = r"""
hibali_depth=${#BASH_SOURCE[@]}
hibali_failed() {
  [ "${0%/*}" = "$0" ] || printf 'a line of the prologue failed with exit code %d: %s\n' "$@" >"${0%/*}/unmet"
  printf 'hibali: not started: a line of the prologue failed with exit code %d: %s\n' "$@" >&2
  exit 75
}
trap 'hibali_code=$? hibali_line=$((LINENO-hibali_first))
[ "${#BASH_SOURCE[@]}" -gt "$hibali_depth" ] || hibali_failed "$hibali_code" "${hibali_lines[hibali_line]}"' ERR
hibali_first=$((LINENO+1))
"""


def checked_prologue(prologue: Sequence[str]) -> str:
    """Return lines of bash that run the prologue of a site, and end with 75 (`EXIT_NOT_RUN`) and a message if a line fails.

    In a script, the reason is also written to `unmet` in its folder.
    """
    lines = f"hibali_lines=({' '.join(map(shlex.quote, prologue))})"
    text = "\n".join(prologue)
    variables = "unset hibali_depth hibali_code hibali_line hibali_lines hibali_first"
    return f"{lines}{_CHECK}{text}\ntrap - ERR\n{variables}"


# Set in a user's .bashrc, these change how shells split words and what Python programs load: a prologue may set them for tools.
_FORGET = "unset CDPATH IFS PYTHONHOME PYTHONPATH PYTHONSTARTUP"


def start_script(prologue: Sequence[str], start: str) -> str:
    """Return the script that starts the tool in the work folder: the site's prologue, then `start` (a container's line)."""
    for line in prologue:
        if "\n" in line or "\0" in line:
            raise UsageError(
                "bad-prologue",
                "a line of the prologue contains a line break",
                subject=ascii(line),
                hint="Correct `prologue` in the site's [scheduler] table.",
            )
    # `module` and similar commands are functions that login shells define
    head = (
        [
            """[ -n "${HIBALI_LOGIN:-}" ] || { export HIBALI_LOGIN=1; exec bash -l "$0"; }""",
            f"{_FORGET} HIBALI_LOGIN",
            checked_prologue(prologue),
        ]
        if prologue
        else [_FORGET]
    )
    return "\n".join(["#!/bin/sh", *head, start]) + "\n"


class ContainerPaths:
    """The paths of a run's files in its folder, and the paths at which a tool in a container sees them."""

    def __init__(self, folder: str, container: Container) -> None:
        self._inputs = f"{folder}/inputs"
        self._container = container
        self._place = container.place
        self.work = f"{self._place}/0" if self._place else f"{folder}/work"
        # a runtime with its own mount point gets one more folder besides the work folder
        self.command = f"{self._inputs}/command" if self._place else f"{folder}/command"
        self.sees_command = f"{self._place}/1/command" if self._place else self.command
        self.proxy = f"{folder}/proxy"
        self.sees_proxy = f"{self._place}/1/proxy" if self._place else self.proxy

    def input(self, each: Input) -> str:
        """Return the path at which the tool sees an input."""
        if self._place:
            return f"{self._place}/1/{each.number}/{each.name}"
        copied = self._container.isolates and not self._container.binds_inputs
        return each.source if each.in_place and not copied else self._inside(each)

    def _inside(self, each: Input) -> str:
        return f"{self._inputs}/{each.number}/{each.name}"

    def binds(self, inputs: Sequence[Input]) -> tuple[Bind, ...]:
        """Return the binds for inputs."""
        if not self._container.isolates:
            return ()
        if not self._container.binds_inputs:
            return (Bind(self._inputs, f"{self._place}/1"),) if self._place else ()
        return tuple(Bind(each.source, self.input(each)) for each in inputs)

    def copies(self, inputs: Sequence[Input]) -> tuple[Bind, ...]:
        """Return the inputs to copy into the run's folder; without a container the user's own files are used in place."""
        if self._container.isolates:
            return tuple(Bind(each.source, self._inside(each)) for each in inputs)
        return tuple(Bind(each.source, self._inside(each)) for each in inputs if not each.in_place)


# Not every scheduler checks the result of a job that another one depends on, and none checks its outputs. A tool's
# output that is a symlink could refer to any file that this account can read (S12): symlinks are never followed.
_CHECKS = r"""
hibali_unmet() {
  printf '%s\n' "$1" >"$hibali_folder/unmet"
  printf 'hibali: %s\n' "$1" >&2
  exit 75
}
hibali_succeeded() {
  hibali_tries=0
  while [ ! -e "$2/exit.json" ] && [ "$hibali_tries" -lt 20 ]; do
    sleep 1
    hibali_tries=$((hibali_tries + 1))
  done
  grep -q '"code":0,"signal":""' "$2/exit.json" 2>/dev/null ||
    hibali_unmet "run $1 did not succeed"
}
hibali_left() {
  hibali_at=$2/work
  hibali_rest=$3/
  [ "$3" != . ] || hibali_rest=
  while [ -n "$hibali_rest" ]; do
    hibali_at=$hibali_at/${hibali_rest%%/*}
    hibali_rest=${hibali_rest#*/}
    [ ! -L "$hibali_at" ] || hibali_unmet "run $1 left a symlink, which is not followed: $3"
  done
  if [ -d "$hibali_at" ]; then
    hibali_odd=$(find "$hibali_at" ! -type f ! -type d -print) ||
      hibali_unmet "run $1 left a folder that cannot be read whole: $3"
    [ -z "$hibali_odd" ] || hibali_unmet "run $1 left a folder with symlinks or special files: $3"
  elif [ -e "$hibali_at" ]; then
    [ -f "$hibali_at" ] || hibali_unmet "run $1 left a special file: $3"
  else
    hibali_unmet "run $1 did not create this output: $3"
  fi
}
"""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A run at the same site, or a task of a sweep, that must have succeeded: its folder, and its outputs that are read.

    Each of `paths` is relative to the work folder; without any the run only comes first. With `all_tasks` every task of a sweep must have
    succeeded, and the folder is that of the run.
    """

    run: str
    folder: str
    paths: tuple[str, ...] = ()
    task: int = 0
    all_tasks: bool = False

    @property
    def reference(self) -> str:
        """The id as references to outputs have it: `ID`, or `ID.NUMBER` for a task of a sweep."""
        return f"{self.run}.{self.task}" if self.task else self.run


def guard_lines(folder: str, needs: Sequence[Dependency]) -> str:
    """Return the shell lines that check dependencies before the tool starts; "" if there are none.

    A failed check writes its reason to `FOLDER/unmet` and exits with 75 (`EXIT_NOT_RUN`) without starting the tool.
    """
    if not needs:
        return ""
    lines = [f"hibali_folder={shlex.quote(folder)}{_CHECKS}"]
    for need in needs:
        of = f"{shlex.quote(need.reference)} {shlex.quote(need.folder)}"
        if need.all_tasks:
            every = f'hibali_succeeded {shlex.quote(need.run)}."${{hibali_task##*/}}" "$hibali_task"'
            lines.append(f"for hibali_task in {shlex.quote(need.folder)}/tasks/*; do {every}; done\n")
            continue
        lines.append(f"hibali_succeeded {of}\n")
        lines += [f"hibali_left {of} {shlex.quote(path)}\n" for path in need.paths]
    return "".join(lines)


REQUIRED_SCRIPT = "outputs.sh"
# A required output may be a symlink or unreadable: it counts as created, and collecting reports the problem (S12).
# The list is part of the exit record, whose size is limited.
# Shells match a name against several wildcards in exponential time: each `for` has one `*`, and the functions remove from $rest what the
# next piece matches first.
_HEAD = r"""
exists() { [ -e "$1" ] || [ -L "$1" ]; }
first() { case $rest in "$1"*) rest=${rest#"$1"} ;; *) return 1 ;; esac; }
later() { case $rest in *"$1"*) rest=${rest#*"$1"} ;; *) return 1 ;; esac; }
last() { case $rest in *"$1") ;; *) return 1 ;; esac; }
one() { [ -n "$rest" ] && rest=${rest#?}; }
note() { [ "${#missing}" -ge 4000 ] || missing="$missing${missing:+,}\"$1\""; }
"""
_TAIL = r"""
check
while [ -n "$missing" ] && [ "$seconds" -gt 0 ]; do
  sleep 1
  seconds=$((seconds-1))
  ls work >/dev/null 2>&1
  check
done
printf '%s' "$missing"
"""
_OTHER_NODES_SECONDS = 60  # a shared filesystem may show files of another node so late


def required_script(outputs: Sequence[Output], *, several_nodes: bool = False) -> str:
    """Return the script that prints the ids of missing required outputs, quoted as JSON with commas; "" if all outputs are optional.

    The job's shell reads it in the folder of the run. A pattern is checked leniently: collecting is exact.
    """
    required = [each for each in outputs if not each.optional and OUTPUT_ID.fullmatch(each.id)]
    if not required:
        return ""
    functions = [_look_for(each, f"created_{number}") for number, each in enumerate(required)]
    checks = [f"  created_{number} || note {each.id}\n" for number, each in enumerate(required)]
    seconds = _OTHER_NODES_SECONDS if several_nodes else 0
    check = f"check() {{\n  missing=\n{''.join(checks)}}}"
    return f"seconds={seconds}{_HEAD}{''.join(functions)}{check}{_TAIL}"


_WILD = re.compile(r"(\*+|\?|\[!?\]?[^]]*\])")


def _look_for(output: Output, function: str) -> str:
    """Return a shell function that succeeds if the output exists below the folder of the run: a loop for each component with wildcards."""
    path = "work"
    loops: list[str] = []
    for part in output.path.split("/"):
        pieces = _WILD.split(part)
        if not output.is_pattern or len(pieces) == 1:
            path += shlex.quote(f"/{part}")
            continue
        name = f"at_{len(loops)}"
        start = f"for {name} in {path}{shlex.quote(f'/{pieces[0]}')}*"
        loops.append(f"{start}; do rest=${{{name}##*/}}; {_conditions(pieces)} || continue\n")
        path = f'"${name}"'
    body = f"{''.join(loops)}exists {path} && return 0\n" + "done\n" * len(loops)
    return f"{function}() {{\n{body}return 1\n}}\n"


def _conditions(pieces: Sequence[str]) -> str:
    """Return the shell conditions for a name in $rest from literal pieces and the wildcards between them.

    Shells differ for `[...]` and `?`, so both are widened to "at least one character".
    """
    found = [f"first {shlex.quote(pieces[0])}"]
    for wildcard, literal in zip(pieces[1::2], pieces[2::2], strict=True):
        found += [] if wildcard[0] == "*" else ["one"]
        found.append(f"later {shlex.quote(literal)}")
    found[-1] = f"last {shlex.quote(pieces[-1])}"
    return " && ".join(found)


PROXY = b"/proxy"  # in the run's folder; the job script knows it, too
_VARIABLE = "X509_USER_PROXY"


def with_proxy(task: Task, inside: ContainerPaths, container: Container) -> Task:
    """Return the task with the proxy in the run's folder. Raises `UsageError` if its container cannot bind a single file."""
    if container.isolates and not container.binds_inputs:
        raise UsageError(
            "no-proxy-inside",
            f"{container.name} cannot make a proxy visible to a tool",
            subject=container.name,
            hint="Run it at a site with another [container], or without a proxy: --no-proxy",
        )
    binds = (*task.binds, Bind(inside.proxy, inside.sees_proxy)) if container.isolates else task.binds
    return replace(task, binds=binds, environment={**task.environment, _VARIABLE: inside.sees_proxy})


@dataclass(frozen=True, slots=True)
class Dependencies:
    """The runs at its site that a run depends on, the jobs of those that have not ended, and whether it is on hold."""

    needs: tuple[Dependency, ...] = ()
    jobs: tuple[str, ...] = ()
    hold: bool = False

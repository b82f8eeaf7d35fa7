"""The texts that a run leaves at a site: the job script, constant but for identifier and directives, and the start."""

from __future__ import annotations

import re
from collections.abc import Sequence

from hibali.errors import UsageError

_RUN = re.compile(r"[0-9a-f]{8}-[0-9a-f]{6}-[0-9a-f]{8}")
EXIT_NOT_RUN = 75  # sysexits.h EX_TEMPFAIL: the job did not execute the tool

# The exclusive mkdir is the first act: a duplicate or requeued job stops there. `exit.json` appears whole or
# not at all, outside the one folder that a container shows to the tool. A signal to all processes of the job can
# reach the tool's child first, and the tool ends well without it: `cancel` says that somebody wished the end before.
# A tool that ended with 0 and did not leave a required output did not succeed: `missing` says so in the record, between the code and
# the signal, where nothing stands after a success, and the job ends with 9, so that no scheduler lets another job follow it.
# What fast.sh copies it brings back whatever became of the tool (74 is EX_IOERR), within the time there is: a tool
# that does not end is ended, and signals to the whole group do not reach the copying. A proxy is gone before the job says that it
# has ended, and with a script that does not get so far.
_JOB = r"""
mask=$(umask) host=
umask 077
case "$PWD" in
  */"$run") ;;
  *) cd -- "${PBS_O_WORKDIR:-${OAR_WORKDIR:-.}}" ;; # PBS begins in the home folder, OAR in what a start-up file left
esac
case "$PWD" in
  */"$run") ;;
  *) echo "hibali: this is not the folder of run $run: $PWD" >&2; exit 75 ;;
esac
job=${1:-${SLURM_JOB_ID:-${OAR_JOB_ID:-${PBS_JOBID:-${LSB_JOBID:-${JOB_ID:-}}}}}}
job=$(printf '%s' "$job" | tr -cd '][A-Za-z0-9._:+-')
wish=cancel
"""
# A job array starts this once for each index. The first one tells which job this chunk is; then each goes to the folder of
# its own task. Words given by a launcher of ours count before variables that may be those of a job around it.
_ARRAY = r"""
mask=$(umask) host=
umask 077
case "$PWD" in
  */"$run/chunks/$chunk") ;;
  *) cd -- "${PBS_O_WORKDIR:-${OAR_WORKDIR:-.}}" ;; # as with a single job
esac
case "$PWD" in
  */"$run/chunks/$chunk") ;;
  *) echo "hibali: this is not the folder of chunk $chunk of run $run: $PWD" >&2; exit 75 ;;
esac
job=${1:-${SLURM_ARRAY_JOB_ID:-${OAR_ARRAY_ID:-${PBS_JOBID:-${LSB_JOBID:-${JOB_ID:-}}}}}}
job=$(printf '%s' "$job" | sed 's/\[[0-9]*\]/[]/' | tr -cd 'A-Za-z0-9._:+[]-')
index=${2:-${SLURM_ARRAY_TASK_ID:-${OAR_ARRAY_INDEX:-${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-${SGE_TASK_ID:-${LSB_JOBINDEX:-}}}}}}}
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
wish=../../cancel
"""
TURN = r"""
if ! mkdir started; then
  printf '%s\n' "$job" >>again
  echo "hibali: run $run was started before; this job does nothing" >&2
  exit 75
fi
printf '%s\n' "$job" >started/job.partial && mv started/job.partial started/job || exit 75
[ -n "${host:-}" ] || host=$(uname -n | tr -cd 'A-Za-z0-9._-')
began=$(date -u +%Y-%m-%dT%H:%M:%SZ)
caught= tool= hurry= code=0
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
  (umask "$mask"; check_those_before && cd "$work" && exec /bin/sh "$folder/start") </dev/null >stdout 2>>stderr &
  tool=$!
  [ -z "$caught" ] || kill -TERM "$tool" 2>/dev/null
  wait "$tool"
  code=$?
  while [ -n "$caught" ] && kill -0 "$tool" 2>/dev/null; do
    if [ "$work" != work ] && [ -z "$hurry" ]; then
      (trap '' TERM; sleep 15; kill -KILL "$tool" 2>/dev/null) </dev/null >/dev/null 2>&1 &
      hurry=$!
    fi
    wait "$tool"
    code=$?
  done
  if [ -n "$caught" ]; then
    # the signal may have cut a wait short whose tool had just ended: that told of the signal, this one of the tool
    wait "$tool" 2>/dev/null
    again=$?
    [ "$again" = 127 ] || code=$again
  fi
  [ -z "$hurry" ] || kill -KILL "$hurry" 2>/dev/null
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
[ -n "$caught" ] || [ ! -e "$wish" ] || caught=cancel
times >started/times  # in this very shell: another one has no children
{ read -r used && read -r used; } <started/times
case "$used" in *[!0-9ms.,\ ]*) used= ;; esac
printf '{"schema":1,"kind":"exit","run":"%s","job":"%s","host":"%s","code":%d,%s"signal":"%s","started":"%s","ended":"%s","times":"%s"}\n' \
  "$run" "$job" "$host" "$code" "$missing" "$caught" "$began" "$ended" "$used" >exit.json.partial || exit 75
sync exit.json.partial 2>/dev/null
mv exit.json.partial exit.json || exit 75
[ -z "$missing" ] || code=9
exit "$code"
"""


# Some schedulers let a job begin whatever became of those before it (runs.schedulers.sge, oar, direct): their ids are in
# HIBALI_AFTER or the third word then, and the job looks for their records, which lie in the folders beside its run's: of a job array, those of
# all its tasks. A shared filesystem may show them late.
THOSE_BEFORE = r"""
before=${HIBALI_AFTER:-${3:-}}
unset HIBALI_AFTER
runs=..
succeeded() {
  seconds=0
  until [ -e "$1" ] || [ "$seconds" -ge 60 ]; do sleep 1; seconds=$((seconds+1)); done
  grep -q '"code":0,"signal":""' "$1" 2>/dev/null
}
ended_well() {
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
check_those_before() {
  for number in $(printf '%s' "$before" | tr / ' '); do
    ended_well "$number" && continue
    echo "hibali: the tool was not started: job $number, which had to end well before, did not" >&2
    exit 75
  done
}
"""


def job_script(run: str, directives: Sequence[str]) -> str:
    """The script that the scheduler starts in the run's folder (S9); `directives` are checked comment lines."""
    return script_head(run, directives) + _JOB + TURN


def array_script(run: str, chunk: int, directives: Sequence[str]) -> str:
    """The script that the scheduler starts in a chunk's folder, for each line of the file `tasks` there; see `job_script`."""
    return f"{script_head(run, directives)}chunk={chunk:d}{_ARRAY}{TURN}"


def script_head(run: str, directives: Sequence[str]) -> str:
    """How each script of a job begins, up to the run's id and a function that looks for those before."""
    if not _RUN.fullmatch(run):
        raise UsageError("bad-run-id", "this is not the identifier of a run", about=ascii(run))
    return "\n".join(["#!/bin/sh", *directives, f"run={run}"]) + THOSE_BEFORE


def start_script(prologue: Sequence[str], start: str) -> str:
    """What becomes the tool, in the work folder: the site's own prologue, then `start` (a container's line)."""
    for line in prologue:
        if "\n" in line or "\0" in line:
            raise UsageError(
                "bad-prologue",
                "a line of the prologue holds a line break",
                about=ascii(line),
                hint="Correct `prologue` in the site's [scheduler] table.",
            )
    # `module` and its like are functions that login shells define
    head = (
        [
            """[ -n "${HIBALI_LOGIN:-}" ] || { export HIBALI_LOGIN=1; exec bash -l "$0"; }""",
            "unset HIBALI_LOGIN",
        ]
        if prologue
        else []
    )
    return "\n".join(["#!/bin/sh", *head, *prologue, start]) + "\n"

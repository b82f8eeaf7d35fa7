"""Run jobs as processes without a scheduler, in their own session.

A job's id is PID:STARTTICKS:BOOT:HOST, where STARTTICKS is field 22 of /proc/PID/stat (proc(5)) and BOOT the
head of the boot id, so that neither a reused pid nor a reboot nor another login node is taken for the job.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hibali.errors import TryLaterError, UsageError
from hibali.text import one_line, printable
from runs.schedulers.base import (
    UNKNOWN,
    Job,
    NotSubmitted,
    Phase,
    Resources,
    Scheduler,
    Status,
    SubmitResult,
    Submitted,
    Unclear,
    check_job_id,
    cores_of_a_node,
    task_number,
)
from transfers.remote.host import CommandResult

# Values are passed as arguments and are never read as shell text.
_HERE = r"""
boot=$(head -c 8 /proc/sys/kernel/random/boot_id 2>/dev/null)
host=$(uname -n | tr -cd 'A-Za-z0-9._-')
"""
# Succeed if the process of an id (PID:STARTTICKS:BOOT:HOST, of this host) exists and is not a zombie.
_RUNS = r"""
runs() (
  pid=${1%%:*}; rest=${1#*:}; ticks=${rest%%:*}; rest=${rest#*:}
  [ "${rest%%:*}" = "$boot" ] && read -r stat 2>/dev/null </proc/"$pid"/stat || exit 1
  set -f; set -- ${stat##*) }
  [ "${20}" = "$ticks" ] && case $1 in Z|X|x) exit 1 ;; esac
)
"""

# The leader of the session and of its process group; its process id is that of the job. It first prints its id, for which
# the launcher waits. Then it waits for other jobs or its release, and becomes the job, or runs the tasks of an array, some
# at a time, within the time limit.
#
# A GPU is taken while the leader, or the worker of an array, holds a flock(2) on its folder in /tmp, which every account of the host
# can open: the lock ends with that process however it ends. Only the holder of a first lock takes GPUs, so that runs which need several
# cannot block each other, and later runs do not overtake them. A list of GPUs in the environment, such as that of an enclosing
# job, limits the choice. HIP applies CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES to what ROCR_VISIBLE_DEVICES left.
LEADER = (
    r"""
boot=$1 host=$2 tasks=$4 hold=$5; shift 5
after=$*
read -r stat </proc/$$/stat || exit 66
set -f; set -- ${stat##*) }; id="$$:${20}:$boot:$host"; set +f
if [ -n "$hold$after" ]; then echo "${hold:+on hold }${after:+after $after}" >queued || exit 66; fi
printf '%s\n' "$id"
exec >>scheduler.log 2>&1
"""
    + _RUNS
    + r"""
cores=1 time=0 gpus=0 node_gpus=0 kind=nvidia
while read -r word option rest; do
  case $word:$option in
    "#DIRECT:--cores="*) cores=${option#*=} ;;
    "#DIRECT:--time="*) time=${option#*=} ;;
    "#DIRECT:--gpus="*) gpus=${option#*=} ;;
    "#DIRECT:--node-gpus="*) node_gpus=${option#*=} ;;
    "#DIRECT:--gpu-kind="*) kind=${option#*=} ;;
    "#"*) ;;
    *) break ;;
  esac
done <job.sh

# A job on another host cannot be seen: it has ended when its exit record exists, for an array those of all tasks.
all_over() {
  while read -r task; do [ -e "$1/../../tasks/$task/exit.json" ] || return 1; done <"$1/tasks"
}
is_over() {
  [ "${1##*:}" != "$host" ] || { ! runs "$1"; return; }
  for each in ../*/started/job ../*/chunks/*/started/job; do
    read -r its 2>/dev/null <"$each" && [ "$its" = "$1" ] || continue
    each=${each%/started/job}
    if [ -f "$each/tasks" ]; then all_over "$each"; else [ -e "$each/exit.json" ]; fi && return
  done
  return 1
}
for before in $after; do until is_over "$before"; do sleep 1; done; done
[ -z "$hold" ] || until [ -e released ]; do sleep 1; done
[ -z "$hold$after" ] || rm -f queued
if [ -n "$after" ]; then HIBALI_AFTER=$(printf '%s' "$after" | tr ' ' /); export HIBALI_AFTER; fi
[ "$tasks:$time:$gpus" != 0:0:0 ] || exec /bin/sh ./job.sh "$id"

stop=
trap 'stop=1' TERM INT HUP
descendants() {
  for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do echo "$child"; descendants "$child"; done
}
# SIGTERM goes to the script as well, so that it records the end of its tool; SIGKILL follows only for processes that remain.
end_late() {
  trap 'kill "$clock" 2>/dev/null; exit' TERM INT HUP
  sleep "$time" & clock=$!
  wait "$clock"
  kill -TERM "$1" $(descendants "$1") 2>/dev/null
  sleep 10 & clock=$!
  wait "$clock"
  kill -KILL $(descendants "$1") 2>/dev/null
}
run() {
  if [ "$time" = 0 ]; then /bin/sh ./job.sh "$@"; return; fi
  /bin/sh ./job.sh "$@" & job=$!
  end_late "$job" & late=$!
  wait "$job"
  code=$?
  while [ -n "$stop" ] && kill -0 "$job" 2>/dev/null; do wait "$job"; code=$?; done
  kill "$late" 2>/dev/null
  wait "$late"
  return "$code"
}
locks=/tmp/hibali-gpu
if [ "$gpus" != 0 ]; then
  if [ "$kind" = amd ]; then pool=${ROCR_VISIBLE_DEVICES-$(seq 0 $((node_gpus-1)))}
  else pool=${CUDA_VISIBLE_DEVICES-$(seq 0 $((node_gpus-1)))}; fi
  set -f; set -- $(printf '%s' "$pool" | tr , ' '); set +f
  pool=$* node_gpus=$#
  mkdir -m 755 "$locks" 2>/dev/null
  if [ "$node_gpus" -lt "$gpus" ]; then HIBALI_LACKS="the environment names only $node_gpus of the $gpus GPUs: $pool"
  elif ! command -v flock >/dev/null; then HIBALI_LACKS="the program flock, which locks GPUs, is missing"
  elif ! [ -r "$locks/." ]; then HIBALI_LACKS="the lock of the GPUs, $locks, is not a readable folder"; fi
  if [ -n "${HIBALI_LACKS:-}" ]; then export HIBALI_LACKS; gpus=0; fi
fi
use_gpus() {
  unset HIP_VISIBLE_DEVICES GPU_DEVICE_ORDINAL
  export ROCR_VISIBLE_DEVICES="$1" ZE_AFFINITY_MASK="$1" CUDA_VISIBLE_DEVICES="$1"
  [ "$kind" != amd ] || unset CUDA_VISIBLE_DEVICES
}
# $1 GPUs are taken, $2 has their names; then $3 is called. The shell keeps the descriptors of the enclosing calls.
take_gpus() {
  if [ "$1" = "$gpus" ]; then
    flock -u 8
    rm -f queued
    use_gpus "$2"
    "$3" 8<&- 9<&-
    return
  fi
  while [ -z "$stop" ]; do
    for gpu in $pool; do
      lock=$locks-$(printf '%s' "$gpu" | tr / .)
      mkdir -m 755 "$lock" 2>/dev/null
      [ -r "$lock/." ] || continue
      { flock -n 9 && { take_gpus $(($1+1)) "$2${2:+,}$gpu" "$3"; return; }; } 9<"$lock/."
    done
    sleep 1
  done
}
with_gpus() {
  if [ "$gpus" = 0 ]; then "$1"; return; fi
  { flock 8 && take_gpus 0 '' "$1"; } 8<"$locks/."
}
if [ "$tasks" = 0 ]; then
  [ "$gpus" = 0 ] || echo "waiting for a free GPU" >queued
  run_job() { run "$id"; }
  with_gpus run_job
  exit
fi

# The worker that creates a task's file runs the task.
mkdir array || exit 75
echo "$tasks" >array/tasks
worker() {
  trap 'stop=1' TERM INT HUP
  set -C
  number=0
  while [ -z "$stop" ] && [ "$number" -lt "$tasks" ]; do
    number=$((number+1))
    [ -e "array/$number" ] || with_gpus run_task
  done
}
run_task() {
  true 2>/dev/null >"array/$number" || return
  run "$id" "$number"
  true >"array/$number.over"
}
many=$(( $(nproc 2>/dev/null || grep -c '^processor' /proc/cpuinfo) / cores ))
[ "$gpus" = 0 ] || [ "$many" -le $((node_gpus/gpus)) ] || many=$((node_gpus/gpus))
[ "$many" -ge 1 ] || many=1
[ "$many" -le "$tasks" ] || many=$tasks
while [ "$many" -gt 0 ]; do worker & many=$((many-1)); done
wait
[ -z "$stop" ] || wait
"""
)

# $1 is LEADER, $2 the run's folder, then the number of tasks, `hold` or nothing, and the ids to wait for.
LAUNCH = (
    _HERE
    + r"""
leader=$1; shift
cd -- "$1" || exit 65
exec 2>&1
job=$(setsid /bin/sh -c "$leader" hibali "$boot" "$host" "$@" </dev/null 2>>scheduler.log &)
[ -n "$job" ] || { echo "the process did not start"; exit 67; }
printf '%s\n' "$job"
"""
)

# Print one line for each id: its state, and for an array `NUMBER+` for each running task, `NUMBER.` for each ended one.
STATUS = (
    _HERE
    + _RUNS
    + r"""
for id; do
  if [ "${id##*:}" != "$host" ]; then echo "$id elsewhere"; continue; fi
  if ! runs "$id"; then echo "$id gone"; continue; fi
  folder=/proc/${id%%:*}/cwd
  if read -r why 2>/dev/null <"$folder/queued"; then echo "$id queued $why"; continue; fi
  states=
  if read -r tasks 2>/dev/null <"$folder/array/tasks"; then
    states=" of $tasks"
    number=0
    while [ "$number" -lt "$tasks" ]; do
      number=$((number+1))
      if [ -e "$folder/array/$number.over" ]; then states="$states $number."
      elif [ -e "$folder/array/$number" ]; then states="$states $number+"
      fi
    done
  fi
  echo "$id running$states"
done
"""
)

# TERM to its process group, and KILL after five seconds.
CANCEL = (
    _HERE
    + _RUNS
    + r"""
if [ "${1##*:}" != "$host" ]; then echo "the job runs on ${1##*:}, this is $host" >&2; exit 69; fi
runs "$1" || exit 0
pid=${1%%:*}
kill -TERM -"$pid" 2>/dev/null
n=0
while runs "$1" && [ $n -lt 50 ]; do sleep 0.1; n=$((n+1)); done
runs "$1" && kill -KILL -"$pid" 2>/dev/null
exit 0
"""
)

RELEASE = (
    _HERE
    + _RUNS
    + r"""
if [ "${1##*:}" != "$host" ]; then echo "the job waits on ${1##*:}, this is $host" >&2; exit 69; fi
runs "$1" || { echo "there is no such process any more" >&2; exit 69; }
: >"/proc/${1%%:*}/cwd/released"
"""
)


class Direct(Scheduler):
    """A process instead of a job, which itself waits for other jobs and enforces its time limit."""

    name = "direct"
    programs = ("sh", "setsid")

    def directives(self, resources: Resources) -> tuple[str, ...]:
        """Return `#DIRECT` lines: the cores of an array's task, when a job receives TERM, and the GPUs that it waits for.

        Other resources are ignored, because no scheduler can allocate them.
        """
        options = []
        cores = cores_of_a_node(resources)
        if cores > 1:
            options.append(f"--cores={cores:d}")
        if resources.seconds is not None:
            options.append(f"--time={max(resources.seconds, 1):d}")
        if resources.gpus and resources.site_gpus:
            node = resources.site_gpus
            options += [
                f"--gpus={resources.gpus:d}",
                f"--node-gpus={node.per_node:d}",
                f"--gpu-kind={node.kind}",
            ]
        return tuple(f"#DIRECT {option}" for option in options)

    def submit_argv(self, job: Job) -> tuple[str, ...]:
        """Return a constant script with the run's folder among its arguments."""
        for each in job.after:
            if each.count(":") != 3 or check_job_id(each) is None:
                raise UsageError(
                    "bad-job", "this is not the id of a job without a scheduler", subject=printable(each)
                )
        folder = job.script.rpartition("/")[0]
        hold = "hold" if job.hold else ""
        return ("/bin/sh", "-c", LAUNCH, job.name, LEADER, folder, f"{job.tasks:d}", hold, *job.after)

    def task_job(self, job: str, index: int) -> str:
        """Return the array's leader, which ends with its last task."""
        del index
        return job

    def read_submit(self, finished: CommandResult) -> SubmitResult:
        """Parse the job's id from the launcher's last word."""
        fields = finished.stdout.decode("ascii", "replace").split()
        job = check_job_id(fields[-1]) if fields else None
        if finished.exit_code == 0 and job is not None and job.count(":") == 3:
            return Submitted(job)
        message = one_line(finished.stdout + finished.stderr)
        if finished.exit_code in {65, 66, 67, 127}:
            return NotSubmitted(
                UsageError(
                    "no-start",
                    f"the process could not be started at the site: {message}",
                    hint="`direct` needs a Linux site with /bin/sh, setsid and /proc.",
                )
            )
        return Unclear(message or f"the launcher ended with {finished.exit_code}")

    def status_argv(self, jobs: Sequence[str]) -> tuple[str, ...]:
        """Query all jobs with one shell."""
        return ("/bin/sh", "-c", STATUS, "hibali", *jobs)

    def read_status(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Status]:
        """Return UNKNOWN for a missing process, whose exit record says how it ended."""
        found = dict.fromkeys(jobs, UNKNOWN)
        for job, native, details in _status_lines(finished):
            if job in found:
                found[job] = _status(native, details)
        return found

    def read_tasks(self, finished: CommandResult, jobs: Sequence[str]) -> Mapping[str, Mapping[int, Status]]:
        """Return tasks while their leader exists; later only exit records remain."""
        found: dict[str, dict[int, Status]] = {job: {} for job in jobs}
        for job, native, details in _status_lines(finished):
            of, _, marked = details.partition(" ")
            total, _, marked = marked.partition(" ")
            count = task_number(total)
            if job in found and (native, of) == ("running", "of") and count is not None:
                tasks = found[job]
                tasks.update(dict.fromkeys(range(1, count + 1), Status(Phase.WAITING, "waiting")))
                for mark in marked.split():
                    over, number = mark.endswith("."), task_number(mark[:-1])
                    if number is not None:
                        tasks[number] = (
                            Status(Phase.ENDED, "over") if over else Status(Phase.RUNNING, "running")
                        )
        return found

    def start_argv(self) -> tuple[str, ...]:
        """Return (): every job starts at once."""
        return ()

    def lookup_argv(self, name: str) -> tuple[str, ...]:
        """Return (): only the job's file `started` records it."""
        del name
        return ()

    def read_lookup(self, finished: CommandResult, user: str) -> str | None:
        """Return None; there is no query."""
        del finished, user
        return None

    def cancel_argv(self, job: str) -> tuple[str, ...]:
        """End the process group, with KILL after five seconds."""
        return ("/bin/sh", "-c", CANCEL, "hibali", job)

    def release_argv(self, job: str) -> tuple[str, ...]:
        """Create the file in the run's folder for which the process waits."""
        return ("/bin/sh", "-c", RELEASE, "hibali", job)


def _status_lines(finished: CommandResult) -> list[tuple[str, str, str]]:
    """Return the id, the state and the details of each line."""
    if finished.exit_code != 0:
        raise TryLaterError(
            "scheduler-silent",
            f"the site did not list its processes: {one_line(finished.stderr)}",
        )
    lines = (line.split(" ", 2) for line in finished.stdout.decode("ascii", "replace").splitlines())
    return [(parts[0], parts[1], parts[2] if len(parts) > 2 else "") for parts in lines if len(parts) > 1]


def _status(native: str, details: str) -> Status:
    if native == "running":
        return Status(Phase.RUNNING, "running")
    if native == "queued":
        return Status(Phase.WAITING, "queued", printable(details))
    if native == "elsewhere":
        return Status(Phase.ELSEWHERE, "elsewhere", "the run was started on another host of the site")
    return UNKNOWN


SCHEDULER = Direct()

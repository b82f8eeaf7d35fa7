"""Test every scheduler: its commands and output, and that no value becomes a directive or shell text."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali.plugins import built_in_names
from runs.model import chunk_name
from runs.schedulers.base import (
    Job,
    NotSubmitted,
    Phase,
    Resources,
    Scheduler,
    Submitted,
    Unclear,
    check_job_id,
    load_scheduler,
)
from transfers.remote.host import CommandResult

RUN = "20260102-030405-0a1b2c3d"
# The output of each scheduler for unknown jobs.
KNOWS_NONE = {
    "direct": CommandResult(0, b"", b""),
    "lsf": CommandResult(255, b"", b"Job <77> is not found\n"),
    "oar": CommandResult(0, b"", b""),
    "pbs": CommandResult(153, b"", b"qstat: Unknown Job Id 77.server\n"),
    "sge": CommandResult(0, b"<?xml version='1.0'?>\n<job_info><queue_info/><job_info/></job_info>\n", b""),
    "slurm": CommandResult(0, b"", b""),
}
RECORDINGS = sorted(
    path
    for word in built_in_names("runs.schedulers")
    for path in (Path(__file__).parents[1] / "recordings" / word).glob("*.json")
)


@pytest.fixture(params=built_in_names("runs.schedulers"))
def scheduler(request: pytest.FixtureRequest) -> Scheduler:
    return load_scheduler(request.param)


def directives_or_none(scheduler: Scheduler, resources: Resources) -> tuple[str, ...] | None:
    """Return the directives; None if they are refused, or the scheduler reads none."""
    try:
        return scheduler.directives(resources) or None
    except UsageError:
        return None


def test_scheduler_has_its_configured_name(scheduler: Scheduler) -> None:
    assert scheduler.name in built_in_names("runs.schedulers")
    assert load_scheduler(scheduler.name) is scheduler


def test_the_programs_that_submit_query_and_cancel_are_declared(scheduler: Scheduler) -> None:
    """`sites check` and `doctor` look for `programs`; `sites usage` counts `commands`."""
    lines = [
        scheduler.submit_argv(Job(RUN, f"/w/{RUN}/job.sh")),
        scheduler.status_argv(["17:4:0a0a0a0a:login1" if scheduler.name == "direct" else "17"]),
        scheduler.cancel_argv("17:4:0a0a0a0a:login1" if scheduler.name == "direct" else "17"),
    ]
    for line in lines:
        text = " ".join(line)
        assert line[0] in {*scheduler.programs, "/bin/sh"}
        assert any(program in text for program in scheduler.programs)
    assert scheduler.name == "direct" or set(scheduler.programs) <= set(scheduler.commands)


def test_directives_are_comment_lines_of_typed_values(scheduler: Scheduler) -> None:
    resources = Resources(
        cores=2,
        memory_megabytes=100,
        seconds=59,
        nodes=1,
        account="a_b.c",
        partition="p,q",
        directives=("--mem=1 # x",),
    )
    for line in scheduler.directives(resources):
        assert re.fullmatch(r"#(?:[A-Z]+:?|\$) -[ -~]+", line)
    assert scheduler.directives(Resources()) == ()


@pytest.mark.parametrize("hostile", ["a\nrm -rf /", "-p", "a b", "$(id)", "é", ""])
def test_a_name_cannot_become_a_second_directive(scheduler: Scheduler, hostile: str) -> None:
    for field in ("account", "partition", "reservation"):
        assert directives_or_none(scheduler, Resources(**{field: hostile})) is None


@pytest.mark.parametrize("hostile", ["", "rm", "--x\nrm", "--x\x1b[0m", "--é"])
def test_a_directive_of_the_site_is_one_option(scheduler: Scheduler, hostile: str) -> None:
    assert directives_or_none(scheduler, Resources(directives=(hostile,))) is None


def test_submission_names_the_run_and_its_script(scheduler: Scheduler) -> None:
    argv = scheduler.submit_argv(Job(RUN, f"/w k/runs/{RUN}/job.sh"))
    assert any(RUN in word for word in argv)
    assert any(word.endswith(f"/w k/runs/{RUN}") for word in argv)
    assert all("\0" not in word for word in argv)


def test_every_name_that_hibali_gives_to_jobs_is_accepted(scheduler: Scheduler) -> None:
    """A run, the jobs of a sweep, and what `hibali doctor` looks for."""
    names = (RUN, chunk_name(RUN, 1), chunk_name(RUN, 12), "hibali-doctor")
    for name in names:
        scheduler.submit_argv(Job(name, f"/work/runs/{RUN}/job.sh", tasks=2))
    found = {scheduler.lookup_argv(name) for name in names}
    assert len(found) == len(names) or found == {()}


def test_arrays_dependencies_and_holds_are_requested(scheduler: Scheduler) -> None:
    before = "17:4:0a0a0a0a:login1" if scheduler.name == "direct" else "17"
    plain = scheduler.submit_argv(Job(RUN, f"/w/{RUN}/job.sh"))
    held = scheduler.submit_argv(Job(RUN, f"/w/{RUN}/job.sh", hold=True))
    later = scheduler.submit_argv(Job(RUN, f"/w/{RUN}/job.sh", after=(before,)))
    many = scheduler.submit_argv(Job(RUN, f"/w/{RUN}/job.sh", tasks=20))
    assert len({plain, held, later, many}) == 4
    assert any(before in word for word in later)
    assert any("20" in word for word in set(many) - set(plain))
    assert scheduler.release_argv("12")[-1] == "12"


@pytest.mark.parametrize("hostile", ["-x", "1;id", "$(id)", "1 2", "1\n2", ""])
def test_dependencies_on_invalid_job_ids_are_refused(hostile: str) -> None:
    for name in built_in_names("runs.schedulers"):
        if name != "slurm":
            with pytest.raises(UsageError):
                load_scheduler(name).submit_argv(Job(RUN, f"/w/{RUN}/job.sh", after=(hostile,)))


def test_slurm_reports_the_tasks_of_each_array() -> None:
    stdout = b"12_1:COMPLETED:None\n12_2:RUNNING:None\n12_10:PENDING:Resources\n13:RUNNING:None\n"
    found = load_scheduler("slurm").read_tasks(CommandResult(0, stdout, b""), ["12", "14"])
    assert {number: status.phase for number, status in found["12"].items()} == {
        1: Phase.ENDED,
        2: Phase.RUNNING,
        10: Phase.WAITING,
    }
    assert found["14"] == {}


def test_an_empty_reply_never_means_not_submitted(scheduler: Scheduler) -> None:
    """A command that was killed before answering may have submitted."""
    for silent in (
        CommandResult(0, b"", b""),
        CommandResult(-9, b"", b""),
        CommandResult(0, b"welcome\n", b""),
    ):
        assert isinstance(scheduler.read_submit(silent), Unclear)


def test_a_missing_program_is_reported_with_a_hint(scheduler: Scheduler) -> None:
    answer = scheduler.read_submit(CommandResult(127, b"", b"No such file"))
    assert isinstance(answer, NotSubmitted)
    assert isinstance(answer.error, UsageError)
    assert answer.error.hint


def test_unknown_jobs_have_a_status_and_a_failed_query_raises(scheduler: Scheduler) -> None:
    jobs = ["1:2:3:4", "77"]
    found = scheduler.read_status(KNOWS_NONE[scheduler.name], jobs)
    assert {found[job].phase for job in jobs} == {Phase.UNKNOWN}
    assert scheduler.read_tasks(KNOWS_NONE[scheduler.name], jobs) == {"1:2:3:4": {}, "77": {}}
    for read in (scheduler.read_status, scheduler.read_tasks):
        with pytest.raises(TryLaterError):
            read(CommandResult(1, b"", b"cannot reach it"), jobs)


def test_unexpected_output_is_a_failed_query(scheduler: Scheduler) -> None:
    """Read as an empty list, it would mean that there is no such job, and allow a second submission."""
    if scheduler.name == "direct":
        return  # hibali itself defines this output
    for stdout in (b"This account can only run: squeue\n", b"error: not allowed\n"):
        with pytest.raises(TryLaterError):
            scheduler.read_status(CommandResult(0, stdout, b""), ["77"])
        with pytest.raises(TryLaterError):
            scheduler.read_lookup(CommandResult(0, stdout, b""), "me")


def test_one_command_queries_all_jobs(scheduler: Scheduler) -> None:
    argv = scheduler.status_argv(["11", "22"])
    queries_all = argv == scheduler.status_argv([])
    assert queries_all or any("11" in word for word in argv)
    assert queries_all or any("22" in word for word in argv)


def test_a_job_id_cannot_be_an_option(scheduler: Scheduler) -> None:
    for text in ("--all", "", "1 2", "1\n", "1,2", "$(id)"):
        assert check_job_id(text) is None
    assert scheduler.cancel_argv("12")[-1] == "12"


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_output_of_real_schedulers_is_parsed(path: Path) -> None:
    recorded = json.loads(path.read_text())
    scheduler = load_scheduler(path.parent.name)
    finished = CommandResult(recorded["exit_code"], recorded["stdout"].encode(), recorded["stderr"].encode())
    assert _meaning(scheduler, recorded, finished) == recorded["expect"]


def _meaning(scheduler: Scheduler, recorded: dict[str, Any], finished: CommandResult) -> Any:
    """Parse the recorded output."""
    question = recorded["question"]
    if question == "submit":
        answer = scheduler.read_submit(finished)
        if isinstance(answer, Submitted):
            return {"submitted": answer.job}
        if isinstance(answer, Unclear):
            return "unclear"
        assert isinstance(answer, NotSubmitted)
        return {"refused": answer.error.code, "exit": int(answer.error.exit)}
    try:
        if question == "status":
            found = scheduler.read_status(finished, recorded["jobs"])
            return {job: status.phase for job, status in found.items()}
        if question == "tasks":
            tasks = scheduler.read_tasks(finished, recorded["jobs"])
            return {
                job: {str(number): status.phase for number, status in each.items()}
                for job, each in tasks.items()
            }
        if question == "lookup":
            return {"job": scheduler.read_lookup(finished, recorded["user"])}
    except HibaliError as problem:
        return {"error": problem.code}
    accounts = scheduler.read_accounting(finished)
    return None if accounts is None else {job: status.phase for job, status in accounts.items()}


def test_unknown_slurm_states_are_waiting_in_squeue_and_unknown_in_sacct() -> None:
    slurm = load_scheduler("slurm")
    assert slurm.read_status(CommandResult(0, b"7:NEW_WORD:why\n", b""), ["7"])["7"].phase is Phase.WAITING
    known = slurm.read_accounting(CommandResult(0, b"7|NEW_WORD|0:0\n", b""))
    assert known is not None
    assert known["7"].phase is Phase.UNKNOWN


def test_slurm_usage_is_summed_over_job_steps() -> None:
    stdout = (
        b"7|COMPLETED|0:0|1-02:03:04|\n7.batch|COMPLETED|0:0|1-02:03:04|1536K\n7.0|COMPLETED|0:0|00:01.500|2.50M\n"
        b"8|FAILED|3:0|00:00:00|\n8.batch|FAILED|3:0|00:00:00|0\n9_4|COMPLETED|0:0|00:01.250|\n9_4.batch|COMPLETED|0:0||12G\n"
    )
    found = load_scheduler("slurm").read_accounting(CommandResult(0, stdout, b""))
    assert found is not None
    assert {job: (status.cpu_seconds, status.memory_bytes) for job, status in found.items()} == {
        "7": (93784.0, int(2.5 * 1024**2)),
        "8": (None, None),
        "9_4": (1.25, 12 * 1024**3),
    }


@pytest.mark.parametrize(
    ("lines", "phase", "reason"),
    [
        (  # as Slurm 22.05 with JobAcctGatherParams=OverMemoryKill
            b"1|FAILED|0:9|00:00.002||50M\n1.batch|CANCELLED by 0|0:9|00:00.002|317120K|\n",
            Phase.KILLED,
            "out of memory: used 325 MB, requested 52.4 MB",
        ),
        (b"1|FAILED|0:9|00:00.002||500M\n1.batch|CANCELLED by 0|0:9||317120K|\n", Phase.KILLED, "signal 9"),
        (
            b"1|OUT_OF_MEMORY|0:125|||1Gn\n1.batch|OUT_OF_MEMORY|0:125||1000K|\n",
            Phase.KILLED,
            "out of memory: used 1.0 MB, requested 1.1 GB",
        ),
        (b"1|OUT_OF_MEMORY|0:125|||0\n", Phase.KILLED, "out of memory"),
        (b"1|FAILED|9:0|||50M\n", Phase.ENDED, "exit code 9:0"),
        (b"1|TIMEOUT|0:0|||50M\n1.batch|CANCELLED|0:15||90M|\n", Phase.KILLED, "time limit reached"),
    ],
)
def test_slurm_accounting_tells_a_job_that_was_killed_for_its_memory(
    lines: bytes, phase: Phase, reason: str
) -> None:
    found = load_scheduler("slurm").read_accounting(CommandResult(0, lines, b""))
    assert found is not None
    assert (found["1"].phase, found["1"].reason) == (phase, reason)


def test_slurm_accounting_query_starts_one_day_early_for_any_time_zone() -> None:
    for since, start in (("2026-03-01", "2026-02-28"), ("2026-01-01", "2025-12-31"), ("no date", "no date")):
        argv = load_scheduler("slurm").accounting_argv(["7"], "", since)
        assert f"--starttime={start}" in argv


def test_slurm_output_is_parsed_among_login_messages_and_jobs_of_other_users() -> None:
    slurm = load_scheduler("slurm")
    for stdout in (b"Welcome!\n12;cluster\n", b"Submitted batch job 12\n", b"12\n\nmotd: 3 nodes\n"):
        assert slurm.read_submit(CommandResult(0, stdout, b"")) == Submitted("12")
    assert slurm.read_lookup(CommandResult(0, b"12:mallory\n13:me\n", b""), "me") == "13"


def test_slurm_commands_pass_a_forced_command_whose_refusal_is_a_failed_query() -> None:
    """Read as an empty list, it would mean that there is no such job, and allow a second submission."""
    slurm = load_scheduler("slurm")
    commands = [
        slurm.submit_argv(Job(RUN, "/w/job.sh")),
        slurm.status_argv(["1", "2"]),
        slurm.lookup_argv(RUN),
    ]
    for word in [word for argv in [*commands, slurm.cancel_argv("1")] for word in argv]:
        assert re.fullmatch(r"[A-Za-z0-9_./:=@%+,-]+", word)
    for stdout in (b"This account can only run: squeue\n", b"rejected\n", b"error: not allowed\n"):
        refusal = CommandResult(0, stdout, b"")
        with pytest.raises(TryLaterError):
            slurm.read_status(refusal, ["1"])
        with pytest.raises(TryLaterError):
            slurm.read_lookup(refusal, "me")
        assert not slurm.read_accounting(refusal)
        assert isinstance(slurm.read_submit(refusal), Unclear)


def test_unclear_slurm_submissions_are_looked_up() -> None:
    slurm = load_scheduler("slurm")
    lost = b"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    assert isinstance(slurm.read_submit(CommandResult(1, b"", lost)), Unclear)
    limit = b"sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)\n"
    answer = slurm.read_submit(CommandResult(1, b"", limit))
    assert isinstance(answer, NotSubmitted)
    assert answer.error.transient


@pytest.mark.parametrize(
    "stderr",
    [  # of sbatch 22.05, which ends with 255 before it sends anything
        b"sbatch: unrecognized option '--bogus=1'\nTry \"sbatch --help\" for more information\n",
        b"sbatch: error: Invalid --time specification\n",
        b"Invalid time specification (pos=0): nonsense\nsbatch: error: Invalid --begin specification\n",
        b"sbatch: error: Invalid --mem specification\n",
    ],
)
def test_options_that_sbatch_refuses_are_rejected_at_once(stderr: bytes) -> None:
    answer = load_scheduler("slurm").read_submit(CommandResult(255, b"", stderr))
    assert isinstance(answer, NotSubmitted)
    assert isinstance(answer.error, UsageError)
    assert "\\n" not in answer.error.message
    assert answer.error.message.count("; ") == stderr.count(b"\n") - 1
    lost = b"sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    for unclear in (b"", b"ssh: connection closed\n", lost):
        assert isinstance(load_scheduler("slurm").read_submit(CommandResult(255, b"", unclear)), Unclear)
    for code in (124, 130, 143):
        assert isinstance(load_scheduler("slurm").read_submit(CommandResult(code, b"", stderr)), Unclear)


_POLICY = (
    b"sbatch: error: Batch job submission failed: Job violates accounting/QOS policy"
    b" (job submit limit, user's size and/or time limits)\n"
)


def test_too_many_jobs_name_the_setting_that_waits_for_a_place() -> None:
    full = load_scheduler("slurm").read_submit(
        CommandResult(1, b"", b"sbatch: error: AssocMaxSubmitJobLimit\n" + _POLICY)
    )
    assert isinstance(full, NotSubmitted)
    assert full.error.transient
    assert "queued_jobs" in full.error.hint
    for limit in (b"QOSMaxWallDurationPerJobLimit", b"AssocGrpCpuLimit"):
        never = load_scheduler("slurm").read_submit(
            CommandResult(1, b"", b"sbatch: error: " + limit + b"\n" + _POLICY)
        )
        assert isinstance(never, NotSubmitted)
        assert isinstance(never.error, UsageError)


@pytest.mark.parametrize(
    ("folder", "log"),
    [
        ("/w", "scheduler.log"),
        ("/w x$y'z", "scheduler.log"),
        ("/100%j", "/100%%j/scheduler.log"),
        ("/a\\b", "/a\\\\b/scheduler.log"),
        ("/a\\%j", "/a\\\\%j/scheduler.log"),
    ],
)
def test_the_log_of_a_job_is_named_for_slurm_s_patterns(folder: str, log: str) -> None:
    assert f"--output={log}" in load_scheduler("slurm").submit_argv(Job(RUN, f"{folder}/job.sh"))


def test_a_direct_job_gets_its_cores_and_time() -> None:
    wanted = Resources(seconds=600, tasks=2, cores=2)
    directives = load_scheduler("direct").directives(wanted)
    assert [line.partition(" ")[2] for line in directives] == ["--cores=4", "--time=600"]


def spoiled(content: bytes, chance: random.Random) -> bytes:
    """Return damaged output: truncated, duplicated, huge or not text."""
    pieces = [
        *(b"\0", b"\xff\xfe", b"\x1b]0;x\x07", "\u202e".encode(), b"<!DOCTYPE a>", b"<a>" * 99, b"9" * 5000),
        *(
            b"{",
            b"[" * 2000,
            b"null",
            b"-1",
            b"\n",
            b"|",
            b"'",
            b"2026-13-45T99:99:99",
            b"NaN",
            b"1e999",
            b"\xc2\xb2",
        ),
    ]
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randint(0, len(content)), chance.choice((0, 1, 7, 100))
        content = content[:at] + chance.choice([*pieces, content[at : at + 50], b""]) + content[at + length :]
    return content


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_damaged_output_is_parsed_or_raises_a_hibali_error(path: Path) -> None:
    """Any output is parsed without a crash, and yields no job id that could be an option or end a line."""
    recorded = json.loads(path.read_text())
    scheduler = load_scheduler(path.parent.name)
    chance = random.Random(path.name)  # noqa: S311  # the same ones each time
    for _ in range(150):
        stdout = [recorded[name].encode() for name in ("stdout", "stderr")]
        which = chance.randint(0, 1) if stdout[1] else 0
        stdout[which] = spoiled(stdout[which], chance)
        code = chance.choice((recorded["exit_code"], 0, 1, 255))
        finished = CommandResult(code, *stdout)
        found = _meaning(scheduler, recorded, finished)
        job = found.get("submitted", found.get("job")) if isinstance(found, dict) else None
        assert job is None or check_job_id(job) == job

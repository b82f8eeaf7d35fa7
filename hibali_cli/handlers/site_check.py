"""Check a site, measure its connection, log in to Globus, and show usage and leftovers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import click

from hibali.amounts import format_duration, format_size
from hibali.config.edit import add_sites, has_site, plan_site, render_site
from hibali.config.kinds import SiteDescription, StoreKind, every_kind
from hibali.config.model import Site
from hibali.config.settings import require_built
from hibali.errors import AccessError, Exit, HibaliError, TryLaterError, UsageError
from hibali.locations import Location, read_location
from hibali.subprocesses import has_terminal
from hibali.text import counted, path_fields, printable
from hibali_cli.cells import time_cell
from hibali_cli.dialogue import read_line, terminal_as_stdout
from hibali_cli.failure import print_error
from hibali_cli.fields import write_list
from hibali_cli.handlers.sites import no_sites, site_table
from hibali_cli.options import Common
from hibali_cli.output import Cell, write_message
from hibali_cli.progress import listening
from runs.rate_limits import site_usage, start_afresh
from runs.site_health import check_and_record, most_important
from transfers.check import Trial, Tuning, clean_site, tune
from transfers.model.units import CleanupResult, Leftover
from transfers.remote.connection import forced_command_script
from transfers.stores import login_protocol

_CLOCK_SECONDS = 120  # a check may take some time after the clock was read


def check_and_print(common: Common, site: Site) -> None:
    """Print what the site reports; raises the most important problem, if any."""
    require_built(site)
    start_afresh(site)
    with listening(common, f"check {site.name}") as on_event:
        report = check_and_record(site, on_event)
    problems = report.problems
    if common.json:
        records = [problem.to_record() for problem in problems]
        common.output.record(
            "site-check", {"name": site.name, "facts": dict(report.facts), "problems": records}
        )
    else:
        common.output.pairs({"site": site.name, **shown_facts(report.facts)})
    for each in report.advice:
        common.output.info(each)
    worst = most_important(problems)
    if worst is None:
        common.output.info(f"{site.name}: the connection works.")
        return
    for problem in problems:
        if problem is not worst:
            print_error(problem)
    raise worst


def shown_facts(facts: Mapping[str, str | int | bool]) -> dict[str, Cell]:
    """Return the facts for users: what names the boot is only for programs, and a clock is compared with this one."""
    shown: dict[str, Cell] = {
        name: ("yes" if fact else "no") if isinstance(fact, bool) else fact
        for name, fact in facts.items()
        if name != "boot"
    }
    if facts.get("clock"):
        lead = float(facts["clock"]) - time.time()
        ahead = f"{format_duration(abs(lead))} {'ahead of' if lead > 0 else 'behind'} this machine"
        shown["clock"] = ahead if abs(lead) >= _CLOCK_SECONDS else "same as this machine"
    return shown


def as_access_or_later(problem: HibaliError) -> HibaliError:
    """Return the problem with exit 4 or 5, with 2 where the settings are invalid, and 3 where something does not exist."""
    if int(problem.exit) in {2, 3, 4, 5}:
        return problem
    return TryLaterError(
        problem.code, problem.message, subject=problem.subject, hint=problem.hint, transient=problem.transient
    )


def tune_and_print(common: Common, site: Site, place: Location | None, logins: int | None) -> None:
    """Measure, and print each trial and the settings to write; raises as measuring does."""
    with listening(common, f"tune {site.name}") as on_event:
        found = tune(site, place, logins, on_event)
    if common.json:
        common.output.record("site-tuning", {"name": site.name, **_fields(found)})
        return
    if found.round_trip is not None:
        common.output.pairs(
            {
                "round trip": f"{found.round_trip * 1000:.1f} ms",
                "login": None if found.login_seconds is None else f"{found.login_seconds:.1f} s",
            }
        )
    if found.trials:
        common.output.table(["logins", "channels", "there", "back"], map(_row, found.trials))
    if found.because:
        common.output.info(f"{found.because[0].upper()}{found.because[1:]}.")
    if found.proposed is not None:
        common.output.line(f"[sites.{site.name}.ssh]")
        common.output.line(f"logins = {found.proposed.logins}")
        common.output.line(f"channels = {found.proposed.channels}")


def _row(trial: Trial) -> tuple[int | str, ...]:
    speeds = (f"{format_size(speed)}/s" for speed in (trial.up, trial.down))
    return (trial.logins, trial.channels, *speeds)


def _fields(found: Tuning) -> dict[str, object]:
    proposed = found.proposed
    return {
        "round_trip_seconds": found.round_trip,
        "login_seconds": found.login_seconds,
        "trials": [
            {
                **{name: value for name, value in asdict(trial).items() if name not in {"up", "down"}},
                "bytes_per_second_up": trial.up,
                "bytes_per_second_down": trial.down,
            }
            for trial in found.trials
        ],
        "proposed": None if proposed is None else {"logins": proposed.logins, "channels": proposed.channels},
        "because": found.because,
    }


def show_usage(common: Common, name: str | None) -> int | None:
    """Show the usage of one site or of all."""
    settings = common.settings()
    sites = (
        [settings.site(name)]
        if name is not None
        else [settings.sites[each] for each in sorted(settings.sites)]
    )
    records = [site_usage(site) for site in sites]
    if write_list(common, "site-usage", records):
        return None
    for number, record in enumerate(records):
        if number:
            common.output.text("\n")
        common.output.pairs(_usage_pairs(record))
    if not records:
        common.output.info(no_sites(settings.path))
    return None


def _usage_pairs(record: dict[str, Any]) -> dict[str, Cell]:
    limits = record["limits"]
    pairs: dict[str, Cell] = {
        "site": record["name"],
        "jobs in the queue": f"{record['queued_jobs']} of {limits['queued_jobs']}",
    }
    for what, key in (
        ("logins", "logins"),
        ("logins refused", "logins_refused"),
        ("scheduler commands", "scheduler_commands"),
        ("transferred", "bytes"),
    ):
        hour, day = record["hour"][key], record["day"][key]
        if key == "bytes":
            hour, day = format_size(hour), format_size(day)
        pairs[what] = f"{hour} in the last hour, {day} in the last day"
    commands = ", ".join(f"{name} {times}" for name, times in record["day"]["commands"].items())
    pairs["commands in the last day"] = commands or None
    pairs["polls"] = f"at most every {limits['poll_seconds']:g} s, after shorter intervals at the start"
    for each in record["refusals"]:
        until = f", paused until {each['paused_until']}" if each["paused_until"] else ""
        pairs[each["by"]] = f"refused {each['times']} times in a row ({each['because']}){until}"
    return pairs


def clean_and_print(
    common: Common, name: str, *, older_than: float, everybody: bool, dry_run: bool
) -> int | None:
    """Abort uncompleted uploads and show each; exit 6 where one could not be aborted."""
    site = common.settings().site(name)
    require_built(site)
    found: list[Leftover] = []
    with listening(common, f"clean {site.name}") as on_event:
        for left in clean_site(
            site, older_than=older_than, everybody=everybody, dry=dry_run, on_event=on_event
        ):
            found.append(left)
            if common.json:
                common.output.record("upload", _leftover_fields(left), flush=True)
    failed = any(left.result is CleanupResult.FAILED for left in found)
    code = Exit.INCOMPLETE if failed else Exit.DONE
    if common.json:
        common.output.record("end", {"count": len(found), "exit": int(code)})
        return int(code)
    if found:
        rows = [
            (left.bucket, left.key, time_cell(left.begun), left.because or str(left.result)) for left in found
        ]
        common.output.table(["bucket", "key", "begun", "now"], rows)
    if not found:
        common.output.info(f"{site.name}: there are no uncompleted uploads that are old enough.")
        return int(code)
    ended = sum(left.result in {CleanupResult.ENDED, CleanupResult.PLANNED} for left in found)
    verb = "would be aborted" if dry_run else "were aborted"
    common.output.info(f"{site.name}: {ended} of {counted(len(found), 'uncompleted upload')} {verb}.")
    return int(code)


def _leftover_fields(left: Leftover) -> dict[str, Any]:
    return {
        "bucket": left.bucket,
        **path_fields(left.key, "key"),
        "begun": left.begun,
        "age": left.age,
        "ours": left.ours,
        "fate": str(left.result),
        "because": left.because,
    }


_SAID = {
    "logged in": "Logged in to {service} for {name}.",
    "same": "{name}: already logged in to {service}.",
    "client": "{name}: the login in config.toml works; each command uses it by itself.",
    "logged out": "Logged out of {service} for {name}.",
}


class _Terminal:
    """Prompts on the terminal (transfers.stores.login_protocol.Prompts)."""

    def __init__(self, site: str) -> None:
        self._site = site

    def ask(self, prompt: str, *, hidden: bool = False) -> str:
        """See Prompts."""
        self._require()
        if hidden:
            answer: str = click.prompt(prompt, hide_input=True, err=True)
            return answer
        with terminal_as_stdout():
            return read_line(f"{prompt}: ", lambda _: [])

    def show(self, message: str) -> None:
        """See Prompts."""
        self._require()
        write_message(message)

    def _require(self) -> None:
        if not has_terminal():
            raise AccessError(
                "login-needed",
                "the login needs you, but stdin and stderr are not a terminal",
                subject=self._site,
                hint=f"On a terminal: hibali sites login {self._site}",
            )


def log_in_and_print(common: Common, name: str) -> None:
    """Log in, prompting on the terminal where needed, and check the site."""
    site = common.settings().site(name)
    found = login_protocol.log_in(site, _Terminal(site.name))
    _print_login(common, site, found, _SAID[found.change])


def log_out_and_print(common: Common, name: str) -> None:
    """Log out and report it."""
    site = common.settings().site(name)
    found = login_protocol.log_out(site)
    is_out = found.change == "logged out"
    _print_login(
        common, site, found, _SAID["logged out"] if is_out else "{name}: not logged in to {service}."
    )


def _print_login(common: Common, site: Site, found: login_protocol.LoginResult, said: str) -> None:
    if common.json:
        fields = {"name": site.name, "change": found.change, "facts": found.facts}
        common.output.record("site-login", fields)
    elif found.facts:
        common.output.pairs({"site": site.name, **found.facts})
    text = said.format(name=site.name, service=found.service)
    common.output.info(f"{text} {found.note}".rstrip())


def check_and_tune(common: Common, name: str, *, tune: bool, logins: int | None) -> int | None:
    """Check a site, and measure its connection on request."""
    settings = common.settings()
    site = settings.site(name)
    if logins is not None and not tune:
        raise click.UsageError("--logins needs --tune.")

    check_and_print(common, site)
    if tune:
        place = read_location(f"{name}:", settings) if site.kind == "ssh" else None
        tune_and_print(common, site, place, logins)
    return None


def add_and_check(common: Common, name: str, **options: Any) -> int | None:
    """Add a site to config.toml, and check that it responds."""
    replace, check = options.pop("replace"), not options.pop("no_check")
    dry_run = options.pop("dry_run")
    given = site_table(name, options)
    fill = every_kind().get(given["kind"], StoreKind()).fill
    if fill is not None and not replace and has_site(common.config, name, given):
        if common.json:
            common.output.record("site-change", {"name": name, "change": "same"})
        common.output.info(f"{name} exists already. To ask its service again, add --replace.")
        return None
    tables = {name: given} if fill is None or not check else _filled(common, name, given, fill)
    if dry_run:
        for each, table in tables.items():
            plan_site(common.config, each, table, replace=replace)
        texts = {each: render_site(each, table) for each, table in tables.items()}
        for each, text in texts.items() if common.json else ():
            common.output.record("site-change", {"name": each, "change": "planned", "toml": text})
        if not common.json:
            common.output.text("\n".join(texts.values()))
        return None
    added = add_sites(common.config, tables, replace=replace)
    for change, site in added:
        if common.json:
            common.output.record("site-change", {"name": site.name, "change": change})
        common.output.info({"same": f"{site.name} exists already."}.get(change, f"{site.name} is {change}."))
    change, site = added[0]
    if check and change != "same":
        _check(common, site)
    return None


def _filled(
    common: Common, name: str, table: dict[str, Any], fill: Callable[..., SiteDescription]
) -> dict[str, Mapping[str, Any]]:
    """Return the table of a site with what its service says about itself, and those of new sites with the same files; show that."""
    try:
        found = fill(name, table, partial(_choose, common))
    except HibaliError as problem:
        if isinstance(problem, UsageError) or problem.code == "no-such-system":
            raise
        common.output.warn(
            f"{name}: {problem.message}. The service did not describe itself, so nothing is filled in; later: the same command with --replace"
        )
        return {name: table}
    known = common.settings().sites
    if common.json:
        filled = [{"key": key, "value": value, "source": source} for key, value, source in found.filled]
        fields = {"name": name, "filled": filled, "notes": found.notes}
        common.output.record("site-description", fields)
    else:
        for key, value, source in found.filled:
            common.output.info(f"{key} = {value} (from {source})")
        for note in found.notes:
            common.output.info(note)
    for each in found.beside.keys() & known.keys():
        common.output.info(f"{each} exists already, and stays as it is.")
    return {name: found.table, **{each: one for each, one in found.beside.items() if each not in known}}


def _choose(common: Common, question: str, names: Sequence[str]) -> str | None:
    if common.json or not has_terminal():
        return None
    with terminal_as_stdout():
        answer = read_line(
            f"{question} ({', '.join(map(printable, names))})? ", lambda _: list(names)
        ).strip()
    return answer if answer in names else None


def _check(common: Common, site: Any) -> None:
    try:
        check_and_print(common, site)
    except HibaliError as problem:
        common.output.info(
            f"{site.name} stays in config.toml. To check it again: hibali sites check {site.name}"
        )
        raise as_access_or_later(problem) from None


def print_forced_command(common: Common, *, python: str, no_agent: bool) -> int | None:
    """Print the forced command."""
    script = forced_command_script(python, agent=not no_agent)
    if common.json:
        common.output.record("gate", {"script": script})
    else:
        common.output.text(script)
    return None

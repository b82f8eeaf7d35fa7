"""Measuring a site's line, and telling what was found and what to set."""

from __future__ import annotations

from dataclasses import asdict

from hibali.amounts import size_words
from hibali.config.model import Site
from hibali.locations import Location
from hibali_cli.options import Common
from hibali_cli.progress import listening
from transfers.check import Trial, Tuning, tune


def tune_and_tell(common: Common, site: Site, place: Location | None, logins: int | None) -> None:
    """Measure, and print each trial and the settings to write; raises what measuring raises."""
    with listening(common, f"tune {site.name}") as tell:
        found = tune(site, place, logins, tell)
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
        common.output.say(f"{found.because[0].upper()}{found.because[1:]}.")
    if found.proposed is not None:
        common.output.line(f"[sites.{site.name}.ssh]")
        common.output.line(f"logins = {found.proposed.logins}")
        common.output.line(f"channels = {found.proposed.channels}")


def _row(trial: Trial) -> tuple[int | str, ...]:
    speeds = (f"{size_words(speed)}/s" for speed in (trial.up, trial.down))
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

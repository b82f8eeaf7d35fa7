"""Sizes and times as people read them."""

from __future__ import annotations


def size_words(size: int) -> str:
    """A size in bytes with three digits or so: `840 B`, `1.2 GB`, in powers of 1000."""
    if size < 1000:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        value /= 1000
        if value < 999.5 or unit == "PB":
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def time_words(seconds: float) -> str:
    """A time in its two largest units: `21 s`, `3 min 20 s`, `2 h 5 min`, `3 d 4 h`."""
    whole = max(1, round(seconds))
    for unit, length, smaller, part in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            rest = whole % length // part
            return f"{whole // length} {unit}" + (f" {rest} {smaller}" if rest else "")
    return f"{whole} s"

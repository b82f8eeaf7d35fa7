"""Whether a filesystem takes names for one that differ in upper and lower case alone; looked at, never tried."""

import os
import stat
from typing import Optional


def folds_case(folder: bytes) -> bool:
    """By the first name with a letter in an existing folder, else by the folder's own; where there is neither, no."""
    folder = os.path.realpath(folder)
    with os.scandir(folder) as names:
        for name in names:
            told = _is_found_otherwise(folder, name.name)
            if told is not None:
                return told
    above, own = os.path.split(folder)
    if not own or os.lstat(above).st_dev != os.lstat(folder).st_dev:
        return False
    return bool(_is_found_otherwise(above, own))


def _is_found_otherwise(folder: bytes, name: bytes) -> Optional[bool]:
    """Whether it is found in the other case, too; None where that says nothing."""
    other = name.swapcase()  # of bytes: ASCII letters alone
    if other == name:
        return None
    try:
        found = os.lstat(os.path.join(folder, name))
        again = os.lstat(os.path.join(folder, other))
    except FileNotFoundError:
        return False
    if not os.path.samestat(found, again):
        return False
    # two names of one file may differ in case alone, where there are hard links
    return True if found.st_nlink == 1 or stat.S_ISDIR(found.st_mode) else None

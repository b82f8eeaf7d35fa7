"""Check the names of userfiles, and guess their types."""

from __future__ import annotations

import re

# Source: the portal's own check. It has no limit of the length; its database has one of 255 characters.
LEGAL_TEXT = r"[A-Za-z0-9][A-Za-z0-9_~!@#%^()\-+=:\[\]{},.?]{0,249}"
LEGAL_NAME = re.compile(LEGAL_TEXT)
SINGLE_FILE = "SingleFile"
COLLECTION = "FileCollection"

# Types of CBRAIN and of its plug-ins for neuroscience, by the ends of names in lower case; the longest end counts.
_TYPES = {
    ".csv": "CSVFile",
    ".dat": "DatFile",
    ".gif": "ImageFile",
    ".jpeg": "ImageFile",
    ".jpg": "ImageFile",
    ".json": "JsonFile",
    ".log": "LogFile",
    ".md": "TextFile",
    ".mgh": "MghFile",
    ".mgz": "MgzFile",
    ".mnc": "MincFile",
    ".mnc.gz": "MincFile",
    ".nii": "NiftiFile",
    ".nii.gz": "NiftiFile",
    ".png": "ImageFile",
    ".tar": "TarArchive",
    ".tar.gz": "TarArchive",
    ".tgz": "TarArchive",
    ".txt": "TextFile",
    ".zip": "ZipArchive",
}


def guess_type(name: str) -> str:
    """Return the type of a single file by the end of its name."""
    lower = name.lower()
    ends = [end for end in _TYPES if lower.endswith(end)]
    return _TYPES[max(ends, key=len)] if ends else SINGLE_FILE

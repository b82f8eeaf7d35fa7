"""Apptainer 1.1 and later, in the mode without setuid or with it."""

from __future__ import annotations

from runs.apptainer import Apptainer

CONTAINER = Apptainer("apptainer")

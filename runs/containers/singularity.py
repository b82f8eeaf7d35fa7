"""SingularityCE 3.10 and later: the same under its own command."""

from __future__ import annotations

from runs.containers.apptainer import Apptainer

CONTAINER = Apptainer("singularity")

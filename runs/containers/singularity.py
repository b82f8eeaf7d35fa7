"""Start tools in SingularityCE 3.10 and later."""

from __future__ import annotations

from runs.containers.apptainer import Apptainer

CONTAINER = Apptainer("singularity")

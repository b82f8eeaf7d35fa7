"""The double as a process: `python -m tests.services.globus FILE`, its address is written to FILE."""

from tests.services.globus.http import main

main()

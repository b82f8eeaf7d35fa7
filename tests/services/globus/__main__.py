"""Run the double as a process that writes its address to FILE: `python -m tests.services.globus FILE`."""

from tests.services.globus.http import main

main()

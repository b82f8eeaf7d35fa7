"""Run `hibali` as `python -m hibali_cli`."""

from hibali_cli.main import main

main()

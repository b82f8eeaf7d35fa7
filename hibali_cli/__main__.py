"""`python -m hibali_cli` is `hibali`."""

from hibali_cli.main import main

main()

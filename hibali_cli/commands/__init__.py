"""One module per command: the folder is the table."""

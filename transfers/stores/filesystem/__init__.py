"""Store files at a filesystem behind an interface of single calls: list, read ranges, write, rename."""

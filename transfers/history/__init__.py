"""Read the journals of operations: lists, the moves of one file, and what is not verified; nothing here changes data."""

"""Read the journals of operations: lists, moves of a file, and unverified files; data is not changed."""

"""Give other people access to files, prove it, and end it."""

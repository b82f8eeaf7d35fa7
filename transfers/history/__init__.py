"""What operations did, told from their journals: lists, one file's moves, what is not proven; nothing here changes data."""

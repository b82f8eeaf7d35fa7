"""Store many small files in few tar files (packs), each with an index next to it."""

"""Many small files in few tar files, each with an index beside it."""

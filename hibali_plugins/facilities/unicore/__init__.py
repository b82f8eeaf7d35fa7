"""Store files at the storages of UNICORE/X, and send it requests for jobs."""

"""Read and write DataLad datasets and git-annex repositories on this machine."""

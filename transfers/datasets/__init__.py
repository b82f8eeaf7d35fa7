"""Places in DataLad datasets and git-annex repositories of this machine."""

"""Datasets in public archives, by their DOI: Zenodo, Figshare, Dataverse, DANDI, OSF; read-only."""

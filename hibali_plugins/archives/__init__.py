"""Datasets in public archives, by their DOI: Zenodo, Figshare, Dataverse, DANDI, OSF, OpenNeuro; read-only."""

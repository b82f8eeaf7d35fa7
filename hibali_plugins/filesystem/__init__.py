"""Open files at sites as files of this machine: the filesystem `hibali://` of fsspec, and `hibali.open`."""

"""Store files through any fsspec filesystem: Google Cloud Storage, Azure, HDFS, Dropbox and others."""

"""Stores for object storage servers with the S3 protocol."""

"""Transfers and hashing by compute nodes: tasks of a job array at a site."""

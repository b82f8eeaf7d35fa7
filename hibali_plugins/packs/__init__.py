"""Packs: many small files as a few tar files, each with an index, for tape or quotas of inodes."""

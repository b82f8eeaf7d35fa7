"""The program that moves one shard of a transfer at a compute node: it needs Python 3.6 and nothing else."""

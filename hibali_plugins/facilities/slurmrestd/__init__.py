"""Run jobs through Slurm's REST API, at a site whose files are reached by ssh or are on this machine."""

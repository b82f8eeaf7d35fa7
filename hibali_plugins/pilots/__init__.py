"""Run the tasks of a sweep inside one job, as many at once as it has cores: `hibali run --pilot`."""

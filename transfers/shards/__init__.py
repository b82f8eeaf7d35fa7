"""One transfer by many compute nodes: the plan is cut into shards, and each shard is one task of a job array."""

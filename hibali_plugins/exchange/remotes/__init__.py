"""Exchange pipelines between catalogues: one module for each kind of remote."""

"""Exchange pipelines and their images with remotes and Zenodo: `hibali pipelines publish`, `fetch`, `sign`, `remotes`, `image get`."""

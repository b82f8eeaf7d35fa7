"""The services of the contract tests of job services: a module for each of `runs.services`, with `open_backend`."""

"""Store files in a bucket of the EBRAINS data proxy."""

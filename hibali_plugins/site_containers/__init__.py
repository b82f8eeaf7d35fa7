"""Containers that only the administrators of a centre install: Pyxis and the Container Engine, podman-hpc, Sarus and Shifter."""

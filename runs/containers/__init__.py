"""The commands that start tools in each container runtime."""

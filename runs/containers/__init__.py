"""How each container runtime is started."""

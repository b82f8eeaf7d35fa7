"""A plugin of hibali: a store, a scheduler and a container, a module each. docs/extending.md explains it."""

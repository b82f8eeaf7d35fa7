"""The commands of each scheduler, and how their output is parsed."""

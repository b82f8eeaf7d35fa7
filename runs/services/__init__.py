"""Job services: REST interfaces that run jobs, beside the schedulers that are reached by commands."""

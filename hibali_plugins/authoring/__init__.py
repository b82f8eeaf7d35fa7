"""Example invocations of a pipeline, and the tests in its descriptor."""

"""The cache of inputs and images at a site."""

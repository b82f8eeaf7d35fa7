"""List and evict what a site caches for later runs."""

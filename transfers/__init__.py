"""Moving data between places, with proof."""

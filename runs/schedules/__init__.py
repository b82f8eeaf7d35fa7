"""Commands that run by themselves at set times, and what is told of them."""

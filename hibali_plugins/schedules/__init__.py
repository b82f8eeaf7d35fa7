"""Run commands of hibali at set times, watch over them, and notify people: `hibali schedule`."""

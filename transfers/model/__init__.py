"""What all parts of a transfer name: entries, units, facts of stores, stores, rules."""

"""A run of a zoo: what it is asked for, its models, how far it is, and what came of it."""

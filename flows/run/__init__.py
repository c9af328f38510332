"""A run of a zoo: its request, models, progress and outcome."""

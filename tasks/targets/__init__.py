"""tasks.targets."""

"""flows.cli."""

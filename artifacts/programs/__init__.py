"""artifacts.programs."""

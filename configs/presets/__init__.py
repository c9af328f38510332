"""configs.presets."""

"""From edge programs to files: delegates, emission, linking and fat programs. Edits change stage keys."""

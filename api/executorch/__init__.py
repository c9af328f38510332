"""Recipes of `executorch.export`, written as ours: what they say, field by field, or which field cannot be said."""

"""Exporting a model's methods. Edits change stage keys."""

"""Lowering of edge programs to payloads: delegates, emission, linking, fat programs. Edits change stage keys."""

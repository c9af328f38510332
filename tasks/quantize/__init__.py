"""Quantization: by PT2E, torchao and the user's functions. Edits change stage keys."""

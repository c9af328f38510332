"""Quantization, one stage a file."""

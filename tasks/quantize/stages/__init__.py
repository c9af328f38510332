"""Stages that quantize."""

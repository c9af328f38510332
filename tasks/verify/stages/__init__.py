"""Stages that run and score files."""

"""Stages that turn modules into ATen programs."""

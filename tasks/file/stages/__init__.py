"""Stages that turn payloads into files."""

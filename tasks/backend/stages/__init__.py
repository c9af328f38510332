"""Stages that turn ATen programs into payloads."""

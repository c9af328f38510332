"""Stages that find out why a model fails or loses quality."""

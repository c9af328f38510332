"""Acme's backend for ExecuTorch, and its target for pteforge."""

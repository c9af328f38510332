"""A preload module that cannot be imported."""

raise ImportError("there is no such accelerator")

"""A preload module that cannot be imported."""

print("about to fail")
raise ImportError("there is no such accelerator")

"""A target for pteforge with passes over edge programs, which are wrong on purpose."""

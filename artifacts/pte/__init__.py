"""`.pte` files: what they hold (`reader`, `contents`, `describe`) and how the store keeps them (`pieces`)."""

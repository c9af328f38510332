"""`.pte` files: what they contain (`reader`, `contents`, `describe`), and `.ptd` files (`ptd`)."""

"""NFAT containers: several specializations of a model, with their common bytes stored once. README.md specifies them.

`pack.pack_v2` writes them (`container.pack_v1` in the layout that upstream proposes), `container.read_container` reads
them, and `container.open_fat` finds the container in a fat `.pte`. Neither torch nor executorch is needed.
"""

"""NFAT containers: several specializations of a model, and what they have in common once. README.md specifies them.

`pack` writes them (`pack_v2`, and `v1.pack_v1` for the layout of upstream's proposal), `container.read_container` reads
both. `fat_file.open_fat` finds the container in a fat `.pte`. Nothing here needs torch or executorch.
"""

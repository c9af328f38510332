"""Artifacts, which stages pass to each other, and the store that keeps them.

Names of content (`digest`, `ref`), the content-addressed store (`store`, `local_store`), the ledger of
finished stages (`ledger`, `records`), leases on running stages (`lease`), the history of runs (`runs`), and maintenance
(`gc`). Nothing here imports torch, and only opening a remote store imports fsspec.
"""

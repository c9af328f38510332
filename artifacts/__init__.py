"""What stages pass to each other, and where it is kept.

Names of content (`digest`, `ref`, `manifest`), the content-addressed store (`local_store`, `store`, `remote_store`),
the ledger of finished stages (`ledger`, `signing`), who computes what right now (`lease`), what runs did (`runs`), and
upkeep (`gc`). Nothing here imports torch, and fsspec is imported only where a remote store is opened.
"""

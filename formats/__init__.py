"""Readers and writers of file formats: `.pte`, `.ptd` and NFAT containers. No torch and no store."""

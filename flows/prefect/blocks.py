"""A Prefect block for a store: its URL and signing key, kept by the server instead of in each machine's environment.

Register it once: ``prefect block register -m pteforge``.
"""

from __future__ import annotations

import os
from typing import Any

from prefect.blocks.core import Block
from pydantic import Field, SecretStr

from ...artifacts.records import KEY_VARIABLE
from ...errors import InputError, first_line
from .settings import server_configured


class PteforgeStore(Block):
    """An artifact store that several machines share; use it as ``--store block:NAME``."""

    _block_type_name = "Pteforge Store"
    _block_type_slug = "pteforge-store"
    _description = "An artifact store of pteforge that several machines share."

    url: str = Field(description="URL of the store, such as s3://bucket/prefix.")
    signing_key: SecretStr | None = Field(
        None, title="Signing key", description="Signs the store's records; 32 characters or more."
    )


def open_block(name: str) -> str:
    """The URL of the store that a block names. Its signing key is this process's, and its children's, from now on.

    Raises InputError if the server does not have the block, or does not answer.
    """
    if not server_configured():
        raise InputError(f"the store block:{name} is kept by a Prefect server; set PREFECT_API_URL")
    load: Any = PteforgeStore.load
    try:
        block = load(name, _sync=True)
    except ValueError as error:  # Prefect's for a block that is not there
        raise InputError(
            f"Prefect's server has no block pteforge-store/{name}; register its type with "
            "`prefect block register -m pteforge`, then make it in the UI"
        ) from error
    except Exception as error:
        raise InputError(
            f"the block pteforge-store/{name} cannot be read from Prefect's server "
            f"({type(error).__name__}: {first_line(error)}); check PREFECT_API_URL"
        ) from error
    if block.signing_key:
        os.environ[KEY_VARIABLE] = block.signing_key.get_secret_value()
    return str(block.url)

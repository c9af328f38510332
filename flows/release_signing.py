"""Signatures of releases in the OpenSSF model-signing format, with an own key: no service is asked, nothing is sent.

A release's manifest is signed. It has the SHA-256 of every file, so the signature covers all of them. In the terms of
the format, the manifest is a model of one file, ``release.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import InputError, ReleaseDamaged, first_line

_NAME = "release.json"


def check_key(key: Path) -> None:
    """Raises InputError, before any work, if a key is no file or signing is not installed."""
    _library()
    if not key.is_file():
        raise InputError(
            f"there is no key at {key}; make a pair with: openssl ecparam -name prime256v1 -genkey -noout -out {key}, "
            f"then openssl ec -in {key} -pubout -out {key.with_suffix('.pub')}"
        )


def sign_manifest(content: bytes, private_key: Path) -> bytes:
    """A signature: a Sigstore bundle as JSON. Raises InputError if the key cannot be used."""
    check_key(private_key)
    with _written(content) as (manifest, signature):
        try:
            signer = _library().signing.Config().use_elliptic_key_signer(private_key=private_key)
            signer.sign(manifest, signature)
        except Exception as error:
            raise InputError(f"{private_key} cannot sign: {first_line(error)}; give an elliptic-curve key") from error
        return signature.read_bytes()


def verify_manifest(content: bytes, signature: bytes, public_key: Path, release: str) -> None:
    """Raises ReleaseDamaged unless the signature is for this content and made with the private part of the key."""
    check_key(public_key)
    with _written(content) as (manifest, bundle):
        bundle.write_bytes(signature)
        try:
            verifier = _library().verifying.Config().use_elliptic_key_verifier(public_key=public_key)
        except Exception as error:
            raise InputError(f"{public_key} is not a public key: {first_line(error)}") from error
        try:
            verifier.verify(manifest, bundle)
        except Exception as error:
            raise ReleaseDamaged(
                f"the signature of release {release} does not fit {public_key}: {first_line(error)}; do not use it"
            ) from error


@contextmanager
def _written(content: bytes) -> Iterator[tuple[Path, Path]]:
    """The manifest as a file in a private folder, and the path of its signature."""
    with TemporaryDirectory(prefix="pteforge-") as folder:
        manifest = Path(folder) / "release" / _NAME
        manifest.parent.mkdir()
        manifest.write_bytes(content)
        yield manifest, Path(folder) / "signature"


def _library() -> Any:
    try:
        import model_signing  # noqa: PLC0415 - an extra, and slow
    except ImportError as error:
        raise InputError(
            f"signatures need a package that is not installed: {error}; pip install 'pteforge[signing]'"
        ) from error
    return model_signing

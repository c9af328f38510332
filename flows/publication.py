"""The release that a run makes of its files at the end, where the zoo or the user asks for one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..artifacts.runs import RunRecord
from ..configs.load import LoadedZoo
from ..configs.zoo import PublishConfig
from ..errors import InputError
from .outcome import ZooOutcome

if TYPE_CHECKING:  # these import fsspec and readers of files, which runs without a release do without
    from .comparison import Gate
    from .release_contents import ReleaseContents
    from .release_records import Published

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Publication:
    """Where releases are made, and how; `skipped` is why this run makes none."""

    url: str
    channel: str = "latest"
    keep: int = 30
    gates: tuple[Gate, ...] = ()
    key: Path | None = None
    skipped: str = ""

    @classmethod
    def of(cls, config: PublishConfig) -> Publication:
        """Raises InputError if the gates cannot be understood, or there is no key."""
        from .comparison import parse_gates  # noqa: PLC0415 - see above
        from .release_signing import check_key  # noqa: PLC0415 - see above

        if config.sign:
            check_key(config.sign)
        gates = parse_gates(config.gates) if config.gates else ()
        return cls(config.url, config.channel, config.keep, gates, config.sign)

    def publish(self, contents: ReleaseContents) -> Published:
        """Raises as `releases.Releases.publish`."""
        from .releases import Releases  # noqa: PLC0415 - see above

        releases = Releases(self.url)
        return releases.publish(contents, channel=self.channel, keep=self.keep, gates=self.gates, key=self.key)

    def publish_results(self, outcome: ZooOutcome, record: RunRecord) -> Published | None:
        """Releases the files of a run that made all of them, else logs why not. Raises as `publish`."""
        if reason := self.skipped or (outcome.failures and "not all files were made"):
            _log.warning("nothing is published: %s", reason)
            return None
        from .release_contents import read_contents  # noqa: PLC0415 - see above

        found: dict[str, dict[str, Path]] = {}
        for model, recipe in outcome.recipes:
            if recipe.path:
                found.setdefault(model.model, {})[recipe.recipe] = recipe.path
        return self.publish(read_contents(record.zoo, found, [record]))


def publication_of(loaded: LoadedZoo, parameters: Mapping[str, Any]) -> Publication | None:
    """What a run with these parameters of `export_zoo` publishes. Only a whole run does so without being asked.

    Raises InputError, before any work, if that cannot be done.
    """
    config, url = loaded.zoo.publish, parameters.get("publish")
    if url and parameters.get("until"):
        raise InputError("--publish needs files, and --until stops before they are made; leave one of them out")
    if url:
        config = config.model_copy(update={"url": url}) if config else PublishConfig(url=url)
    if config is None:
        return None
    parts = [name for name in ("models", "recipes") if parameters.get(name, "*") != "*"]
    parts += [name for name in ("until", "debug") if parameters.get(name)]
    if parts and not url:
        return Publication(
            config.url, skipped=f"it was not a whole run ({', '.join(parts)}); use --publish URL to do so"
        )
    try:
        return Publication.of(config)
    except InputError as error:
        raise loaded.locations.error(str(error), ("publish",)) from error

"""The cache key of a project's artifacts: what a CI cache of the state directory is kept under."""

from collections.abc import Mapping, Sequence

from puffrun.artifacts.freshness.freshness import make_site, observe_parts, open_cache
from puffrun.artifacts.graph import select_artifacts
from puffrun.artifacts.store.manifest import hash_json
from puffrun.config import RunConfig

PREFIX = "puffrun-artifacts-1-"  # the number changes when the store's layout does
SHOWN = 32


def make_cache_key(
    config: RunConfig, names: Sequence[str] | None, *, env: Mapping[str, str]
) -> str:
    """Hash what all artifacts are made from: the same before and after they are built.

    The hashes of what an artifact needs are left out, for they are only known after a build; the
    sources of what it needs stand in the key themselves.

    Raises:
        UsageError: a name is not known, or an artifact makes no sense.
    """
    site = make_site(config, env)
    parts = {}
    for spec in select_artifacts(config.artifacts, names):
        unbuilt = dict.fromkeys(spec.needs)
        seen = observe_parts(spec, site, unbuilt, open_cache(site, spec))
        parts[spec.name] = seen | {"needs": sorted(spec.needs)}
    return PREFIX + hash_json(parts)[:SHOWN]

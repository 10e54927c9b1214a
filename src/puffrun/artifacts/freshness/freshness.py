"""Is an artifact fresh? Looking only: no lock, no write, and a reason in words if it is not."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from puffrun.artifacts.freshness.hashing import HashCache
from puffrun.artifacts.freshness.inputs import find_inputs
from puffrun.artifacts.freshness.outputs import find_damage, find_missing_installs
from puffrun.artifacts.freshness.probes import PROBES, ProbeSite, probe_machine
from puffrun.artifacts.freshness.reasons import StaleReason, compare_parts, render_reasons
from puffrun.artifacts.freshness.tools import identify_tool
from puffrun.artifacts.graph import list_destinations, select_artifacts, suggest
from puffrun.artifacts.store.artifact_store import Store, open_store
from puffrun.artifacts.store.manifest import (
    SCHEMA,
    Manifest,
    find_manifest,
    find_newest_manifest,
    hash_json,
)
from puffrun.config import ArtifactSpec, RunConfig
from puffrun.errors import UsageError


@dataclass(frozen=True)
class Freshness:
    """Whether an artifact is fresh, and why not. `dir` is its immutable directory when it is.

    `covers` says what its fingerprint is made of, for `--explain`.
    """

    name: str
    fingerprint: str
    reasons: tuple[StaleReason, ...]
    dir: Path | None
    covers: str

    @property
    def fresh(self) -> bool:
        """Whether there is nothing to do."""
        return not self.reasons

    @property
    def reason(self) -> str:
        """The first few reasons in one line; empty when it is fresh."""
        return render_reasons(self.reasons)


@dataclass(frozen=True)
class Site:
    """What all artifacts of one request have in common."""

    root_dir: Path
    state_dir: Path
    env: Mapping[str, str]
    destinations: frozenset[str]  # what artifacts write into the tree is nobody's input
    build_command: str = "puffrun build-artifacts"  # for hints


@dataclass(frozen=True)
class Observed:
    """What one look at an artifact has shown.

    `manifest` is the one of this fingerprint, if any. `damage` says why it must be built,
    `missing` which installed copies must be written again.
    """

    spec: ArtifactSpec
    store: Store
    parts: Mapping[str, Any]
    fingerprint: str
    manifest: Manifest | None
    damage: tuple[StaleReason, ...]
    missing: tuple[StaleReason, ...]

    @property
    def reasons(self) -> tuple[StaleReason, ...]:
        """Everything that keeps it from being fresh."""
        return (*self.damage, *self.missing)


def make_site(config: RunConfig, env: Mapping[str, str]) -> Site:
    """Gather what all artifacts have in common."""
    destinations = frozenset(d for spec in config.artifacts for d in list_destinations(spec))
    return Site(config.root_dir, config.state_dir, env, destinations, config.build_command)


def check_artifacts(
    config: RunConfig, names: Sequence[str] | None, *, env: Mapping[str, str]
) -> tuple[Freshness, ...]:
    """Say which artifacts are fresh, and why the others are not; needs come first.

    Raises:
        UsageError: a name is not known, or an artifact makes no sense.
    """
    site = make_site(config, env)
    needs: dict[str, str | None] = {}
    found = []
    for spec in select_artifacts(config.artifacts, names):
        seen = observe(spec, site, needs, open_cache(site, spec))
        fresh = seen.manifest is not None and not seen.reasons
        needs[spec.name] = seen.manifest.outputs_hash if fresh and seen.manifest else None
        found.append(make_freshness(seen))
    return tuple(found)


def make_freshness(seen: Observed) -> Freshness:
    """Say what was seen in the words of the public value."""
    object_dir = None
    if seen.manifest is not None and not seen.reasons:
        object_dir = seen.store.object_dir(seen.manifest.attempt)
    return Freshness(
        seen.spec.name,
        seen.fingerprint,
        seen.reasons,
        object_dir,
        describe_parts(seen.parts),
    )


def open_cache(site: Site, spec: ArtifactSpec) -> HashCache:
    """Load what is remembered about the files of an artifact."""
    return HashCache(open_store(site.state_dir, spec.name).cache_path)


def observe(
    spec: ArtifactSpec, site: Site, needs: Mapping[str, str | None], cache: HashCache
) -> Observed:
    """Look at an artifact once. `needs` are the output hashes of what it needs; None: stale.

    Raises:
        UsageError: an input is missing or cannot be read.
    """
    store = open_store(site.state_dir, spec.name)
    parts = observe_parts(spec, site, needs, cache)
    fingerprint = hash_json(parts)
    manifest = find_manifest(store, fingerprint)
    damage = _judge(store, manifest, parts, cache)
    missing: tuple[StaleReason, ...] = ()
    if manifest is not None and not damage:
        missing = find_missing_installs(spec, site.root_dir, manifest, cache)
    return Observed(spec, store, parts, fingerprint, manifest, damage, missing)


def _judge(
    store: Store, manifest: Manifest | None, parts: Mapping[str, Any], cache: HashCache
) -> tuple[StaleReason, ...]:
    """Say why it must be built: what changed since the last time, or what is damaged."""
    if manifest is not None:
        return find_damage(store, manifest, cache)
    newest = find_newest_manifest(store)
    if newest is None:
        return (StaleReason("never-built"),)
    return compare_parts(newest.parts, parts) or (StaleReason("never-built"),)


def observe_parts(
    spec: ArtifactSpec, site: Site, needs: Mapping[str, str | None], cache: HashCache
) -> dict[str, Any]:
    """Gather all that the fingerprint covers (docs/artifacts.md has the table).

    Raises:
        UsageError: an input is missing or cannot be read.
    """
    probe_site = ProbeSite(site.env, cache)
    return {
        "schema": SCHEMA,
        "machine": probe_machine(),
        "cmd": list(spec.cmd),
        "mode": spec.mode,
        "outputs": list(spec.outputs),
        "env": {name: site.env.get(name) for name in spec.env},
        "inputs": _observe_inputs(spec, site, cache),
        "tools": {t: identify_tool(t, site.root_dir, site.env, cache) for t in spec.tools},
        "probes": {name: PROBES[name](probe_site) for name in spec.probe},
        "needs": {name: needs[name] for name in spec.needs},
    }


def _observe_inputs(spec: ArtifactSpec, site: Site, cache: HashCache) -> dict[str, str]:
    where = f"artifact `{spec.name}`"
    try:
        inputs = find_inputs(site.root_dir, spec.inputs, site.destinations, cache)
    except OSError as error:
        raise UsageError(f"{where}: input `{error.filename}`: {error.strerror}") from None
    for path in inputs.unmatched:
        if (site.root_dir / path).is_dir():
            raise UsageError(f"{where}: input `{path}` is a directory without files")
        siblings = {p.name for p in (site.root_dir / path).parent.glob("*")}
        raise UsageError(
            f"{where}: input `{path}` does not exist in {site.root_dir}",
            hint=suggest(Path(path).name, siblings),
        )
    if inputs.is_empty and not site.destinations.issuperset(spec.inputs):
        patterns = ", ".join(f"`{pattern}`" for pattern in spec.inputs)
        raise UsageError(
            f"{where}: no file matches its inputs {patterns}",
            hint=f"patterns are relative to {site.root_dir}",
        )
    return inputs.hashes


def describe_parts(parts: Mapping[str, Any]) -> str:
    """Say what a fingerprint covers in one line."""
    count = len(parts["inputs"])
    named = [
        f"{count} input{'' if count == 1 else 's'}",
        *(f"{name}={value}" for name, value in parts["env"].items() if value is not None),
        *parts["tools"],
        *(f"{name} {value}" for name, value in parts["probes"].items()),
        *parts["needs"],
    ]
    return ", ".join(named)

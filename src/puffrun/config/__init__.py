"""What was asked: `RunConfig`, loaded from TOML and overridden by flags."""

from puffrun.config.launch_options import LAUNCH_KEYS, apply_flags
from puffrun.config.load import load_config
from puffrun.config.run_config import ArtifactSpec, LaunchOptions, RunConfig, TrainSection
from puffrun.config.table import hint_nearest, name_nearest

__all__ = [
    "LAUNCH_KEYS",
    "ArtifactSpec",
    "LaunchOptions",
    "RunConfig",
    "TrainSection",
    "apply_flags",
    "hint_nearest",
    "load_config",
    "name_nearest",
]

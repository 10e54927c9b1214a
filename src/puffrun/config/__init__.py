"""What was asked: `RunConfig`, loaded from TOML and overridden by flags."""

from puffrun.config.launch import LAUNCH_KEYS, apply_flags
from puffrun.config.load import load_config
from puffrun.config.table import hint_nearest, name_nearest
from puffrun.config.values import ArtifactSpec, LaunchOptions, RunConfig, TrainSection

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

"""puffrun: launch multi-rank PyTorch training that is built once, never hung, and says why it ended."""

__version__ = "0.1.0"

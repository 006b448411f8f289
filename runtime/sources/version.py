"""The version that `source.version` of every event names."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    RUNTIME_VERSION = version("dfc")
except PackageNotFoundError:  # shipped to executors as bare files
    RUNTIME_VERSION = "0.1.0"

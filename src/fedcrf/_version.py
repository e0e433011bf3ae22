"""The one place the version is written."""

__version__ = "1.0.0rc1"

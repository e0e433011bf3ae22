"""Experiments: what to run, running it, keeping the results, and showing them."""

from fedcrf.extras import naming_extras

with naming_extras():
    import pydantic  # noqa: F401
    import tomli_w  # noqa: F401
    import torch  # noqa: F401

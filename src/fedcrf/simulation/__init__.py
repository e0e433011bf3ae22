"""The federated simulation: the clients' data, their local training, and the rounds."""

from fedcrf.extras import naming_extras

with naming_extras():
    import pydantic  # noqa: F401
    import torch  # noqa: F401

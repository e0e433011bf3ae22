"""Federated learning whose server decides by inference how much to trust each client.

The rule alone needs NumPy and nothing else::

    from fedcrf import ClientCRF
    posterior = ClientCRF().infer(updates, num_examples)

`simulate` trains any model at any sites; it needs the extra ``simulation``.
"""

from fedcrf._version import __version__
from fedcrf.crf import (
    ClientCRF,
    EvidenceCRF,
    Posterior,
    RobustCRF,
    exact_marginals,
)
from fedcrf.errors import FedcrfError
from fedcrf.own import simulate

__all__ = [
    "ClientCRF",
    "EvidenceCRF",
    "FedcrfError",
    "Posterior",
    "RobustCRF",
    "__version__",
    "exact_marginals",
    "simulate",
]

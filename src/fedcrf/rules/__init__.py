"""Server rules: how the clients' models become the next global model.

A rule is a frozen dataclass in a file of its own and a line in `RULES`; its fields are its
settings, and a run's description may set them by name. `Optimized` adds a server optimizer of
`SERVER_OPTIMIZERS` to any of them. `find_rule` finds these, ByzFL's (`BYZFL_RULES`) and rules from
outside by name.
"""

from collections.abc import Mapping

from fedcrf.extensions import check_class, find
from fedcrf.rules.awa import FedAWA
from fedcrf.rules.base import (
    LABEL_DIVERGENCE,
    RESIDUAL_LOSS,
    AggregationResult,
    ClientReport,
    Deciding,
    Memory,
    Round,
    Rule,
    aggregate_or_keep,
    reported_evidence,
)
from fedcrf.rules.bra import BRA
from fedcrf.rules.byzfl import BYZFL_RULES, PREFIX, ByzFLRule, byzfl_rule
from fedcrf.rules.centered import CenteredClipping
from fedcrf.rules.coordinatewise import CoordinateMedian, FoundationFL, TrimmedMean
from fedcrf.rules.crf import CRF, CRFEvidence, CRFRobust, CRFRobustEvidence
from fedcrf.rules.disco import FedDisco
from fedcrf.rules.dnc import DnC
from fedcrf.rules.fedscs import FedSCS
from fedcrf.rules.flame import FLAME
from fedcrf.rules.foolsgold import FoolsGold
from fedcrf.rules.gas import GAS
from fedcrf.rules.geometric import RFA, GeometricMedian
from fedcrf.rules.krum import Krum, MultiKrum
from fedcrf.rules.lasa import LASA
from fedcrf.rules.mean import FedAvg, FedNova, Uniform
from fedcrf.rules.server_optimizers import (
    SERVER_OPTIMIZERS,
    Adagrad,
    Adam,
    FedExP,
    Momentum,
    ServerOptimizer,
    Yogi,
)
from fedcrf.rules.signguard import SignGuard
from fedcrf.rules.state import State
from fedcrf.rules.trust import FLTrust
from fedcrf.rules.wrappers import Optimized, plain_rule

RULES: Mapping[str, type[Rule]] = {
    "fedavg": FedAvg,
    "uniform": Uniform,
    "fednova": FedNova,
    "coordinate-median": CoordinateMedian,
    "trimmed-mean": TrimmedMean,
    "geometric-median": GeometricMedian,
    "rfa": RFA,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "gas": GAS,
    "fltrust": FLTrust,
    "foundation-fl": FoundationFL,
    "centered-clipping": CenteredClipping,
    "fedawa": FedAWA,
    "feddisco": FedDisco,
    "bra": BRA,
    "fedscs": FedSCS,
    "foolsgold": FoolsGold,
    "dnc": DnC,
    "signguard": SignGuard,
    "flame": FLAME,
    "lasa": LASA,
    "crf": CRF,
    "crf-robust": CRFRobust,
    "crf-evidence": CRFEvidence,
    "crf-robust-evidence": CRFRobustEvidence,
}


def find_rule(name: str) -> type[Rule]:
    """Return the rule of that name: of `RULES`, of ByzFL's (`byzfl_rule`), or from outside.

    A `FedcrfError` says that there is none, or that it is no such class; see `fedcrf.extensions`.
    """
    if name.startswith(PREFIX):
        return byzfl_rule(name)
    found: type[Rule] = find("rule", name, RULES)
    check_class("rule", name, found, Rule)
    return found


__all__ = [
    "BRA",
    "BYZFL_RULES",
    "CRF",
    "FLAME",
    "GAS",
    "LABEL_DIVERGENCE",
    "LASA",
    "RESIDUAL_LOSS",
    "RFA",
    "RULES",
    "SERVER_OPTIMIZERS",
    "Adagrad",
    "Adam",
    "AggregationResult",
    "ByzFLRule",
    "CRFEvidence",
    "CRFRobust",
    "CRFRobustEvidence",
    "CenteredClipping",
    "ClientReport",
    "CoordinateMedian",
    "Deciding",
    "DnC",
    "FLTrust",
    "FedAWA",
    "FedAvg",
    "FedDisco",
    "FedExP",
    "FedNova",
    "FedSCS",
    "FoolsGold",
    "FoundationFL",
    "GeometricMedian",
    "Krum",
    "Memory",
    "Momentum",
    "MultiKrum",
    "Optimized",
    "Round",
    "Rule",
    "ServerOptimizer",
    "SignGuard",
    "State",
    "TrimmedMean",
    "Uniform",
    "Yogi",
    "aggregate_or_keep",
    "byzfl_rule",
    "find_rule",
    "plain_rule",
    "reported_evidence",
]

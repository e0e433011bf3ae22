"""m-sized work: the conditional random field over the clients of a round.

`ClientCRF` is the paper's, `RobustCRF` and `EvidenceCRF` go past it; all are short compositions of
exchangeable parts, a `Field`.
"""

from fedcrf.crf.base_weights import base_weights
from fedcrf.crf.client_crf import ClientCRF
from fedcrf.crf.evidence_crf import EvidenceCRF
from fedcrf.crf.exact import exact_marginals
from fedcrf.crf.field import Field, Inference
from fedcrf.crf.mean_field import mean_field
from fedcrf.crf.observation import Observation, Presence
from fedcrf.crf.pairwise import Attraction, Message, Opposition, PairwisePart
from fedcrf.crf.posterior import Posterior
from fedcrf.crf.robust_crf import RobustCRF
from fedcrf.crf.temporal import Chain, TemporalPart
from fedcrf.crf.unary import (
    Energy,
    EvidencePart,
    Inclination,
    LinearPart,
    NormEvidence,
    Prior,
    PriorPart,
    Reliability,
    ReportedReliability,
    ResponseEvidence,
    SteadinessEvidence,
)

__all__ = [
    "Attraction",
    "Chain",
    "ClientCRF",
    "Energy",
    "EvidenceCRF",
    "EvidencePart",
    "Field",
    "Inclination",
    "Inference",
    "LinearPart",
    "Message",
    "NormEvidence",
    "Observation",
    "Opposition",
    "PairwisePart",
    "Posterior",
    "Presence",
    "Prior",
    "PriorPart",
    "Reliability",
    "ReportedReliability",
    "ResponseEvidence",
    "RobustCRF",
    "SteadinessEvidence",
    "TemporalPart",
    "base_weights",
    "exact_marginals",
    "mean_field",
]

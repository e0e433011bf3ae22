"""m-sized work: the conditional random field over the clients of a round.

`ClientCRF` is the paper's; `RobustCRF` is against attackers, `EvidenceCRF` for unreliable clients.
Each is a `Field`, composed of exchangeable parts.
"""

from fedcrf.crf.client_crf import ClientCRF
from fedcrf.crf.evidence import (
    Camps,
    ConsistencyEvidence,
    GoalEvidence,
    LogOddsPrior,
    NormEvidence,
    Opposition,
    ResponseEvidence,
    SuspectNorm,
)
from fedcrf.crf.evidence_crf import EvidenceCRF
from fedcrf.crf.exact import exact_marginals
from fedcrf.crf.field import Field, Inference, mean_field
from fedcrf.crf.parts import (
    Absent,
    Energy,
    EvidencePart,
    LinearPart,
    Message,
    Observation,
    PairwisePart,
    Prior,
    PriorPart,
)
from fedcrf.crf.posterior import Posterior
from fedcrf.crf.potentials import Attraction, Reliability
from fedcrf.crf.robust_crf import RobustCRF
from fedcrf.crf.weights import base_weights

__all__ = [
    "Absent",
    "Attraction",
    "Camps",
    "ClientCRF",
    "ConsistencyEvidence",
    "Energy",
    "EvidenceCRF",
    "EvidencePart",
    "Field",
    "GoalEvidence",
    "Inference",
    "LinearPart",
    "LogOddsPrior",
    "Message",
    "NormEvidence",
    "Observation",
    "Opposition",
    "PairwisePart",
    "Posterior",
    "Prior",
    "PriorPart",
    "Reliability",
    "ResponseEvidence",
    "RobustCRF",
    "SuspectNorm",
    "base_weights",
    "exact_marginals",
    "mean_field",
]

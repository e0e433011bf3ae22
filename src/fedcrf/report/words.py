"""The sentences about a client's weight, as data, which the terminal and the page fill in alike.

Names in braces are those of `fedcrf.report.explanation.ClientCauses`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedcrf.report.effects import CLIP, COPIES, COUNTED, MISSING, REPORTED, VOTE


@dataclass(frozen=True)
class Wording:
    """Words for values below a bound; ``{}`` stands for the value."""

    below: float
    words: str


@dataclass(frozen=True)
class Words:
    """How a client's weight is told; names in braces are `ClientCauses`'s.

    Attributes:
        attacks: Of the name of a client that attacked in the round.
        attacker: Of one that attacks in other rounds.
        excluded: Of a client whose update was left out.
        weightless: Of a rule that takes coordinates from different clients.
        unexplained: Of a rule that keeps no reasons.
        fell_back: Of a client of a round whose expected labels were all zero. What its weight is
            then, the rule's settings say: its share of the examples, or an equal or a capped one.
        round_fell_back: Of such a round.
        explained: Of a weight with its causes.
        traced: Of a weight by a field past the paper's; ``{told}`` are its causes.
        untraced: Of one whose rule is not known.
        nothing: Where no cause is worth a word.
        decimals: Digits after the point of each value.
        causes: Words for the values of each cause; the first bound above the value counts.
        told: The same for the causes of a field past the paper's, by their names or the first
            words of them: ``{value}`` and the clients' ``{median}``, the rest of the ``{name}``,
            and by what ``{factor}`` it multiplied the weight.
        titles: How tables and charts call these causes.
        particulars: Those that only say how much of another one counts.
        signed: Those whose numbers have a sign.
        or_more: Of a value that may be larger than is counted.
    """

    attacks: str
    attacker: str
    excluded: str
    weightless: str
    unexplained: str
    fell_back: str
    round_fell_back: str
    explained: str
    traced: str
    untraced: str
    nothing: str
    decimals: Mapping[str, int]
    causes: Mapping[str, Sequence[Wording]]
    told: Mapping[str, Sequence[Wording]]
    titles: Mapping[str, str]
    particulars: Sequence[str]
    signed: Sequence[str]
    or_more: str


WORDS = Words(
    attacks="{client} (attacks)",
    attacker="{client} (an attacker, not in this round)",
    excluded="client {client}: weight 0; its update is not finite (NaN or infinity) and was left "
    "out",
    weightless="client {client}: no weight of its own; this rule does not weigh clients",
    unexplained="client {client}: weight {weight}, FedAvg's is {base_weight}; this rule keeps no "
    "reasons",
    fell_back="client {client}: weight {weight}, its base weight; the expected labels of all "
    "clients were zero",
    round_fell_back="Round {round}: all expected labels were zero; the weights are the base "
    "weights.",
    explained="client {client}: weight {weight} instead of FedAvg's {base_weight}; {cosine}, "
    "{distance}, {norm_anomaly}; reliability {reliability}, expected label {expected_label} "
    "({own_label} on its own evidence)",
    traced="client {client}: weight {weight} instead of FedAvg's {base_weight}; {told}; "
    "expected label {expected_label}",
    untraced="client {client}: weight {weight} instead of FedAvg's {base_weight}; expected label "
    "{expected_label}; the rule is not known, only what it saw",
    nothing="nothing speaks against it",
    decimals={
        "weight": 3,
        "base_weight": 3,
        "cosine": 2,
        "distance": 1,
        "norm_anomaly": 1,
        "reliability": 2,
        "expected_label": 2,
        "own_label": 2,
    },
    causes={
        "cosine": (
            Wording(-0.1, "points away from the others (cosine {})"),
            Wording(0.1, "points across the others' direction (cosine {})"),
            Wording(0.5, "leans the way of the others (cosine {})"),
            Wording(math.inf, "points the way of the others (cosine {})"),
        ),
        "distance": (
            Wording(0.75, "near by ({} × the median distance)"),
            Wording(1.5, "usual distance ({} × the median)"),
            Wording(3.0, "far off ({} × the median distance)"),
            Wording(math.inf, "very far off ({} × the median distance)"),
        ),
        "norm_anomaly": (
            Wording(2.0, "usual length ({} deviations off the median)"),
            Wording(5.0, "unusual length ({} deviations off the median)"),
            Wording(math.inf, "very unusual length ({} deviations off the median)"),
        ),
    },
    told={
        "response": (
            Wording(
                -0.1,
                "its update pushes back too little against where the model moved (answer {value}; "
                "median {median}): × {factor}",
            ),
            Wording(
                0.1,
                "its update does not answer where the model moved, where honest clients' push back "
                "(answer {value}; median {median}): × {factor}",
            ),
            Wording(
                math.inf,
                "its update pushes on in the direction the model moved, where honest clients' push "
                "back (answer {value}; median {median}): × {factor}",
            ),
        ),
        "steadiness": (
            Wording(
                math.inf,
                "its update turns from what it was, where honest clients' go on (cosine with its "
                "last {value}; median {median}): × {factor}",
            ),
        ),
        "opposition": (
            Wording(
                math.inf,
                "opposed by trusted clients beyond the median (opposition {value}; median "
                "{median}): × {factor}",
            ),
        ),
        "norm": (
            Wording(
                math.inf,
                "longer than its examples and the others' spread explain (by {value}, as a "
                "logarithm): × {factor}",
            ),
        ),
        "remembered": (
            Wording(0.3, "trusted little since earlier rounds ({value} remembered): × {factor}"),
            Wording(math.inf, "trusted less since earlier rounds ({value} remembered): × {factor}"),
        ),
        COUNTED: (Wording(math.inf, "counts for no more than {value} of the examples it claims"),),
        CLIP: (Wording(math.inf, "update clipped to {value} of its length"),),
        COPIES: (
            Wording(
                math.inf, "a copy of other updates, which share one client's weight: × {factor}"
            ),
        ),
        VOTE: (
            Wording(math.inf, "much like other updates: its vote against others counts {value}"),
        ),
        f"{REPORTED} residual_loss": (
            Wording(
                math.inf,
                "still has a high loss after local training ({value} deviations above the "
                "median): × {factor}",
            ),
        ),
        REPORTED: (
            Wording(
                math.inf, "reports a high {name} ({value} deviations above the median): × {factor}"
            ),
        ),
        MISSING: (Wording(math.inf, "reported no {name}: neutral"),),
    },
    titles={
        "response": "answer",
        "unresponsive": "missing answer",
        "steadiness": "steadiness",
        "unsteady": "missing steadiness",
        "opposition": "opposition",
        "opposed": "opposition beyond others'",
        "norm": "excess length",
        "remembered": "remembered",
        COUNTED: "examples counted",
        CLIP: "clipped to",
        COPIES: "share among copies",
        VOTE: "vote",
        REPORTED: "reported {name}",
        MISSING: "no {name}",
    },
    particulars=("unresponsive", "unsteady", "opposed"),
    signed=("response", "steadiness"),
    or_more=" or more",
)

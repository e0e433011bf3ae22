"""The sentences about a client's weight, as data, which the terminal and the page fill in alike.

Names in braces are what `fedcrf.report.explanation.ClientCauses` knows of a client: what it got,
and its causes by name.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedcrf.crf.evidence import REPORTED
from fedcrf.report.effects import CLIP, COPIES, COUNTED, MISSING, VOTE


@dataclass(frozen=True)
class Wording:
    """Words for values below a bound; ``{}`` stands for the value."""

    below: float
    words: str


@dataclass(frozen=True)
class Title:
    """How something about a client is called; ``{name}`` stands for the rest of a cause's name.

    Attributes:
        name: In charts, and in tables of one client's causes.
        about: What it is, for the reader of a table of clients; empty where that is plain.
        column: At the head of its column, where it has another name there.
        digits: After the point in a column.
    """

    name: str
    about: str = ""
    column: str = ""
    digits: int = 2


@dataclass(frozen=True)
class LeftOut:
    """Who was left out of a ``{round}``, and what else was not as usual in it.

    Attributes:
        client: Of a ``{client}`` whose update is not finite.
        overflowed: Of one whose numbers are, but too large to be squared.
        node: Of another framework's ``{node}``, with why.
        kept_model: Of a round in which the model stayed as it was, with the ``{reason}``.
        fell_back: Of a round whose expected labels were all zero.
        nobody: Of a run without any of it.
    """

    client: str
    overflowed: str
    node: str
    kept_model: str
    fell_back: str
    nobody: str


@dataclass(frozen=True)
class Undrawn:
    """Why there is nothing to draw.

    Attributes:
        absent: Of a ``{client}`` that took no part in the ``{round}``.
        excluded: Of one whose update was left out.
        factors: Of causes whose rule is not known.
        reasons: Of a rule that keeps no reasons.
        affinities: Of a rule that knows no affinities.
        neighbours: Of a round of one client.
        unrecorded: Of affinities that are too many to record.
    """

    absent: str
    excluded: str
    factors: str
    reasons: str
    affinities: str
    neighbours: str
    unrecorded: str


@dataclass(frozen=True)
class Words:
    """How a client's weight is told; names in braces are what `ClientCauses` knows of it.

    Attributes:
        attacks: Of the name of a client that attacked in the round.
        attacker: Of one that attacks in other rounds.
        excluded: Of a client whose update was left out.
        overflowed: Of one whose update was left out because it is too large to be squared.
        weightless: Of a rule that takes coordinates from different clients.
        unexplained: Of a rule that keeps no reasons.
        fell_back: Of a client of a round whose expected labels were all zero. What its weight is
            then, the rule's settings say: its share of the examples, or an equal or a capped one.
        explained: Of a weight with its causes.
        traced: Of a weight by a field past the paper's; ``{told}`` are its causes.
        untraced: Of one whose rule is not known.
        nothing: Where no cause is worth a word.
        decimals: Digits after the point of each value.
        causes: Words for the values of each of the paper's causes; the first bound above the value
            counts.
        told: The same for the causes of a field past the paper's, by their names or the first
            words of them: ``{value}`` and the clients' ``{median}``, the rest of the ``{name}``,
            and by what ``{factor}`` it multiplied the weight.
        titles: How tables and charts call what there is to tell of a client, causes by their names
            or the first words of them.
        client_columns: What a table of clients tells of every round, before the causes that are no
            particulars.
        node_column: What it tells behind the first of them, where another framework has nodes.
        attacker_column: What it tells at last where there are attackers.
        column: How a sentence about the table tells the ``{title}`` of a column and what it is
            ``{about}``.
        unknown: What a cause is about that has no title here.
        left_out: Who was left out of a run's rounds.
        undrawn: Why there is nothing to draw.
        particulars: Those that only say how much of another one counts.
        signed: Those whose numbers have a sign.
        or_more: Of a value that may be larger than is counted.
    """

    attacks: str
    attacker: str
    excluded: str
    overflowed: str
    weightless: str
    unexplained: str
    fell_back: str
    explained: str
    traced: str
    untraced: str
    nothing: str
    decimals: Mapping[str, int]
    causes: Mapping[str, Sequence[Wording]]
    told: Mapping[str, Sequence[Wording]]
    titles: Mapping[str, Title]
    client_columns: Sequence[str]
    node_column: str
    attacker_column: str
    column: str
    unknown: str
    left_out: LeftOut
    undrawn: Undrawn
    particulars: Sequence[str]
    signed: Sequence[str]
    or_more: str


WORDS = Words(
    attacks="{client} (attacks)",
    attacker="{client} (an attacker, not in this round)",
    excluded="client {client}: weight 0; its update is not finite (NaN or infinity) and was left "
    "out",
    overflowed="client {client}: weight 0; its update is finite, but its squared length overflows, "
    "and was left out",
    weightless="client {client}: no weight of its own; this rule does not weigh clients",
    unexplained="client {client}: weight {weight}, FedAvg's is {base_weight}; this rule keeps no "
    "reasons",
    fell_back="client {client}: weight {weight}, its base weight; the expected labels of all "
    "clients were zero",
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
        "client": Title("client"),
        "node": Title("node", "its id in the framework that carried out the run"),
        "num_examples": Title("examples", "those that it trains on"),
        "weight": Title("weight", "its share of the new model", digits=3),
        "base_weight": Title(
            "FedAvg's weight", "its share of the examples", column="FedAvg's", digits=3
        ),
        "multiple": Title("multiple", "its weight in parts of FedAvg's"),
        "reliability": Title(
            "reliability ρ", "what its own update earns", column="reliability", digits=3
        ),
        "cosine": Title("agreement (cosine)", "with the median update", column="cosine"),
        "distance": Title("distance", "from the median update, in medians over the clients"),
        "norm_anomaly": Title(
            "norm", "its deviation from the median one, in median absolute deviations"
        ),
        "own_label": Title("own label", "the label expected on its own evidence", digits=3),
        "expected_label": Title(
            "expected label", "the label expected in the end, which multiplies the weight", digits=3
        ),
        "response": Title(
            "answer", "to the model's move (honest clients push back, which is below zero)"
        ),
        "unresponsive": Title("missing answer", "what its answer lacks"),
        "steadiness": Title("steadiness", "the cosine of its update with its last one"),
        "unsteady": Title("missing steadiness", "what its steadiness lacks"),
        "opposition": Title("opposition", "how much trusted clients point against it"),
        "opposed": Title("opposition beyond others'", "what of that is evidence"),
        "norm": Title(
            "excess length", "how much longer its update is than its examples explain, a logarithm"
        ),
        "remembered": Title("remembered", "the label expected when it last took part"),
        COUNTED: Title("examples counted", "what part of its examples counts"),
        CLIP: Title("clipped to", "what is left of its update's length"),
        COPIES: Title(
            "share among copies", "of one client's weight, which those share that send the same"
        ),
        VOTE: Title("vote", "what of its word against others counts"),
        REPORTED: Title("reported {name}", "the evidence against it that it reports"),
        MISSING: Title("no {name}"),
        "attacker": Title("attacker", "whether it attacks, or does so in other rounds"),
    },
    client_columns=("client", "num_examples", "weight", "base_weight", "multiple"),
    node_column="node",
    attacker_column="attacker",
    column="{title}: {about}",
    unknown="as its rule calls it",
    left_out=LeftOut(
        client="Round {round}: client {client}, whose update is not finite (NaN or infinity).",
        overflowed="Round {round}: client {client}, whose update is finite, but its squared length "
        "overflows.",
        node="Round {round}: {node}.",
        kept_model="Round {round}: the model stayed as it was: {reason}.",
        fell_back="Round {round}: all expected labels were zero; the weights are the base weights.",
        nobody="No client was left out in any round.",
    ),
    undrawn=Undrawn(
        absent="Client {client} took no part in round {round}.",
        excluded="Its update is not finite: there is nothing to compare.",
        factors="What each cause made of the weight is not known.",
        reasons="This rule keeps no reasons: only the CRF infers reliabilities.",
        affinities="This rule knows no affinities.",
        neighbours="A single client has no neighbours.",
        unrecorded="The affinities are not recorded for a round of so many clients.",
    ),
    particulars=("unresponsive", "unsteady", "opposed"),
    signed=("response", "steadiness"),
    or_more=" or more",
)

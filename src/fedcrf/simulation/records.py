"""The record of a round: what happened, and why every client got its weight. One JSON line each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import Annotated, Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from fedcrf.crf.potentials import Pairs
from fedcrf.rules import AggregationResult, ClientReport, reported_evidence
from fedcrf.rules.base import num_examples
from fedcrf.rules.crf import LARGEST_AFFINITY

Client = int | str
"""What a client is called: its number, or the name of a site."""

SCORED = ("reliability", "cosine", "distance", "norm_anomaly")
"""Causes of the paper's field, which have their own fields in records."""

RENAMED = {
    "response": "curvature_response",
    "steadiness": "update_consistency",
    "unsteady": "inconsistent",
}
"""Today's names of causes by those in records of earlier versions."""

Number = Annotated[float, BeforeValidator(lambda value: math.nan if value is None else value)]
"""A float that JSON writes as null where it is not finite."""


class Record(BaseModel):
    """An immutable piece of a record."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Metrics(Record):
    """A model's loss and accuracy on a set of examples; NaN without any, or if there is none.

    The loss is the mean cross-entropy or the task's, the accuracy a share in [0, 1].
    """

    loss: Number
    accuracy: Number


class ClientMetrics(Metrics):
    """A model's metrics on the union of the clients' parts, and the mean and least accuracy of one.

    Clients count alike in the mean, and only if they have examples.
    """

    client_mean: Number
    worst_client: Number


class Seconds(Record):
    """Wall time of a round by phase, in seconds.

    The time to forge the attackers' reports is in none of them: a real server would not spend it,
    and an adaptive attacker may take many times as long as the server.
    """

    training: Number
    aggregation: Number
    evaluation: Number

    @property
    def total(self) -> float:
        """All phases: the whole round without the attack."""
        return self.training + self.aggregation + self.evaluation

    def __add__(self, other: Seconds) -> Seconds:
        return Seconds(**{name: value + getattr(other, name) for name, value in self})

    def __truediv__(self, count: int) -> Seconds:
        return Seconds(**{name: value / count for name, value in self})


class Totals(Record):
    """Sums over the rounds since the record before, that of the record included.

    The lists run over ``clients``, who took part in any of these rounds: in how many, the sum of
    their weights, and how often their updates were excluded. ``kept_model`` counts the rounds in
    which the model stayed as it was. ``lost_rounds`` is no sum, but that of the last round; see
    `rounds.lost_rounds`.
    """

    rounds: int
    training_loss: Number
    clients: list[Client]
    took_part: list[int]
    weight: list[Number]
    excluded: list[int]
    kept_model: int
    lost_rounds: int
    seconds: Seconds

    @classmethod
    def of(
        cls,
        before: Totals | None,
        clients: Sequence[Client],
        result: AggregationResult,
        training_loss: float,
        lost_rounds: int,
        seconds: Seconds,
    ) -> Totals:
        """Return the totals with one more round; of that round alone where there are none yet."""
        sums: dict[Client, tuple[int, float, int]] = {}
        rounds, kept = 1, int(not result.weights.any())
        if before is not None:
            rows = zip(before.took_part, before.weight, before.excluded, strict=True)
            sums = dict(zip(before.clients, rows, strict=True))
            rounds += before.rounds
            kept += before.kept_model
            training_loss += before.training_loss
            seconds += before.seconds
        new = zip(clients, result.weights.tolist(), result.excluded.tolist(), strict=True)
        for client, weight, out in new:
            count, weights, excluded = sums.get(client, (0, 0.0, 0))
            sums[client] = count + 1, weights + weight, excluded + out
        known = in_order(sums)
        return cls(
            rounds=rounds,
            training_loss=training_loss,
            clients=known,
            took_part=[sums[client][0] for client in known],
            weight=[sums[client][1] for client in known],
            excluded=[sums[client][2] for client in known],
            kept_model=kept,
            lost_rounds=lost_rounds,
            seconds=seconds,
        )


def _current_causes(causes: object) -> object:
    if not isinstance(causes, Mapping):
        return causes
    return {RENAMED.get(name, name): values for name, values in causes.items()}


class Reasons(Record):
    """Why the clients got their weights; the lists run over the clients of the round.

    If the round has at most 100 clients, ``affinity`` holds row i of the affinity matrix from
    column i + 1 on (the matrix is symmetric). Of a sparse matrix it holds only the columns in
    ``affinity_columns``, if that is shorter; `affinities` has whole rows either way. The first four
    lists and the affinities are those of the paper's field. The numbers of other fields' parts are
    in ``causes``, by name. Records of earlier versions, with other names for ``trust`` and for some
    causes, are read too.
    """

    reliability: list[Number] = []
    cosine: list[Number] = []
    distance: list[Number] = []
    norm_anomaly: list[Number] = []
    trust: list[Number] = Field(
        default=[], validation_alias=AliasChoices("trust", "expected_label")
    )
    affinity: list[list[Number]] | None = None
    affinity_columns: list[list[int]] | None = None
    fell_back: bool = False
    causes: Annotated[dict[str, list[Number]], BeforeValidator(_current_causes)] = {}

    @property
    def affinities(self) -> list[list[Number]] | None:
        """Row i of the affinity matrix from column i + 1 on; 0 for clients without an edge."""
        if self.affinity is None or self.affinity_columns is None:
            return self.affinity
        m = len(self.affinity) + 1
        whole = np.zeros((m, m))
        for row, columns, values in zip(whole, self.affinity_columns, self.affinity, strict=False):
            row[columns] = values
        return [whole[i, i + 1 :].tolist() for i in range(m - 1)]


class ExcludedNode(Record):
    """A node of another framework without a usable reply in the round, and the reason."""

    node: Client
    reason: str


class RoundRecord(Record):
    """One round; the lists run over the clients that took part, in the order of ``clients``.

    - ``validation`` and ``test`` are over the union of the clients' parts, ``held_out`` over the
      data set's own test set. With an attack the first two are over the honest clients alone, and
      ``everyone`` is ``test`` with the attackers' parts too.
    - ``excluded`` names clients whose update was not finite, and ``overflowed`` those of them whose
      numbers were finite, but too large to be squared.
    - ``evidence`` holds by name what the clients reported of themselves for the rule.
    - ``nodes`` and ``excluded_nodes`` are those of another framework's round; records of earlier
      versions call the latter ``left_out``. Nodes with names, such as NVFlare's sites, are clients
      of these names, and ``nodes`` is None.
    - ``attackers`` names the attackers of this round; it is missing without an attack on the run.
    - ``metrics`` has by set and name the task's other metrics.
    - ``kept_reason`` says why the model stayed as it was; it is missing if the model moved, and in
      older records.
    - ``attack_success`` is the share of the test examples with a backdoor's trigger that the model
      takes for its target; those of the target itself do not count.
    - ``totals`` is missing in a run that is evaluated every round. In others the rounds that are
      not evaluated have no record, and it sums them up.
    """

    round: int
    training_loss: Number
    validation: Metrics
    test: ClientMetrics
    held_out: Metrics | None = None
    everyone: ClientMetrics | None = None
    metrics: dict[str, dict[str, Number]] | None = None
    attack_success: Number | None = None
    clients: list[Client]
    nodes: list[Client] | None = None
    num_examples: list[int | float]
    client_training_loss: list[Number]
    evidence: dict[str, list[Number]] | None = None
    weight: list[Number]
    base_weight: list[Number]
    excluded: list[Client] = []
    overflowed: list[Client] | None = None
    excluded_nodes: list[ExcludedNode] | None = Field(
        default=None, validation_alias=AliasChoices("excluded_nodes", "left_out")
    )
    attackers: list[Client] | None = None
    kept_model: bool = False
    kept_reason: str | None = None
    reasons: Reasons | None = None
    seconds: Seconds
    totals: Totals | None = None

    @property
    def first(self) -> int:
        """The first of the rounds that it stands for; its own where each has a record."""
        return self.round - (self.totals.rounds - 1 if self.totals is not None else 0)

    @property
    def mean_seconds(self) -> Seconds:
        """The wall time of a round, mean over those that it stands for."""
        return self.seconds if self.totals is None else self.totals.seconds / self.totals.rounds

    @property
    def stayed(self) -> str | None:
        """Why the model stayed as it was; None if it moved."""
        return self.kept_reason or ("no update was usable" if self.kept_model else None)

    @model_validator(mode="after")
    def _one_value_for_each_client(self) -> Self:
        m = len(self.clients)
        lists: list[Sequence[object]] = [
            self.num_examples, self.client_training_loss, self.weight, self.base_weight,
            *(self.evidence or {}).values(),
        ]  # fmt: skip
        reasons = self.reasons
        if reasons is not None:
            papers = [getattr(reasons, name) for name in SCORED]
            lists += [*(papers if any(papers) else ()), reasons.trust, *reasons.causes.values()]
            if not _are_affinities(reasons.affinity, reasons.affinity_columns, m):
                raise ValueError("affinity is not of the round's clients")
        if any(len(values) != m for values in lists):
            raise ValueError("a list is not of the round's clients")
        return self


def _are_affinities(
    rows: list[list[Number]] | None, columns: list[list[int]] | None, m: int
) -> bool:
    """Return whether rows above the diagonal, or their given columns, fit m clients."""
    if rows is None:
        return columns is None
    whole = [list(range(i + 1, m)) for i in range(m - 1)]
    if columns is None:
        return [*map(len, rows)] == [*map(len, whole)]
    return len(rows) == len(columns) == len(whole) and all(
        len(row) == len(each) == len(set(each)) and set(each) <= set(there)
        for row, each, there in zip(rows, columns, whole, strict=True)
    )


Rounds = Sequence[RoundRecord]
"""Of one run, in their order."""


def in_order(clients: Iterable[Client]) -> list[Client]:
    """Return each client once: sorted numbers, then sorted names."""
    return sorted(set(clients), key=lambda client: (isinstance(client, str), client))


def rounds_of(records: Rounds) -> int:
    """Return how many rounds the records of a run are of."""
    return records[-1].round if records else 0


def reported_round(records: Rounds) -> RoundRecord:
    """Return the round with the lowest validation loss, whose model is reported; else the last."""
    finite = [record for record in records if math.isfinite(record.validation.loss)]
    return min(finite, key=lambda record: record.validation.loss) if finite else records[-1]


def decided(
    reports: Sequence[ClientReport], clients: Sequence[Client], result: AggregationResult | None
) -> dict[str, Any]:
    """Return the fields of a `RoundRecord` that follow from the reports and the rule's decision.

    ``clients`` are the reports' in the record; ``result`` is None without any report.
    """
    evidence = {name: brief(values) for name, values in reported_evidence(reports).items()}
    seen: dict[str, Any] = {
        "clients": list(clients),
        "num_examples": num_examples(reports),
        "evidence": evidence or None,
    }
    if result is None:
        return {**seen, "weight": [], "base_weight": []}
    posterior = result.posterior  # without one it is not known what overflowed
    overflowed = [] if posterior is None else list(compress(clients, posterior.overflowed))
    return {
        **seen,
        "weight": brief(result.weights),
        "base_weight": brief(result.base_weights),
        "excluded": list(compress(clients, result.excluded)),
        "overflowed": overflowed or None,
        "reasons": reasons_of(result),
    }


def reasons_of(result: AggregationResult) -> Reasons | None:
    """Return the CRF's reasons for the weights, to six significant digits."""
    posterior = result.posterior
    if posterior is None:
        return None
    causes = {name: brief(values) for name, values in posterior.causes.items()}
    papers = {name: causes.pop(name) for name in SCORED if name in causes}
    rows, columns = _above_diagonal(posterior.affinity)
    return Reasons(
        **papers,
        trust=brief(posterior.trust),
        affinity=rows,
        affinity_columns=columns,
        fell_back=posterior.fell_back,
        causes=causes,
    )


def _above_diagonal(
    affinity: Pairs | None,
) -> tuple[list[list[float]] | None, list[list[int]] | None]:
    """Return the rows of a symmetric matrix above its diagonal, and their columns.

    If fewer than half of the pairs are not 0, rows hold only these, and columns say where.
    """
    if affinity is None or affinity.shape[0] > LARGEST_AFFINITY:
        return None, None
    m = affinity.shape[0]
    whole: NDArray[np.float64] = (
        affinity if isinstance(affinity, np.ndarray) else affinity.toarray()
    )
    if np.count_nonzero(whole) >= m * (m - 1) / 2:
        return [brief(row[i + 1 :]) for i, row in enumerate(whole[:-1])], None
    columns = [i + 1 + np.flatnonzero(row[i + 1 :]) for i, row in enumerate(whole[:-1])]
    rows = [brief(row[those]) for row, those in zip(whole[:-1], columns, strict=True)]
    return rows, [those.tolist() for those in columns]


def brief(values: NDArray[np.float64] | Sequence[float], digits: int = 6) -> list[Any]:
    """Return the values to so many significant digits; six are enough to explain a weight."""
    return [float(f"{value:.{digits}g}") for value in values]

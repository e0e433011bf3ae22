"""The CRF on a graph of nearest neighbours: sparse inference, slow inference, dense inference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf import ClientCRF, EvidenceCRF, FedcrfError
from fedcrf.crf import (
    Attraction,
    Field,
    LogOddsPrior,
    NormEvidence,
    Observation,
    Opposition,
    Reliability,
)
from fedcrf.crf.potentials import label_compatibility
from fedcrf.experiments.spec import resolve
from fedcrf.rules import CRF, Adam, ClientReport, CRFEvidence, FedAvg, Optimized
from fedcrf.rules.crf import LARGEST_AFFINITY
from fedcrf.simulation.records import reasons_of
from fedcrf.statistics import NeighbourSearch, as_layers, crowd_statistics

FIELDS = ("weights", "base_weights", "reliability", "marginals", "expected_label", "cosine",
          "distance", "norm_anomaly", "unary", "excluded", "fell_back")  # fmt: skip


def updates(m: int = 9, d: int = 24, seed: int = 0) -> np.ndarray:
    """A direction in common, noise, and a client that goes the other way."""
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal(d) + 0.8 * rng.standard_normal((m, d))
    rows[-1] *= -1.5
    return rows


def reports(rows: np.ndarray) -> list[ClientReport]:
    return [ClientReport(i, {"w": row}, 10 + i) for i, row in enumerate(rows)]


@pytest.mark.parametrize("settings", [{}, {"reliability_gate": False, "bandwidth": 0.1}])
@pytest.mark.parametrize(("m", "d"), [(2, 5), (9, 24), (40, 300), (250, 5000)])
@pytest.mark.parametrize("broken", [False, True])
def test_with_all_others_as_neighbours_it_is_the_papers(m, d, broken, settings):
    rows = updates(m, d)
    if broken:
        rows[0, -1] = np.nan
    counts = np.arange(1, m + 1)
    dense = ClientCRF(**settings).infer(rows, counts)
    sparse = ClientCRF(**settings, neighbours=m - 1).infer(rows, counts)
    for name in FIELDS:
        assert_allclose(getattr(sparse, name), getattr(dense, name), rtol=0, atol=1e-10)
    assert_allclose(sparse.affinity.toarray(), dense.affinity, rtol=0, atol=1e-10)


def slow_weights(rows: np.ndarray, k: int, crf: ClientCRF) -> tuple[np.ndarray, set[Any]]:
    """Neighbour by neighbour, message by message; ρ and the energies are the dense CRF's."""
    dense, m = ClientCRF(labels=crf.labels).infer(rows), len(rows)
    norms = [float(np.sqrt(row @ row)) for row in rows]

    def cosine(i: int, j: int) -> float:
        return float(rows[i] @ rows[j]) / (norms[i] * norms[j] + 1e-12)

    pairs = set()
    for i in range(m):
        nearest = sorted((j for j in range(m) if j != i), key=lambda j: -cosine(i, j))[:k]
        pairs |= {frozenset((i, j)) for j in nearest}
    labels, q = crf.labels, np.exp(-dense.unary) - 1e-12
    for _ in range(crf.iterations):
        after = np.empty_like(q)
        for i in range(m):
            energy = dense.unary[i].copy()
            for j in range(m):
                if frozenset((i, j)) not in pairs or i == j:
                    continue
                trust = min(dense.reliability[i], dense.reliability[j])
                affinity = np.exp((cosine(i, j) - 1) / crf.bandwidth) * trust
                for a, mine in enumerate(labels):
                    for b, its in enumerate(labels):
                        energy[a] += crf.pairwise_strength * affinity * q[j, b] * (mine - its) ** 2
            after[i] = np.exp(-energy) / np.exp(-energy).sum()
        q = after
    expected = q @ np.asarray(labels)
    return expected / expected.sum(), pairs


@pytest.mark.parametrize("k", [1, 2, 5])
def test_sparse_mean_field_against_the_slow_one(k):
    crf = ClientCRF(pairwise_strength=3.0, bandwidth=0.2, neighbours=k)
    found = crf.infer(updates())
    weights, pairs = slow_weights(updates(), k, crf)
    assert_allclose(found.weights, weights, rtol=1e-9)
    places = found.affinity.tocoo()
    assert {frozenset(pair) for pair in zip(places.row, places.col, strict=True)} == pairs
    assert len(places.row) == 2 * len(pairs)


@pytest.mark.parametrize("settings", [{"neighbours": 3}, {"neighbours": 3, "sketch_size": 16}])
def test_the_order_of_clients_does_not_matter(settings):
    rows, order = updates(30), np.random.default_rng(0).permutation(30)
    rows[4, 0] = np.inf
    counts = np.arange(30) + 5
    plain = ClientCRF(**settings).infer(rows, counts)
    moved = ClientCRF(**settings).infer(rows[order], counts[order])
    assert_allclose(moved.weights, plain.weights[order], rtol=1e-6)
    assert (moved.affinity != moved.affinity.T).nnz == 0


def test_who_has_no_neighbours_follows_its_own_evidence():
    rows = updates(3)
    rows[:2] = np.nan
    alone = ClientCRF(neighbours=2).infer(rows)
    assert alone.weights.tolist() == [0.0, 0.0, 1.0]
    assert alone.affinity.nnz == 0
    own = np.exp(-alone.unary)
    assert_allclose(alone.marginals, own / own.sum(axis=1, keepdims=True), rtol=1e-12)


@pytest.mark.parametrize("settings", [{}, {"sketch_size": 16}])
def test_a_round_in_which_nobody_is_finite_keeps_the_model(settings):
    nobody = ClientCRF(neighbours=2, **settings).infer(np.full((4, 24), np.nan))
    assert nobody.weights.tolist() == [0.0] * 4
    assert nobody.excluded.all()


def test_a_part_that_pulls_nobody_says_nothing():
    rows = updates()
    crowd = crowd_statistics(as_layers(rows), NeighbourSearch(2))
    field = Field((0.0, 1.0), LogOddsPrior(), pairwise=(Attraction(0.0),))
    found = field.infer(Observation(crowd, np.ones(9)))
    assert_allclose(found.expected_label, np.exp(2) / (1 + np.exp(2)), rtol=1e-9)
    assert label_compatibility(np.array([0.0, 1.0])).tolist() == [[0, 1], [1, 0]]


def test_the_posterior_is_immutable():
    affinity = ClientCRF(neighbours=2).infer(updates()).affinity
    for part in (affinity.data, affinity.indices, affinity.indptr):
        with pytest.raises(ValueError, match="read-only"):
            part[0] = 1
    # It can be looked at all the same.
    assert affinity[0, 1] == affinity.toarray()[0, 1]
    assert (affinity @ np.ones(affinity.shape[0])).shape == (affinity.shape[0],)
    assert affinity[[0, 2]].shape == (2, affinity.shape[0])


def test_a_round_of_fewer_clients_has_all_of_them():
    rows = updates(4)
    rule, start = CRF(neighbours=5), {"w": np.zeros(24)}
    found, dense = (each.aggregate({}, start, reports(rows)) for each in (rule, CRF()))
    assert_allclose(found.weights, dense.weights, rtol=1e-12)
    assert_allclose(found.state["w"], dense.state["w"], rtol=1e-12)


def test_the_rule_weighs_updates_and_no_models():
    rows, origin = updates(12), np.linspace(-9, 9, 24)
    settings = {"neighbours": 3, "sketch_size": 8}
    found = CRF(**settings).aggregate({}, {"w": origin}, reports(rows + origin))
    expected = ClientCRF(**settings).infer(rows, [10 + i for i in range(12)])
    assert_allclose(found.weights, expected.weights, rtol=1e-6)


@pytest.mark.parametrize("neighbours", [None, 2])
def test_a_rule_keeps_the_affinities_of_few_clients_or_few_neighbours(
    neighbours: int | None,
) -> None:
    rule, model = CRF(neighbours=neighbours), {"w": np.zeros(24)}
    for many in (LARGEST_AFFINITY, LARGEST_AFFINITY + 1):
        clients = updates(many)
        result = rule.aggregate({}, model, reports(clients))
        plain = rule.infer(clients, [10 + i for i in range(many)])
        assert_array_equal(result.weights, plain.weights)
        kept = many <= LARGEST_AFFINITY or neighbours is not None
        assert (result.posterior.affinity is not None) == kept


def test_records_hold_the_graph_of_few_clients_and_never_that_of_many():
    few = reasons_of(CRF(neighbours=2).aggregate({}, {"w": np.zeros(24)}, reports(updates(8))))
    assert few is not None
    rows = few.affinities
    assert rows is not None
    assert [len(row) for row in rows] == [7, 6, 5, 4, 3, 2, 1]
    assert 8 <= sum(value > 0 for row in rows for value in row) <= 16
    many = LARGEST_AFFINITY + 1
    rule = CRF(neighbours=2, sketch_size=8)
    crowd = reasons_of(rule.aggregate({}, {"w": np.zeros(24)}, reports(updates(many))))
    assert crowd is not None
    assert crowd.affinity is None
    assert len(crowd.reliability) == many


def test_a_part_that_needs_all_pairs_is_refused_neighbours_alone():
    crowd = crowd_statistics(as_layers(updates()), NeighbourSearch(2))
    field = Field((0.0, 1.0), LogOddsPrior(), pairwise=(Opposition(),))
    with pytest.raises(FedcrfError, match=r"near neighbours alone.*update_statistics"):
        field.infer(Observation(crowd, np.ones(9)))


@pytest.mark.parametrize(
    "field",
    [
        Field((0.0, 1.0), Reliability()),
        Field((0.0, 1.0), LogOddsPrior(), evidence=(NormEvidence(),)),
        Field((0.0, 1.0), LogOddsPrior(), pairwise=(Opposition(),)),
    ],
    ids=["reliability", "norms", "opposition"],
)
def test_a_part_that_needs_statistics_is_refused_without_them(field):
    with pytest.raises(FedcrfError, match=r"whether they are finite: gather .*update_statis"):
        field.infer(Observation(np.ones(9, dtype=bool), np.ones(9)))


def test_evidence_alone_needs_no_pass_over_the_updates(monkeypatch):
    monkeypatch.delattr("fedcrf.statistics.one_pass.finite_sums")
    rows = updates()
    rows[3] = np.nan
    losses = {"residual_loss": [9.0] + [1.0] * 8}
    found = EvidenceCRF().infer(rows, evidence=losses).weights
    result = CRFEvidence().aggregate({},
        {"w": np.zeros(24)},
        [replace(each, evidence={"residual_loss": loss})
         for each, loss in zip(reports(rows), losses["residual_loss"], strict=True)],
    )  # fmt: skip
    assert found[3] == 0
    assert found[0] < 0.01 < found[1]
    assert (result.excluded == (np.arange(9) == 3)).all()


# --- mistakes -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"neighbours": 0}, "neighbours 0: give a whole number, 1 or more"),
        ({"neighbours": -3}, "neighbours -3"),
        ({"neighbours": 2.0}, "neighbours 2.0"),
        ({"sketch_size": 64}, "sketch_size 64 .* neighbours too, or leave it out"),
        ({"neighbours": 2, "sketch_size": 0}, "sketch_size 0"),
        ({"neighbours": 2, "sketch_seed": 0.5}, "sketch_seed 0.5"),
        ({"sketch_seed": -1}, "sketch_seed -1"),
        ({"neighbours": 2, "sketch_seed": 9}, "sketch_seed 9 is of sketches: give sketch_size"),
        ({"weight_by_examples": "no"}, "weight_by_examples 'no': give True or False"),
    ],
)
def test_settings_that_cannot_be_are_named(settings, named):
    for kind in (ClientCRF, CRF):
        with pytest.raises(FedcrfError, match=named):
            kind(**settings)


@pytest.mark.parametrize("k", [9, 10, 1000])
def test_more_neighbours_than_there_are_others_are_refused(k):
    named = f"neighbours {k}: of 9 clients each has 8 others; give so many at most"
    with pytest.raises(FedcrfError, match=named):
        ClientCRF(neighbours=k).infer(updates())
    with pytest.raises(FedcrfError, match=named):
        CRF(neighbours=k).check_clients(9)
    with pytest.raises(FedcrfError, match=named):
        Optimized(CRF(neighbours=k), Adam()).check_clients(9)
    CRF(neighbours=8).check_clients(9)
    FedAvg().check_clients(9)


@pytest.mark.parametrize("drawn", [{}, {"rounds": {"clients_per_round": 4}}])
def test_a_run_is_refused_before_it_begins(drawn):
    clients = drawn.get("rounds", {}).get("clients_per_round", 6)
    given = {"partition": {"num_clients": 6}, **drawn}
    with pytest.raises(FedcrfError, match=f"neighbours {clients}: of {clients} clients"):
        resolve(given, {"rules": {"crf": {"neighbours": clients}}})
    resolve(given, {"rules": {"crf": {"neighbours": clients - 1, "sketch_size": 64}}})

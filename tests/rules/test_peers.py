"""The rules beside those of the same name in Flower and in ByzFL, on the same inputs.

Where a peer's rule is the same rule, the models are equal but for float32 rounding: the peers
compute in the model's dtype, this library in float64. Where a peer does something else, the test
says what, and shows that it is just that by changing the settings or inputs until the two agree.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf.errors import FedcrfError
from fedcrf.rules import (
    RFA,
    Adagrad,
    Adam,
    ClientReport,
    CoordinateMedian,
    FedAvg,
    GeometricMedian,
    Krum,
    Momentum,
    MultiKrum,
    Optimized,
    State,
    TrimmedMean,
    Uniform,
    Yogi,
)
from fedcrf.rules.base import Round
from fedcrf.rules.krum import krum_scores

FLOAT32 = 3e-7  # a few roundings of float32, relative to the largest number


# --- the peers ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def flower(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """Flower's strategies and records; imported so that it neither reports nor looks for news."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLWR_HOME", str(tmp_path_factory.mktemp("flwr")))
        patch.setenv("FLWR_TELEMETRY_ENABLED", "0")
        patch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
        pytest.importorskip("flwr", reason="Flower is not installed: nothing to compare with")
        from flwr import app
        from flwr.serverapp import strategy

        yield SimpleNamespace(app=app, strategy=strategy)


class Flower:
    """Runs one of Flower's strategies on reports."""

    def __init__(self, flower: SimpleNamespace) -> None:
        self._app = flower.app
        self._strategies = flower.strategy

    def message(self, report: ClientReport) -> Mock:
        """A reply as Flower's own unit tests make it: the content is real, the envelope is not."""
        app = self._app
        arrays = self._arrays(report.state)
        metrics = app.MetricRecord({"num-examples": report.num_examples})
        message = Mock(spec=app.Message)
        message.content = app.RecordDict({"arrays": arrays, "metrics": metrics})
        message.has_error = Mock(return_value=False)
        return message

    def aggregate(self, name: str, reports: Sequence[ClientReport], **settings: float) -> State:
        """Return the model that the strategy makes of the reports."""
        strategy = getattr(self._strategies, name)(**settings)
        return self._aggregate(strategy, 1, reports)

    def go_on(
        self, name: str, state: State, rounds: Sequence[Sequence[ClientReport]], **settings: float
    ) -> list[State]:
        """Return the models that the strategy comes to in several rounds, from a first one."""
        # No client is sampled: what they would answer is given.
        strategy = getattr(self._strategies, name)(fraction_train=0.0, **settings)
        states = []
        for number, reports in enumerate(rounds, start=1):
            strategy.configure_train(number, self._arrays(state), Mock(), Mock())
            state = self._aggregate(strategy, number, reports)
            states.append(state)
        return states

    def _aggregate(self, strategy: Any, number: int, reports: Sequence[ClientReport]) -> State:
        arrays, _ = strategy.aggregate_train(number, [self.message(report) for report in reports])
        return {name: array.numpy() for name, array in arrays.items()}

    def _arrays(self, state: State) -> Any:
        app = self._app
        return app.ArrayRecord({k: app.Array(np.asarray(v)) for k, v in state.items()})


@pytest.fixture
def flwr(flower: SimpleNamespace) -> Flower:
    return Flower(flower)


# --- inputs ---------------------------------------------------------------------------------


def sample(
    m: int, seed: int = 0, common: float = 1.0, equal_counts: bool = False
) -> tuple[State, list[ClientReport]]:
    """A float32 global model and m clients around it, further from zero by ``common``."""
    rng = np.random.default_rng([seed, m])
    shapes = {"conv.weight": (4, 2, 3), "head.weight": (5, 6), "head.bias": (5,)}
    before = {
        name: (common * rng.standard_normal(shape)).astype(np.float32)
        for name, shape in shapes.items()
    }
    reports = []
    for client in range(m):
        state = {
            name: (array + rng.standard_normal(array.shape) * rng.uniform(0.5, 2)).astype("f4")
            for name, array in before.items()
        }
        n = 10 if equal_counts else int(rng.integers(1, 200))
        reports.append(ClientReport(client, state, n))
    return before, reports


def points(values: Sequence[Sequence[float]]) -> tuple[State, list[ClientReport]]:
    """One small layer for each client, and a global model at the origin."""
    rows = [np.array(row, dtype=np.float32) for row in values]
    reports = [ClientReport(i, {"w": row}, 10) for i, row in enumerate(rows)]
    return {"w": np.zeros_like(rows[0])}, reports


def assert_close(got: State, want: State, near: float = FLOAT32) -> None:
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].shape == array.shape, name
        scale = float(np.max(np.abs(array)))
        assert_allclose(got[name], array, rtol=near, atol=near * scale, err_msg=name)


def differ(one: State, other: State, by: float = 1e-3) -> bool:
    return any(bool(np.any(np.abs(one[name] - other[name]) > by)) for name in one)


def matrix(reports: Sequence[ClientReport], before: State | None = None) -> np.ndarray:
    """The models as rows of float64, or the updates where the global model is given."""
    origin = 0.0 if before is None else flat(before)
    return np.stack([flat(report.state) - origin for report in reports])


def flat(state: State) -> np.ndarray:
    return np.concatenate([array.reshape(-1).astype(np.float64) for array in state.values()])


def total_distance(rows: np.ndarray, point: np.ndarray) -> float:
    return float(np.linalg.norm(rows - point, axis=1).sum())


# --- Flower: means --------------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 10, 40])
def test_fedavg_is_flowers(flwr, m):
    before, reports = sample(m)
    assert_close(FedAvg().aggregate({}, before, reports).state, flwr.aggregate("FedAvg", reports))


def test_uniform_is_flowers_fedavg_of_equal_counts(flwr):
    before, reports = sample(7)
    equal = [ClientReport(r.client, r.state, 1) for r in reports]
    assert_close(Uniform().aggregate({}, before, reports).state, flwr.aggregate("FedAvg", equal))


@pytest.mark.parametrize(
    ("rule", "name"), [(FedAvg(), "FedAvg"), (CoordinateMedian(), "FedMedian")], ids=repr
)
def test_flower_returns_integer_buffers_as_unrounded_floats(flwr, rule, name):
    """Flower multiplies by a share, or halves, and keeps float64: torch then refuses or casts it.

    Here they are rounded to nearest and keep their dtype.
    """
    tracked = [3, 4]
    reports = [
        ClientReport(i, {"w": np.ones(1, np.float32), "num_batches_tracked": np.array(t)}, n)
        for i, (t, n) in enumerate(
            zip(tracked, (10, 30) if name == "FedAvg" else (1, 1), strict=True)
        )
    ]
    before = {"w": np.zeros(1, np.float32), "num_batches_tracked": np.array(0)}
    theirs = flwr.aggregate(name, reports)["num_batches_tracked"]
    ours = rule.aggregate({}, before, reports).state["num_batches_tracked"]
    assert theirs.dtype == np.float64
    assert theirs == (3.75 if name == "FedAvg" else 3.5)
    assert ours.dtype == np.int64
    assert ours == 4


@pytest.mark.parametrize(
    ("rule", "name"),
    [(FedAvg(), "FedAvg"), (CoordinateMedian(), "FedMedian")],
    ids=repr,
)
def test_one_nan_spreads_through_flowers_rules_and_not_through_ours(flwr, rule, name):
    """Flower does not look at the values. Ours leaves the client out, as if Flower never had it."""
    before, reports = sample(5)
    broken = {k: v.copy() for k, v in reports[2].state.items()}
    broken["head.bias"][1] = np.nan
    others = [*reports[:2], *reports[3:]]
    poisoned = [*reports[:2], ClientReport(2, broken, 10), *reports[3:]]
    assert np.isnan(flwr.aggregate(name, poisoned)["head.bias"][1])
    assert_close(rule.aggregate({}, before, poisoned).state, flwr.aggregate(name, others))


def test_flower_divides_by_counts_that_are_all_zero_and_ours_says_so(flwr):
    before, reports = sample(2)
    silent = [ClientReport(r.client, r.state, 0) for r in reports]
    with pytest.raises(ZeroDivisionError):
        flwr.aggregate("FedAvg", silent)
    with pytest.raises(FedcrfError, match="all zero"):
        FedAvg().aggregate({}, before, silent)


# --- Flower: by coordinate ------------------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 3, 10, 11, 40])
def test_coordinate_median_is_flowers(flwr, m):
    before, reports = sample(m)
    got = CoordinateMedian().aggregate({}, before, reports).state
    assert_close(got, flwr.aggregate("FedMedian", reports), 6e-8)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.2, 0.3, 0.45])
@pytest.mark.parametrize("m", [2, 3, 10, 11, 40])
def test_trimmed_mean_is_flowers(flwr, m, fraction):
    before, reports = sample(m)
    got = TrimmedMean(fraction).aggregate({}, before, reports).state
    assert_close(got, flwr.aggregate("FedTrimmedAvg", reports, beta=fraction))


def test_flowers_trimmed_mean_cuts_one_less_where_the_product_rounds_down(flwr):
    """int(0.29 · 100) is 28, since the product is 28.999999999999996; ⌊βm⌋ is 29.

    With a fraction a little larger Flower cuts 29 as well, and the two agree.
    """
    before, reports = points([[float(i) ** 3] for i in range(100)])
    ours = TrimmedMean(0.29).aggregate({}, before, reports).state
    assert differ(ours, flwr.aggregate("FedTrimmedAvg", reports, beta=0.29))
    assert_close(ours, flwr.aggregate("FedTrimmedAvg", reports, beta=0.2900001))


def test_flowers_defaults_differ(flower):
    """Its trimmed mean cuts 0.2 by default, the paper's 0.1; its Multi-Krum keeps one client."""
    assert flower.strategy.FedTrimmedAvg().beta == 0.2
    assert TrimmedMean().informed(0, num_clients=10, seed=0).fraction == 0.1
    assert flower.strategy.MultiKrum().num_nodes_to_select == 1


# --- Flower: Krum ---------------------------------------------------------------------------


@pytest.mark.parametrize("f", [0, 1, 3])
@pytest.mark.parametrize("m", [5, 10, 40])
def test_krum_is_flowers(flwr, m, f):
    before, reports = sample(m, seed=f)
    got = Krum(f).aggregate({}, before, reports).state
    assert_close(got, flwr.aggregate("Krum", reports, num_malicious_nodes=f), 0)


@pytest.mark.parametrize("f", [0, 1, 3])
@pytest.mark.parametrize("m", [5, 10, 40])
def test_multi_krum_is_flowers_where_it_keeps_as_many_of_equal_counts(flwr, m, f):
    before, reports = sample(m, seed=f, equal_counts=True)
    got = MultiKrum(f).aggregate({}, before, reports).state
    settings = {"num_malicious_nodes": f, "num_nodes_to_select": m - f}
    assert_close(got, flwr.aggregate("MultiKrum", reports, **settings))


def test_flowers_multi_krum_weighs_the_kept_clients_by_their_examples(flwr):
    """Blanchard et al. take the plain mean of the kept clients, and so does ours.

    A count that a client makes up is no reason to trust it. The clients kept are the same: FedAvg
    of them alone is Flower's result.
    """
    before, reports = sample(10)
    ours = MultiKrum(2).aggregate({}, before, reports)
    theirs = flwr.aggregate("MultiKrum", reports, num_malicious_nodes=2, num_nodes_to_select=8)
    assert differ(ours.state, theirs, 1e-2)
    kept = [report for report, weight in zip(reports, ours.weights, strict=True) if weight > 0]
    assert len(kept) == 8
    assert_close(FedAvg().aggregate({}, before, kept).state, theirs)


def test_flowers_krum_cancels_on_raw_weights_in_float32(flwr):
    """Flower takes ‖x‖² + ‖y‖² − 2⟨x, y⟩ of the models themselves in float32.

    Where a model is much larger than what the clients differ by, nothing but rounding is left, and
    it returns another client. Given the updates in place of the models it agrees with ours.
    """
    rng = np.random.default_rng(0)
    before = {"w": (300 * rng.standard_normal(2000)).astype(np.float32)}
    # Client 3 is the innermost: every distance to it is the smallest.
    models = [
        (before["w"] + size * 0.01 * rng.standard_normal(2000)).astype(np.float32)
        for size in (1.3, 1.2, 1.4, 0.3, 1.1, 1.5, 1.25, 1.35)
    ]
    reports = [ClientReport(i, {"w": w}, 1) for i, w in enumerate(models)]
    deltas = [ClientReport(i, {"w": w - before["w"]}, 1) for i, w in enumerate(models)]

    ours = Krum(1).aggregate({}, before, reports)
    assert_array_equal(ours.weights, np.eye(8)[3])
    on_models = flwr.aggregate("Krum", reports, num_malicious_nodes=1)
    assert not np.array_equal(on_models["w"], models[3])
    on_updates = flwr.aggregate("Krum", deltas, num_malicious_nodes=1)
    assert_array_equal(on_updates["w"], deltas[3].state["w"])


def test_flowers_krum_counts_integer_buffers_as_coordinates(flwr):
    """A count of batches is larger than any weight, so in Flower it decides who is near whom.

    Here the vector is the floating-point tensors. Without the buffer Flower agrees.
    """
    weights = [[0.0], [0.1], [0.2], [5.0], [9.0]]
    tracked = [0, 900, 450, 451, 452]
    reports = [
        ClientReport(i, {"w": np.array(w, np.float32), "num_batches_tracked": np.array(t)}, 1)
        for i, (w, t) in enumerate(zip(weights, tracked, strict=True))
    ]
    before = {"w": np.zeros(1, np.float32), "num_batches_tracked": np.array(0)}
    bare = [ClientReport(r.client, {"w": r.state["w"]}, 1) for r in reports]

    ours = Krum(1).aggregate({}, before, reports)
    assert_array_equal(ours.weights, [0, 1, 0, 0, 0])
    assert flwr.aggregate("Krum", reports, num_malicious_nodes=1)["w"] == 5.0
    assert flwr.aggregate("Krum", bare, num_malicious_nodes=1)["w"] == np.float32(0.1)


# --- ByzFL: means and by coordinate ---------------------------------------------------------


@pytest.mark.parametrize("m", [1, 2, 10, 40])
def test_uniform_is_byzfls_average(byzfl, m):
    before, reports = sample(m)
    got = flat(Uniform().aggregate({}, before, reports).state)
    assert_allclose(got, byzfl.Average()(matrix(reports)), rtol=FLOAT32, atol=FLOAT32)


@pytest.mark.parametrize("m", [1, 2, 3, 10, 11, 40])
def test_coordinate_median_is_byzfls(byzfl, m):
    """On tensors too: since 0.0.11 it interpolates a quantile there and not `torch.median`."""
    before, reports = sample(m)
    got = flat(CoordinateMedian().aggregate({}, before, reports).state)
    rows = matrix(reports)
    assert_allclose(got, byzfl.Median()(rows), rtol=6.1e-8, atol=0)
    tensors = torch.from_numpy(rows.astype(np.float32))
    assert_allclose(got, byzfl.Median()(tensors).numpy(), rtol=FLOAT32, atol=FLOAT32)


def test_torch_median_is_another_rule_for_an_even_number():
    """It returns the lower of the middle two, which is biased down; of an odd number it agrees."""
    for m in (9, 10):
        before, reports = sample(m)
        ours = flat(CoordinateMedian().aggregate({}, before, reports).state)
        rows = matrix(reports)
        torchs = torch.from_numpy(rows).median(dim=0).values.numpy()
        if m % 2:
            assert_array_equal(torchs, ours)
            continue
        assert (torchs < ours).all()
        mirrored = -torch.from_numpy(-rows).median(dim=0).values.numpy()  # the upper of the two
        assert_allclose((torchs + mirrored) / 2, ours, rtol=6.1e-8)


@pytest.mark.parametrize(("m", "f"), [(3, 1), (10, 0), (10, 1), (10, 4), (11, 3), (40, 7)])
def test_trimmed_mean_is_byzfls_that_cuts_f(byzfl, m, f):
    before, reports = sample(m)
    got = flat(TrimmedMean(f / m).aggregate({}, before, reports).state)
    assert_allclose(got, byzfl.TrMean(f=f)(matrix(reports)), rtol=FLOAT32, atol=FLOAT32)


def test_one_nan_spreads_through_byzfls_rules_and_not_through_ours(byzfl):
    """Its geometric median drops rows with infinities, not those with NaN; the others drop none."""
    before, reports, poisoned = with_a_nan()
    for rule, theirs in (
        (Uniform(), byzfl.Average()),
        (CoordinateMedian(), byzfl.Median()),
        (GeometricMedian(), byzfl.GeometricMedian(T=20)),
    ):
        assert np.isnan(theirs(matrix(poisoned))[3])
        ours = rule.aggregate({}, before, poisoned).state
        assert_close(ours, rule.aggregate({}, before, reports).state)


def test_byzfls_trimmed_mean_takes_a_nan_for_the_largest_value(byzfl):
    """NaN sorts last: it uses up the cut above, and an honest value goes below. Ours cuts neither.

    Put infinity in its place and ByzFL returns the same.
    """
    before, reports, poisoned = with_a_nan()
    rows = matrix(poisoned)
    theirs = byzfl.TrMean(f=1)(rows)
    assert_array_equal(theirs, byzfl.TrMean(f=1)(np.where(np.isnan(rows), np.inf, rows)))
    ours = TrimmedMean(0.2).aggregate({}, before, poisoned).state
    assert_close(ours, TrimmedMean(0.2).aggregate({}, before, reports).state)
    assert abs(flat(ours)[3] - theirs[3]) > 1e-2


def with_a_nan() -> tuple[State, list[ClientReport], list[ClientReport]]:
    """Five reports, and the same with a sixth between them whose number 3 is NaN."""
    before, reports = sample(5)
    broken = {k: v.copy() for k, v in reports[0].state.items()}
    broken["conv.weight"].reshape(-1)[3] = np.nan
    return before, reports, [*reports[:2], ClientReport(9, broken, 10), *reports[2:]]


# --- Flower: server optimizers --------------------------------------------------------------

ROUNDS = 6


def sampled_rounds() -> tuple[State, list[list[ClientReport]]]:
    """A first model, and what four clients report in each round wherever it began."""
    return sample(4)[0], [sample(4, seed)[1] for seed in range(ROUNDS)]


def stepped(
    rules: Sequence[Optimized], state: State, rounds: Sequence[Sequence[ClientReport]], v: float
) -> list[State]:
    """Return the models of several rounds, of one rule each, with v as first second moment."""
    shapes = {name: array.shape for name, array in state.items()}
    memory = {
        f"{moment}.{name}": np.full(shape, value)
        for moment, value in (("first_moment", 0.0), ("second_moment", v))
        for name, shape in shapes.items()
    }
    states = []
    for rule, reports in zip(rules, rounds, strict=True):
        result = rule.aggregate(memory, state, reports)
        state, memory = result.state, result.memory
        states.append(state)
    return states


@pytest.mark.parametrize(("rate", "momentum"), [(1.0, 0.9), (0.3, 0.5), (0.3, 0.0)])
def test_momentum_is_flowers_fedavgm(flwr, rate, momentum):
    state, rounds = sampled_rounds()
    theirs = flwr.go_on(
        "FedAvgM", state, rounds, server_learning_rate=rate, server_momentum=momentum
    )
    rule = Optimized(FedAvg(), Momentum(rate, momentum))
    memory = {}
    for reports, want in zip(rounds, theirs, strict=True):
        result = rule.aggregate(memory, state, reports)
        state, memory = result.state, result.memory
        assert_close(state, want, 2e-6)


@pytest.mark.parametrize("tau", [1e-3, 0.5])
@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("FedAdagrad", Adagrad(0.1)),
        ("FedYogi", Yogi(0.05, beta1=0.9, beta2=0.7)),
        ("FedAdam", Adam(0.05, beta1=0.9, beta2=0.7)),
    ],
)
def test_flowers_adaptive_optimizers_start_at_zero_and_adams_corrects_a_bias(
    flwr, name, optimizer, tau
):
    """Where the paper (algorithm 2) starts v at τ², Flower starts it at 0: so do we, if told to.

    Its FedAdam corrects the bias of that start as Kingma and Ba do, but with t + 1 for t: rounds
    count from 1 and it adds one more. With that learning rate for each round, we do the same.
    """
    state, rounds = sampled_rounds()
    optimizer = replace(optimizer, tau=tau)
    settings = {"eta": optimizer.learning_rate, "tau": tau}
    rates = np.full(ROUNDS, optimizer.learning_rate)
    if name != "FedAdagrad":
        settings |= {"beta_1": optimizer.beta1, "beta_2": optimizer.beta2}
    if name == "FedAdam":
        t = np.arange(1, ROUNDS + 1)
        rates *= np.sqrt(1 - 0.7 ** (t + 1)) / (1 - 0.9 ** (t + 1))
    theirs = flwr.go_on(name, state, rounds, **settings)
    rules = [Optimized(FedAvg(), replace(optimizer, learning_rate=float(r))) for r in rates]
    for ours, want in zip(stepped(rules, state, rounds, v=0.0), theirs, strict=True):
        assert_close(ours, want, 2e-6)
    as_in_the_paper = stepped([Optimized(FedAvg(), optimizer)] * ROUNDS, state, rounds, v=tau**2)
    if name == "FedAdam" or tau == 0.5:
        assert differ(as_in_the_paper[0], theirs[0], by=1e-4)


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAdagrad"])
def test_flowers_optimizers_step_buffers_too(flwr, name):
    """A running variance that falls is sent below zero, and a count becomes a fraction.

    Here both are the rule's: see `Optimized`.
    """
    state = {
        "norm.running_var": np.array([0.01], np.float32),
        "norm.num_batches_tracked": np.array(0),
    }
    after = {
        "norm.running_var": np.array([0.001], np.float32),
        "norm.num_batches_tracked": np.array(7),
    }
    reports = [ClientReport(0, after, 1)]
    theirs = flwr.go_on(name, state, [reports], eta=1.0)[0]
    assert theirs["norm.running_var"] < 0
    assert theirs["norm.num_batches_tracked"].dtype == np.float64
    assert 0 < theirs["norm.num_batches_tracked"] % 1 < 1
    for optimizer in (Adam(1.0), Yogi(1.0), Adagrad(1.0)):
        ours = Optimized(FedAvg(), optimizer).aggregate({}, state, reports).state
        assert ours["norm.running_var"] == after["norm.running_var"]
        assert ours["norm.num_batches_tracked"] == 7
        assert ours["norm.num_batches_tracked"].dtype == np.int64


# --- ByzFL: geometric median ----------------------------------------------------------------


@pytest.mark.parametrize("m", [3, 10, 40])
def test_byzfls_geometric_median_is_ours_once_it_has_converged(byzfl, m):
    """Many iterations and little smoothing: the start at the origin is forgotten."""
    before, reports = sample(m)
    rule = GeometricMedian(iterations=3000, tolerance=1e-12)
    got = flat(rule.aggregate({}, before, reports).state)
    theirs = byzfl.GeometricMedian(nu=1e-9, T=3000)(matrix(reports))
    assert_allclose(got, theirs, rtol=1e-5, atol=1e-5)


def test_byzfls_default_geometric_median_has_not_converged_on_models(byzfl):
    """Its defaults are three iterations from the origin with a smoothing of 0.1.

    Models lie far from the origin, all about equally far: the first iteration is the plain mean
    and two are left. Ours starts at the mean of the updates and goes on until it rests.
    """
    before, reports = points(
        [
            [100.0, 0.0],
            [100.2, 0.1],
            [99.9, 0.2],
            [100.0, 0.3],
            [100.1, 0.1],
            [140.0, 30.0],
            [141.0, 31.0],
        ]
    )
    rows = matrix(reports)
    ours = flat(GeometricMedian().aggregate({}, before, reports).state)
    theirs = byzfl.GeometricMedian()(rows)
    converged = byzfl.GeometricMedian(nu=1e-9, T=3000)(rows)
    assert np.linalg.norm(ours - converged) < 1e-3
    assert np.linalg.norm(theirs - converged) > 0.1
    assert total_distance(rows, ours) < total_distance(rows, theirs) - 0.1


@pytest.mark.parametrize("iterations", [1, 3, 10])
@pytest.mark.parametrize("smoothing", [1e-6, 0.1, 7.0])
def test_byzfls_geometric_median_about_the_mean_is_rfa_of_equal_counts(
    byzfl, iterations, smoothing
):
    """The start is all that differs: moved to where the mean is the origin, step is equal to step.

    So ByzFL's smoothing is RFA's, the maximum of a distance and ν, and its shares are equal.
    """
    before, reports = sample(8, equal_counts=True)
    rows = matrix(reports)
    mean = rows.mean(axis=0)
    theirs = mean + byzfl.GeometricMedian(nu=smoothing, T=iterations)(rows - mean)
    rule = RFA(iterations=iterations, smoothing=smoothing)
    ours = flat(rule.aggregate({}, before, reports).state)
    assert_allclose(ours, theirs, rtol=FLOAT32, atol=FLOAT32)
    if smoothing < 7.0:  # where every distance is below ν both stay at the mean
        assert np.abs(theirs - mean).max() > 1e-3


# --- ByzFL: Krum ----------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "f"), [(5, 1), (10, 1), (10, 3), (11, 5), (40, 9)])
def test_byzfls_krum_is_ours_with_one_byzantine_client_less(byzfl, m, f):
    """ByzFL averages over n − f − 1 neighbours, Blanchard et al. and ours over n − f − 2.

    One Byzantine client less gives our score as many neighbours as theirs.
    """
    before, reports = sample(m, seed=f)
    theirs = byzfl.Krum(f=f)(matrix(reports))
    assert_array_equal(flat(Krum(f - 1).aggregate({}, before, reports).state), theirs)


def test_byzfls_krum_chooses_another_client_for_its_one_neighbour_more(byzfl):
    """Of five with f = 1 it scores three neighbours, ours two: a tight three or a middle place."""
    before, reports = points([[0.0], [1.0], [2.05], [5.0], [6.0]])
    assert byzfl.Krum(f=1)(matrix(reports)) == np.float32(2.05)
    assert Krum(1).aggregate({}, before, reports).state["w"] == 1.0
    assert Krum(0).aggregate({}, before, reports).state["w"] == np.float32(2.05)


@pytest.mark.parametrize(("m", "f"), [(5, 1), (10, 1), (10, 3), (40, 9)])
def test_byzfls_multi_krum_is_the_mean_of_as_many_by_the_other_scores(byzfl, m, f):
    """It too keeps n − f, by the scores of n − f − 1 neighbours."""
    before, reports = sample(m, seed=f)
    scores = krum_scores(Round({}, before, reports).geometry.gram, f - 1)
    kept = [reports[i] for i in np.argsort(scores)[: m - f]]
    theirs = byzfl.MultiKrum(f=f)(matrix(reports))
    ours = flat(Uniform().aggregate({}, before, kept).state)
    assert_allclose(ours, theirs, rtol=FLOAT32, atol=FLOAT32)


def test_byzfls_multi_krum_keeps_another_set_for_its_one_neighbour_more(byzfl):
    before, reports = points([[0.0], [1.0], [2.05], [5.0], [6.0], [6.5]])
    ours = MultiKrum(2).aggregate({}, before, reports)
    theirs = byzfl.MultiKrum(f=2)(matrix(reports))
    assert differ(ours.state, {"w": theirs})
    assert (ours.weights > 0).sum() == 4


@pytest.mark.parametrize("f", [0, 1, 3])
def test_multi_krum_is_byzfls_where_the_sets_are_clear(byzfl, f):
    """A near cluster and f far clients: one neighbour more or less does not change who is kept."""
    before, reports = sample(10, equal_counts=True)
    far = [
        ClientReport(r.client, {k: v + np.float32(50) for k, v in r.state.items()}, 10)
        for r in reports[:f]
    ]
    attacked = [*reports[f:], *far]
    got = flat(MultiKrum(f).aggregate({}, before, attacked).state)
    theirs = byzfl.MultiKrum(f=f)(matrix(attacked))
    assert_allclose(got, theirs, rtol=FLOAT32, atol=FLOAT32)
    assert_allclose(got, matrix(reports[f:]).mean(axis=0), rtol=FLOAT32, atol=FLOAT32)

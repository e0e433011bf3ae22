"""Rounds of random models, and the weights and the model that each rule must make of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.testing import assert_allclose

from crf.slow_robust import SlowRobust, reported_trust
from fedcrf.rules import (
    BRA,
    CRF,
    FLAME,
    GAS,
    LASA,
    RFA,
    AggregationResult,
    CenteredClipping,
    ClientReport,
    CoordinateMedian,
    CRFEvidence,
    CRFRobust,
    CRFRobustEvidence,
    DnC,
    FedAvg,
    FedAWA,
    FedDisco,
    FedNova,
    FedSCS,
    FLTrust,
    FoolsGold,
    FoundationFL,
    GeometricMedian,
    Krum,
    MultiKrum,
    Rule,
    SignGuard,
    State,
    TrimmedMean,
    Uniform,
)
from fedcrf.rules.dnc import drawn_columns
from paper import baselines as slow
from paper import more_rivals, reference, rivals

SHAPES: Mapping[str, tuple[int, ...]] = {
    "conv.weight": (2, 2, 3),
    "norm.weight": (3,),
    "norm.running_mean": (3,),
    "norm.running_var": (3,),
    "norm.num_batches_tracked": (),
    "head.weight": (2, 3),
    "head.scale": (),
    "head.table": (2, 2),
}

# At most a rounding to the model's own dtype; everything before it is in float64.
ROUNDING = {
    np.dtype(np.float16): 4.9e-4,
    np.dtype(np.float32): 6.1e-8,
    np.dtype(np.float64): 1e-12,
}


class Round(NamedTuple):
    """A global model and what the clients report."""

    before: State
    reports: list[ClientReport]

    def aggregate(self, rule: Rule) -> AggregationResult:
        return self.served(rule).aggregate({}, self.before, self.reports)

    def served(self, rule: Rule) -> Rule:
        """The rule, which gets the server's model of this round if it needs one."""
        return rule.with_server_model(self.server) if rule.server_examples else rule

    @property
    def server(self) -> State:
        """What the server trained itself: a mean of the finite models, by the clients' numbers."""
        used = [each for each in self.reports if np.isfinite(slow.vector(each.state)).all()]
        if not used:
            return self.before
        mean = slow.weighted_mean(states(used), slow.shares([1 + each.client for each in used]))
        return {name: np.asarray(mean[name], array.dtype) for name, array in self.before.items()}

    def counting(self, counts: Sequence[Any]) -> Round:
        """The same round, with other numbers of examples."""
        reports = zip(self.reports, counts, strict=True)
        return Round(self.before, [replace(each, num_examples=count) for each, count in reports])


def tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Numbers like those of a tensor of that name: of integers, above 0, or any."""
    if name.endswith("num_batches_tracked"):
        return np.array(rng.integers(0, 1000, shape), dtype=np.int64)
    if name.endswith("table"):
        return np.array(rng.integers(-50, 50, shape), dtype=np.int64)
    if name.endswith("running_var"):
        return rng.uniform(0.5, 2.0, shape).astype(dtype)
    return np.array(rng.standard_normal(shape), dtype=dtype)


def sample(
    m: int,
    seed: int = 0,
    dtype: Any = np.float64,
    common: float = 1.0,
    uneven: bool = False,
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
) -> Round:
    """A global model and m clients' around it: a common move of that size, and a spread of 1.

    Counts, effective steps and what the clients say of themselves differ, so that a rule that
    ignores them cannot pass for another; one client says nothing. Of an uneven round the spread
    goes from 0.1 to 2, so that some updates are much longer than others.
    """
    rng = np.random.default_rng([seed, m])
    before = {name: tensor(rng, name, shape, dtype) for name, shape in shapes.items()}
    moved = {
        name: tensor(rng, name, array.shape, dtype) * (common if array.dtype.kind == "f" else 1)
        for name, array in before.items()
    }
    reports = []
    for client in range(m):
        spread = rng.uniform(0.1, 2.0) if uneven else 1
        state = {}
        for name, array in before.items():
            own = tensor(rng, name, array.shape, dtype) * (spread if array.dtype.kind == "f" else 1)
            state[name] = np.asarray(array + moved[name] + own, dtype=array.dtype)
        n, steps = int(rng.integers(1, 200)), float(rng.uniform(0.5, 20.0))
        evidence = {"residual_loss": 0.3 * client**2, "label_divergence": 0.1 + client % 3}
        evidence = evidence if client != 2 else {}
        reports.append(ClientReport(client * 3, state, n, steps, evidence))
    return Round(before, reports)


def spoilt(round_: Round, values: Mapping[int, float]) -> Round:
    """The same round, but a buffer of these reports holds one number that is not finite."""
    reports = list(round_.reports)
    for place, value in values.items():
        state = {name: array.copy() for name, array in reports[place].state.items()}
        state["norm.running_var"][2] = value
        reports[place] = replace(reports[place], state=state)
    return Round(round_.before, reports)


def states(reports: Sequence[ClientReport]) -> list[State]:
    return [report.state for report in reports]


def counts(reports: Sequence[ClientReport]) -> list[float]:
    return [report.num_examples for report in reports]


# --- the rules ------------------------------------------------------------------------------

BASELINES: list[Rule] = [
    FedAvg(),
    Uniform(),
    FedNova(),
    FedNova(normalise_buffers=True),
    CoordinateMedian(),
    TrimmedMean(),
    TrimmedMean(0.3),
    TrimmedMean(0.34),
    GeometricMedian(),
    RFA(),
    Krum(),
    Krum(1),
    Krum(2),
    MultiKrum(),
    MultiKrum(1),
    MultiKrum(3),
]
RIVALS: list[Rule] = [
    GAS(),
    GAS(groups=5, num_byzantine=1),
    GAS(base="krum", num_byzantine=2),
    GAS(base="median", num_byzantine=1),
    GAS(groups=4, base="trimmed-mean", num_byzantine=1, seed=3),
    FLTrust(),
    FoundationFL(),
    FoundationFL(num_byzantine=2, copies=3),
    FoundationFL("median", copies=0),
    # So long a clip that it clips nothing but what the tests of this rule alone have.
    CenteredClipping(clip=1e6),
    CenteredClipping(clip=1e6, bucket_size=1),
    CenteredClipping(clip=1e6, bucket_size=3, seed=4),
    FedAWA(),
    FedAWA(iterations=4, learning_rate=0.3, beta1=0.9, beta2=0.99),
    FedDisco(),
    FedDisco(discrepancy=2.0, offset=0.0),
    BRA(),
    BRA(iterations=3, tolerance=1e-9, scale_invariant=True),
    FedSCS(),
    FoolsGold(),
    DnC(),
    DnC(seed=3, num_byzantine=1, sampled=0.5, iterations=2),
    SignGuard(),
    SignGuard(seed=1, lower=0.2, upper=1.5, sampled=0.9),
    FLAME(noise=0.0),
    LASA(),
    LASA(norm_bound=2.0, sign_bound=1.5, sparsity=0.0),
]
# A new rule is a line here: `test_every_rule_is_tested` asks for it.
TESTED: list[Rule] = [
    *BASELINES,
    *RIVALS,
    CRF(),
    CRF(
        labels=(0.0, 0.5, 2.0),
        pairwise_strength=1.5,
        bandwidth=0.2,
        iterations=3,
        reliability_gate=False,
        weight_by_examples=False,
    ),
    CRFEvidence(),
    CRFRobust(),
    CRFRobust(prior_log_odds=1.0, tolerance=0.1, clip=1.1, counts="attested"),
    CRFRobust(longest_window=3.0, tolerance=0.2),
    CRFRobustEvidence(),
]


def changed_settings(rule: Rule, default: Rule | None = None) -> dict[str, Any]:
    """The settings of a rule that are not its defaults, or not another rule's."""
    default = default or type(rule)()
    names = [field.name for field in fields(default)]  # type: ignore[arg-type]
    settings = {name: getattr(rule, name) for name in names}
    return {name: value for name, value in settings.items() if value != getattr(default, name)}


def name_of(rule: Rule) -> str:
    """A rule's name in the list of tests: its class and what differs from the defaults."""
    settings = [f"{name}={value}" for name, value in changed_settings(rule).items()]
    return "-".join([type(rule).__name__, *(settings if len(settings) < 3 else ["others"])])


every_rule = pytest.mark.parametrize("rule", TESTED, ids=name_of)
every_baseline = pytest.mark.parametrize("rule", BASELINES, ids=name_of)


def by_coordinate(rule: Rule) -> bool:
    """Whether no report has one weight."""
    return isinstance(rule, CoordinateMedian | TrimmedMean | FoundationFL | LASA)


def is_made_sparse(rule: Rule) -> bool:
    """Whether the smallest numbers of an update are dropped, so that a model of one is another."""
    return isinstance(rule, LASA) and rule.sparsity > 0


# --- what they must come to -----------------------------------------------------------------


def slow_version(rule: Rule, round_: Round) -> tuple[Sequence[float], State]:
    """Return the weights and the model, in float64 and not yet rounded; of finite reports.

    The slow CRFs have defaults of their own: they are told only which settings are others.
    """
    before, reports = round_
    models, n = states(reports), counts(reports)
    equal = [1 / len(models)] * len(models)
    vectors = slow.updates(before, models)
    evidence = [report.evidence.get("residual_loss") for report in reports]
    weights: Sequence[float]
    rule = rule.informed(0, num_clients=1_000, seed=0)  # of no attackers, if nobody has said
    match rule:
        case CoordinateMedian():
            return [math.nan] * len(models), slow.coordinate_median(models)
        case TrimmedMean():
            return [math.nan] * len(models), slow.trimmed_mean(models, rule.fraction)
        case FedNova():
            steps = [report.effective_steps for report in reports]
            model = slow.fednova(before, models, n, steps, rule.normalise_buffers)
            return slow.fednova_weights(n, steps), model
        case FoundationFL():
            model = more_rivals.foundation(
                models, vectors, rule.base, rule.num_byzantine or 0, rule.copies
            )
            return [math.nan] * len(models), model
        case FLTrust():
            server = slow.vector(round_.server) - slow.vector(before)
            weights, step = more_rivals.fltrust(vectors, server)
            return weights, with_floats(slow.weighted_mean(models, weights), before, step)
        case CRFRobust():
            heeded = evidence if isinstance(rule, CRFRobustEvidence) else None
            settings = changed_settings(rule, CRFRobust())
            server = SlowRobust(**{k: v for k, v in settings.items() if k != "sketch_size"})
            return slow_robust(server, round_, vectors, heeded)
        case GAS():
            f = rule.num_byzantine or 0
            weights = more_rivals.gas(vectors, rule.groups, rule.base, f, rule.seed or 0)
        case CenteredClipping():
            return equal_buckets(rule, round_), with_floats(
                slow.weighted_mean(models, equal), before, clipped_step(rule, round_, vectors)
            )
        case FedAWA():
            weights, _ = more_rivals.fedawa(
                slow.vector(before),
                vectors,
                slow.shares(n),
                rule.iterations,
                rule.learning_rate,
                (rule.beta1, rule.beta2),
            )
        case FedDisco():
            divergences = [report.evidence.get("label_divergence") for report in reports]
            weights = more_rivals.feddisco(
                slow.shares(n), divergences, rule.discrepancy, rule.offset
            )
        case BRA():
            weights = rivals.bra([slow.vector(state) for state in models], **vars(rule))
        case FedSCS():
            weights = rivals.SlowFedSCS().round(dict(enumerate(vectors)))
        case FoolsGold():
            outputs = [rivals.output_layer(before, state) for state in models]
            alpha = rivals.SlowFoolsGold().round(dict(enumerate(outputs)))
            weights = [a / (sum(alpha) or 1.0) for a in alpha]
            shorter = [sum(alpha) / len(models)] * len(models)
            return weights, rivals.moved(before, models, weights, shorter)
        case DnC():
            kept = rivals.dnc(vectors, rule.num_byzantine or 0, columns_of(rule, vectors))
            weights = [(client in kept) / len(kept) for client in range(len(models))]
        case SignGuard() | FLAME():
            if isinstance(rule, SignGuard):
                kept = rivals.signguard(
                    vectors, *drawn_window(rule, vectors), rule.lower, rule.upper
                )
            else:
                kept = rivals.flame([slow.vector(state) for state in models])
            if not kept:
                return [0.0] * len(models), before
            weights = [(client in kept) / len(kept) for client in range(len(models))]
            return weights, rivals.moved(before, models, weights, rivals.clips(vectors))
        case LASA():
            return [math.nan] * len(models), rivals.lasa(before, models, vectors, **vars(rule))
        case FedAvg():
            weights = slow.shares(n)
        case Uniform():
            weights = equal
        case GeometricMedian():
            _, weights, _ = slow.weiszfeld(vectors, equal, 1e-12, rule.iterations, rule.tolerance)
        case RFA():
            _, weights = slow.rfa(vectors, n, rule.iterations, rule.smoothing)
        case MultiKrum():
            kept = slow.multi_krum(vectors, rule.num_byzantine)
            weights = [(client in kept) / len(kept) for client in range(len(models))]
        case Krum():
            chosen = slow.krum(vectors, rule.num_byzantine)
            weights = [float(client == chosen) for client in range(len(models))]
        case CRF():
            rows = [vector.tolist() for vector in vectors]
            weights = reference.infer(rows, n, **changed_settings(rule)).weights
        case CRFEvidence():
            trust = zip(n, reported_trust(evidence), strict=True)
            weights = slow.shares([count * share for count, share in trust])
        case _:
            raise AssertionError(f"{rule} has no slow version")
    return weights, slow.weighted_mean(models, weights)


def with_floats(averaged: State, before: State, step: slow.Vector) -> State:
    """A model whose floating-point numbers are those of before and a step."""
    state, start = dict(averaged), 0
    for name, array in before.items():
        if array.dtype.kind == "f":
            part = step[start : start + array.size].reshape(array.shape)
            state[name] = array.astype(np.float64) + part
            start += array.size
    return state


def clipped_step(
    rule: CenteredClipping, round_: Round, vectors: Sequence[slow.Vector]
) -> slow.Vector:
    """Centered clipping's first aggregate."""
    return more_rivals.clipped(
        np.zeros(len(vectors[0])),
        vectors,
        [report.client for report in round_.reports],
        rule.clip,
        rule.iterations,
        rule.bucket_size,
        rule.seed or 0,
    )


def equal_buckets(rule: CenteredClipping, round_: Round) -> list[float]:
    """The weights where nothing is clipped: those of the mean of the buckets."""
    m = len(round_.reports)
    each = np.eye(m)
    whole = replace(rule, iterations=1)
    return [float(share) for share in clipped_step(whole, round_, list(each))]


def first_draws(rule: DnC | SignGuard) -> np.random.Generator:
    """The generator of the first round."""
    return np.random.default_rng(np.random.SeedSequence([rule.seed or 0, 0]))


def columns_of(rule: DnC, vectors: Sequence[slow.Vector]) -> list[np.ndarray]:
    """The coordinates of each iteration in the first round."""
    draws, d = first_draws(rule), len(vectors[0])
    size = max(1, int(rule.sampled * d))
    return [drawn_columns(draws, d, size) for _ in range(rule.iterations)]


def drawn_window(rule: SignGuard, vectors: Sequence[slow.Vector]) -> tuple[int, int]:
    """Start and size of the run of coordinates in the first round."""
    d = len(vectors[0])
    size = max(1, int(rule.sampled * d))
    return int(first_draws(rule).integers(0, d - size + 1)), size


def slow_robust(
    server: SlowRobust,
    round_: Round,
    vectors: Sequence[slow.Vector],
    evidence: Sequence[float | None] | None,
) -> tuple[list[float], State]:
    """The robust CRF's first round; integers, which are not moved but averaged, in it."""
    clients = [report.client for report in round_.reports]
    by_client, moved = server.round(
        slow.vector(round_.before).tolist(),
        dict(zip(clients, (vector.tolist() for vector in vectors), strict=True)),
        dict(zip(clients, counts(round_.reports), strict=True)),
        dict(zip(clients, evidence, strict=True)) if evidence else None,
    )
    weights = [by_client[client] for client in clients]
    state, start = dict(slow.weighted_mean(states(round_.reports), weights)), 0
    for name, array in round_.before.items():
        if array.dtype.kind == "f":
            state[name] = np.array(moved[start : start + array.size]).reshape(array.shape)
            start += array.size
    return weights, state


def slack_of(rule: Rule) -> float:
    """How much a rule's numbers may lose before they are rounded, relative to the largest."""
    if isinstance(rule, CRF | CRFEvidence | CRFRobust):
        return 1e-7  # as its weights
    if isinstance(rule, BRA):
        return 1e-7  # densities of distances that the Gram matrix knows less well
    if isinstance(rule, FoolsGold):
        return 1e-9  # 1 less a cosine near 1, where histories are alike
    # Weiszfeld's weights divide by distances, which the Gram matrix knows less well.
    return 1e-9 if isinstance(rule, GeometricMedian | RFA) else 1e-13


def assert_rounded(got: State, want: State, before: State, slack: float) -> None:
    """Compare a model with float64 numbers: the same tensors, floats near, integers nearest."""
    assert list(got) == list(before)
    for name, array in before.items():
        assert got[name].dtype == array.dtype, name
        assert got[name].shape == array.shape, name
        lost = slack * float(np.max(np.abs(want[name])))
        if array.dtype.kind == "f":
            near = ROUNDING[array.dtype]
            assert_allclose(got[name], want[name], rtol=near, atol=lost, err_msg=name)
        else:  # nearest; either neighbour where the exact value is half-way
            assert np.all(np.abs(got[name] - want[name]) <= 0.5 + 1e-9 + lost), name


def assert_same(got: State, want: State, near: float = 1e-12) -> None:
    """Compare two models tensor by tensor, dtypes included."""
    assert list(got) == list(want)
    for name, array in want.items():
        assert got[name].dtype == array.dtype, name
        assert got[name].shape == array.shape, name
        scale = float(np.max(np.abs(array)))
        assert_allclose(got[name], array, rtol=near, atol=near * scale, err_msg=name)

"""The paper's claims held against our runs: what was measured, and whether it bears the claim out.

A claim is supported where the 95 % interval of its paired difference lies on the claimed side of
zero, contradicted where it lies on the other, and undecided where it contains zero or the seeds are
too few. Variances are compared by a test for paired samples at the same level. Rounds to an
accuracy that some run never reached are compared by counting the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedcrf.experiments.analysis.pairs import CONFIDENCE, Estimate, by_axes, paired_difference
from fedcrf.experiments.analysis.paper import PAIRS
from fedcrf.experiments.analysis.tables import Table, difference_text
from fedcrf.experiments.methods import method_title

if TYPE_CHECKING:
    import pandas as pd

REACHED = 0.95
"""Convergence is measured by the rounds to this share of the baseline's best accuracy."""

NEGLIGIBLE = 0.005
"""Half a point of accuracy: what counts as nothing lost under IID."""

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"


def claims_table(title: str, cells: pd.DataFrame, *, iid: bool) -> Table:
    """Hold the paper's claims against the finished cells of one run.

    Args:
        title: Stands above the table.
        cells: Of one run, its methods under shared seeds; those without a curve do not count.
        iid: Whether the clients' data are alike, for which the paper claims that nothing is lost.
    """
    rows: list[tuple[str, ...]] = []
    of_method = by_axes(cells[cells["curve"].astype(bool)], "method")
    for pair in PAIRS:
        shared = of_method[pair[0]].index.intersection(of_method[pair[1]].index)
        if len(shared) < 2:
            continue
        own, base = (of_method[method].loc[shared] for method in pair)
        name = " and ".join(method_title(method) for method in pair)
        if iid:
            rows.append(
                _above_zero(
                    f"{name}: nothing lost",
                    f"Δ test accuracy above −{NEGLIGIBLE:g}",
                    _paired(own, base, "accuracy"),
                    margin=NEGLIGIBLE,
                    form="+.4f",
                )
            )
            continue
        accuracy, best_round, loss = (
            _paired(own, base, column) for column in ("accuracy", "best_round", "validation_loss")
        )
        rows += [
            _above_zero(f"{name}: higher accuracy", "Δ test accuracy", accuracy),
            _speed(name, own["curve"], base["curve"]),
            _above_zero(f"{name}: keeps improving late", "Δ best round", best_round, form="+.1f"),
            _above_zero(f"{name}: lower validation loss", "Δ lowest loss", loss, sign=-1),
            _variance(name, own["accuracy"].to_numpy(), base["accuracy"].to_numpy()),
        ]
    return Table(title, ("claim", "measured", "result [95 %]", "verdict"), tuple(rows))


def _above_zero(
    claim: str,
    measure: str,
    difference: Estimate,
    *,
    sign: int = 1,
    margin: float = 0.0,
    form: str = "+.3f",
) -> tuple[str, ...]:
    """Return the row of a claim that ``sign`` times a difference, and a margin, is above zero.

    An interval that is not known decides nothing.
    """
    low, high = sorted((sign * difference.low, sign * difference.high))
    verdict = SUPPORTED if low + margin > 0 else CONTRADICTED if high + margin < 0 else UNDECIDED
    return claim, measure, difference_text(difference, form), verdict


def _paired(own: pd.DataFrame, base: pd.DataFrame, column: str) -> Estimate:
    bound = 1.0 if column == "accuracy" else math.inf
    difference = paired_difference(own[column], base[column], bound)
    assert difference is not None, "they share seeds"
    return difference


def _speed(pair: str, ours: pd.Series, theirs: pd.Series) -> tuple[str, ...]:
    """Compare the rounds to each seed's target, which is set by the baseline's run of that seed.

    Where some run never reaches it, its rounds are censored: the seeds are counted on which one
    method is there before the other, and held against chance by the sign test.
    """
    import pandas as pd
    from scipy.stats import binomtest

    targets = [REACHED * max(curve) for curve in theirs]
    own, base = (
        np.array([_rounds_to(*each) for each in zip(curves, targets, strict=True)])
        for curves in (ours, theirs)
    )
    claim = f"{pair}: converges at least as fast"
    measure = f"rounds to {REACHED:.0%} of the baseline's best validation accuracy on the same seed"
    if np.isfinite([own, base]).all():
        rounds = paired_difference(pd.Series(own), pd.Series(base), math.inf)
        assert rounds is not None
        verdict = SUPPORTED if rounds.high <= 0 else CONTRADICTED if rounds.low > 0 else UNDECIDED
        return claim, f"Δ {measure}", difference_text(rounds, "+.1f"), verdict
    sooner, later = int((own < base).sum()), int((base < own).sum())
    p = float(binomtest(later, sooner + later).pvalue) if sooner + later else 1.0
    value = (
        f"{_rounds_text(own, ours)} against {_rounds_text(base, theirs)}; "
        f"sooner on {sooner} seeds, later on {later} (p = {p:.3f})"
    )
    verdict = UNDECIDED
    if p < 1 - CONFIDENCE:
        verdict = SUPPORTED if sooner > later else CONTRADICTED
    return claim, measure, value, verdict


def _rounds_to(curve: Sequence[float], target: float) -> float:
    """Return the first round of that accuracy; infinity where there is none."""
    return next((number for number, each in enumerate(curve, start=1) if each >= target), math.inf)


def _rounds_text(rounds: NDArray[np.float64], curves: pd.Series) -> str:
    """Return the median, or what it exceeds where half of the runs may have needed more."""
    reached = np.isfinite(rounds)
    known = np.where(reached, rounds, [len(curve) for curve in curves])
    first_half = np.lexsort((~reached, known))[: len(rounds) // 2 + 1]
    more = "" if reached[first_half].all() else "> "
    return f"{more}{np.median(known):g} rounds ({reached.sum()} of {len(rounds)} reached)"


def _variance(pair: str, own: NDArray[np.float64], base: NDArray[np.float64]) -> tuple[str, ...]:
    """Compare the variances over paired seeds by Pitman's and Morgan's test.

    The sum and the difference of two paired variables correlate as their variances differ.
    """
    from scipy.stats import pearsonr

    value = f"{own.std(ddof=1):.3f} against {base.std(ddof=1):.3f}"
    verdict = UNDECIDED
    total, difference = own + base, own - base
    if len(own) > 2 and min(np.ptp(total), np.ptp(difference)) > 1e-9:  # else no correlation
        found = pearsonr(total, difference)
        value += f" (p = {found.pvalue:.3f})"
        if found.pvalue < 1 - CONFIDENCE:
            verdict = SUPPORTED if found.statistic < 0 else CONTRADICTED
    return f"{pair}: less variance", "sd of test accuracy over seeds", value, verdict

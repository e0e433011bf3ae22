"""The paper's claims held against our runs: what was measured, and whether it bears the claim out.

A claim is supported where the 95 % interval of its paired difference lies on the claimed side of
zero, contradicted where it lies on the other, and undecided where it contains zero or the seeds are
too few. Variances are compared by a test for paired samples at the same level, and rounds to an
accuracy that some run never reached by counting the seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr
from scipy.stats import binomtest

from fedcrf.experiments.compare import CONFIDENCE, PairedDifference, paired_difference
from fedcrf.experiments.methods import find_method
from fedcrf.experiments.standing import CellStanding
from fedcrf.experiments.tables import Table, difference_text
from fedcrf.simulation.records import RoundRecord, reported_round

REACHED = 0.95
"""Convergence is measured by the rounds to this share of the baseline's best accuracy."""

NEGLIGIBLE = 0.005
"""Half a point of accuracy: what counts as nothing lost under IID."""

SUPPORTED, CONTRADICTED, UNDECIDED = "supported", "contradicted", "undecided"

PAIRS = (("crf-fedavg", "fedavg"), ("crf-fedprox", "fedprox"))


@dataclass(frozen=True)
class Finding:
    """One claim about one pair of methods, measured.

    Attributes:
        claim: What the paper says.
        measure: What was measured, in words.
        value: The measurement.
        verdict: ``supported``, ``contradicted`` or ``undecided``.
    """

    claim: str
    measure: str
    value: str
    verdict: str


def claims_table(title: str, cells: Sequence[CellStanding], *, iid: bool) -> Table:
    """Hold the paper's claims against the finished cells of one run.

    Args:
        title: Stands above the table.
        cells: Of one run, its methods under shared seeds.
        iid: Whether the clients' data are alike, for which the paper claims that nothing is lost.
    """
    runs = _by_method(cells)
    findings: list[Finding] = []
    for method, baseline in PAIRS:
        shared = sorted(runs.get(method, {}).keys() & runs.get(baseline, {}).keys())
        if len(shared) < 2:
            continue
        ours = [runs[method][seed] for seed in shared]
        theirs = [runs[baseline][seed] for seed in shared]
        pair = f"{find_method(method).title} and {find_method(baseline).title}"
        if iid:
            findings += _iid_findings(pair, ours, theirs)
        else:
            findings += _findings(pair, ours, theirs)
    header = ("claim", "measured", "result [95 %]", "verdict")
    rows = tuple((each.claim, each.measure, each.value, each.verdict) for each in findings)
    return Table(title, header, rows)


Run = Sequence[RoundRecord]


def _by_method(cells: Sequence[CellStanding]) -> Mapping[str, Mapping[int, Run]]:
    runs: dict[str, dict[int, Run]] = {}
    for each in cells:
        if each.summary is not None and each.records:
            runs.setdefault(each.cell.method.name, {})[each.cell.seed] = each.records
    return runs


def _findings(pair: str, ours: Sequence[Run], theirs: Sequence[Run]) -> list[Finding]:
    higher = _paired(ours, theirs, lambda run: reported_round(run).test.accuracy, bound=1.0)
    later = _paired(ours, theirs, lambda run: reported_round(run).round)
    loss = _paired(ours, theirs, lambda run: reported_round(run).validation.loss)
    return [
        Finding(
            f"{pair}: higher accuracy", "Δ test accuracy", difference_text(higher), _above(higher)
        ),
        _speed_finding(pair, ours, theirs),
        Finding(
            f"{pair}: keeps improving late",
            "Δ best round",
            difference_text(later, "+.1f"),
            _above(later),
        ),
        Finding(
            f"{pair}: lower validation loss", "Δ lowest loss", difference_text(loss), _below(loss)
        ),
        _variance_finding(pair, ours, theirs),
    ]


def _speed_finding(pair: str, ours: Sequence[Run], theirs: Sequence[Run]) -> Finding:
    """Compare the rounds to each seed's target, which is set by the baseline's run of that seed.

    Where some run never reaches it, its rounds are censored: the seeds are counted on which one
    method is there before the other, and held against chance by the sign test.
    """
    targets = [REACHED * max(each.validation.accuracy for each in run) for run in theirs]
    ours_to, theirs_to = (
        [_rounds_to(run, target) for run, target in zip(runs, targets, strict=True)]
        for runs in (ours, theirs)
    )
    claim = f"{pair}: converges at least as fast"
    measure = f"rounds to {REACHED:.0%} of the baseline's best validation accuracy on the same seed"
    if all(each.reached for each in (*ours_to, *theirs_to)):
        rounds = paired_difference(
            [each.rounds for each in ours_to], [each.rounds for each in theirs_to], math.inf
        )
        verdict = SUPPORTED if rounds.high <= 0 else CONTRADICTED if rounds.low > 0 else UNDECIDED
        return Finding(claim, f"Δ {measure}", difference_text(rounds, "+.1f"), verdict)
    pairs = list(zip(ours_to, theirs_to, strict=True))
    sooner = sum(one.before(other) for one, other in pairs)
    later = sum(other.before(one) for one, other in pairs)
    p = float(binomtest(later, sooner + later).pvalue) if sooner + later else 1.0
    value = (
        f"{_rounds_text(ours_to)} against {_rounds_text(theirs_to)}; sooner on {sooner} seeds, "
        f"later on {later} (p = {p:.3f})"
    )
    verdict = UNDECIDED
    if p < 1 - CONFIDENCE:
        verdict = SUPPORTED if sooner > later else CONTRADICTED
    return Finding(claim, measure, value, verdict)


def _iid_findings(pair: str, ours: Sequence[Run], theirs: Sequence[Run]) -> list[Finding]:
    difference = _paired(ours, theirs, lambda run: reported_round(run).test.accuracy, bound=1.0)
    above, below = difference.low > -NEGLIGIBLE, difference.high < -NEGLIGIBLE
    verdict = SUPPORTED if above else CONTRADICTED if below else UNDECIDED
    measure = f"Δ test accuracy above −{NEGLIGIBLE:g}"
    value = difference_text(difference, "+.4f")
    return [Finding(f"{pair}: nothing lost", measure, value, verdict)]


def _variance_finding(pair: str, ours: Sequence[Run], theirs: Sequence[Run]) -> Finding:
    """Compare the variances over paired seeds by Pitman's and Morgan's test.

    The sum and the difference of two paired variables correlate as their variances differ.
    """
    a = np.array([reported_round(run).test.accuracy for run in ours])
    b = np.array([reported_round(run).test.accuracy for run in theirs])
    value = f"{a.std(ddof=1):.3f} against {b.std(ddof=1):.3f}"
    verdict = UNDECIDED
    if len(a) > 2 and min(np.ptp(a - b), np.ptp(a + b)) > 1e-9:  # else there is no correlation
        correlation = float(np.corrcoef(a + b, a - b)[0, 1])
        free = len(a) - 2
        t = correlation * math.sqrt(free / max(1e-300, 1 - correlation**2))
        p = 2 * float(stdtr(free, -abs(t)))
        value += f" (p = {p:.3f})"
        if p < 1 - CONFIDENCE:
            verdict = SUPPORTED if correlation < 0 else CONTRADICTED
    return Finding(f"{pair}: less variance", "sd of test accuracy over seeds", value, verdict)


def _paired(
    ours: Sequence[Run],
    theirs: Sequence[Run],
    value: Callable[[Run], float],
    bound: float = math.inf,
) -> PairedDifference:
    return paired_difference([value(run) for run in ours], [value(run) for run in theirs], bound)


@dataclass(frozen=True)
class _RoundsTo:
    """The rounds to an accuracy; where it was never reached, those of the whole run."""

    rounds: int
    reached: bool

    def before(self, other: _RoundsTo) -> bool:
        """Tell whether this run was there first; one that has ended without it never is."""
        return self.reached and (not other.reached or self.rounds < other.rounds)


def _rounds_to(run: Run, accuracy: float) -> _RoundsTo:
    """Return the first round of that validation accuracy."""
    for record in run:
        if record.validation.accuracy >= accuracy:
            return _RoundsTo(record.round, reached=True)
    return _RoundsTo(run[-1].round, reached=False)


def _rounds_text(values: Sequence[_RoundsTo]) -> str:
    """Return the median, or what it exceeds where half of the runs may have needed more."""
    ordered = sorted(values, key=lambda each: (each.rounds, not each.reached))
    certain = all(each.reached for each in ordered[: len(ordered) // 2 + 1])
    median = float(np.median([each.rounds for each in ordered]))
    reached = sum(each.reached for each in values)
    more = "" if certain else "> "
    return f"{more}{median:g} rounds ({reached} of {len(values)} reached)"


def _above(value: PairedDifference) -> str:
    return SUPPORTED if value.low > 0 else CONTRADICTED if value.high < 0 else UNDECIDED


def _below(value: PairedDifference) -> str:
    return SUPPORTED if value.high < 0 else CONTRADICTED if value.low > 0 else UNDECIDED

"""The rules of ByzFL: its robust aggregators, with its pre-aggregators before them, by name.

A rule is called ``byzfl-AGGREGATOR``, with any of the pre-aggregators between the two in the order
in which they work, as in ``byzfl-nnm-krum`` or ``byzfl-arc-nnm-geometric-median``. Its settings are
ByzFL's own, but for f, which is ``attackers``. The package (``fedcrf[byzfl]``) is imported when one
of them aggregates, and not before.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, make_dataclass, replace
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import check_positive, check_whole
from fedcrf.crf import base_weights
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.rules.base import (
    AggregationResult,
    ClientReport,
    Memory,
    State,
    check_reports,
    floating_layers,
    num_examples,
    stepped_state,
)
from fedcrf.statistics import is_floating, weighted_average

PREFIX = "byzfl-"
"""Begins the name of every rule of ByzFL."""


@dataclass(frozen=True)
class Part:
    """An aggregator or a pre-aggregator.

    Attributes:
        kind: Its class in ByzFL.
        settings: The class's parameters but for f, with their defaults; None for a whole number
            that is computed where it is left out.
        takes_f: Whether the class is told f.
        draws: Whether it draws random numbers.
        remembers: Whether it goes on from its last result.
        of_arrays: Whether it is handed NumPy arrays and no tensors: torch's quantile takes no more
            than 16 million numbers.
    """

    kind: str
    settings: Mapping[str, int | float | None] = field(default_factory=dict)
    takes_f: bool = False
    draws: bool = False
    remembers: bool = False
    of_arrays: bool = False


AGGREGATORS: Mapping[str, Part] = {
    "average": Part("Average"),
    "median": Part("Median", of_arrays=True),
    "trmean": Part("TrMean", takes_f=True),
    "geometric-median": Part("GeometricMedian", {"nu": 0.1, "T": 3}),
    "krum": Part("Krum", takes_f=True),
    "multi-krum": Part("MultiKrum", takes_f=True),
    "centered-clipping": Part("CenteredClipping", {"L": 1, "tau": 100.0}, remembers=True),
    "mda": Part("MDA", takes_f=True),
    "monna": Part("MoNNA", {"idx": 0}, takes_f=True),
    "meamed": Part("Meamed", takes_f=True, of_arrays=True),
    "caf": Part("CAF", takes_f=True, draws=True),
    "smea": Part("SMEA", takes_f=True, draws=True),
}
"""ByzFL's aggregators by name; of MoNNA's ``idx`` see `ByzFLRule`."""

PRE_AGGREGATORS: Mapping[str, Part] = {
    "clipping": Part("Clipping", {"c": 2.0}),
    "arc": Part("ARC", takes_f=True),
    "nnm": Part("NNM", takes_f=True),
    "bucketing": Part("Bucketing", {"s": None}, draws=True),
}
"""ByzFL's pre-aggregators by name."""

BYZFL_RULES: Sequence[str] = tuple(
    f"{PREFIX}{before}{aggregator}"
    for before in ("", *(f"{name}-" for name in PRE_AGGREGATORS))
    for aggregator in AGGREGATORS
)
"""Every aggregator, alone and after each pre-aggregator; longer chains have names too."""


@dataclass(frozen=True)
class ByzFLRule:
    """ByzFL's pre-aggregators and aggregator on the updates w_i − w_t; see `byzfl_rule`.

    They see float32 updates, all floating-point tensors in one vector, and no counts of examples;
    integer tensors are the plain mean, rounded. A rule has those of these settings that its parts
    need: their own, ``attackers`` (f; the run's true number where left out, 0 where nobody says)
    and ``seed`` of what is random (the run's; each round draws anew). A report that is not finite
    is left out, and counts as one of the f.

    MoNNA is of peers who trust themselves: it takes the report of place ``idx``, the first where
    left out, for honest, and averages the m − f reports nearest to it. A server has no such client.
    Where attackers are drawn the first may be one of them, and then leads the model; ByzFL's own
    benchmark puts honest clients first. Behind Bucketing ``idx`` is the place of a bucket, which
    is another one in each round.

    Where ByzFL has no answer: the updates are equal (SMEA, CAF), then it is that update; CAF finds
    nothing to filter, as with f = 0, then the mean. Bucketing without ``s`` makes the largest
    buckets of which fewer than half can hold an attacker (`bucket_size`). Updates so long that
    their squares overflow may lead to a model that is not finite, or to an error: ByzFL's answer.
    """

    pre_aggregators: ClassVar[tuple[str, ...]]
    aggregator: ClassVar[str]

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(setting.default, float):
                check_positive(self, setting.name)
            elif value is not None:
                check_whole(setting.name, value, least=1 if setting.name in ("T", "L", "s") else 0)

    def __reduce__(self) -> tuple[Any, ...]:
        # The class has no place in a module: it is found by the rule's name.
        return _rule_of, (self.name, asdict(self))

    @property
    def name(self) -> str:
        """What the rule is called."""
        return PREFIX + "-".join((*self.pre_aggregators, self.aggregator))

    def informed(self, attackers: int, num_clients: int, seed: int) -> ByzFLRule:
        """Return the rule with what a run knows; see `InformedRule.informed`."""
        known = {"attackers": attackers, "seed": seed}
        rule = replace(
            self,
            **{
                setting.name: known[setting.name]
                for setting in fields(self)
                if setting.name in known and getattr(self, setting.name) is None
            },
        )
        rule._check_honest_majority(num_clients, rule._attackers)
        return rule

    def aggregate(self, global_state: State, reports: Sequence[ClientReport]) -> AggregationResult:
        """Return the model of a first round; see `Rule.aggregate`."""
        return self.aggregate_after({}, global_state, reports)

    def aggregate_after(
        self, memory: Memory, global_state: State, reports: Sequence[ClientReport]
    ) -> AggregationResult:
        """Return the model that ByzFL's aggregate leads to; see `RememberingRule.aggregate_after`.

        Raises:
            FedcrfError: Also for more attackers than the aggregator withstands, or without ByzFL.
        """
        check_reports(global_state, reports)
        updates = _updates(global_state, reports)
        finite = np.asarray(np.isfinite(updates).all(axis=1))
        shares = base_weights(num_examples(reports), finite)
        if not finite.any():
            return AggregationResult(
                global_state, np.zeros(len(reports)), shares, ~finite, memory=memory
            )
        self._check_memory(memory, updates.shape[1])
        attackers = max(0, self._attackers - int((~finite).sum()))
        aggregate, kept = self._among(finite)._aggregated(updates[finite], attackers, memory)
        return AggregationResult(
            state=_moved(global_state, reports, aggregate, finite),
            weights=np.where(finite, np.nan, 0.0),
            base_weights=shares,
            excluded=~finite,
            memory=kept,
        )

    def _aggregated(
        self, updates: NDArray[np.float32], attackers: int, memory: Memory
    ) -> tuple[NDArray[np.float32], Memory]:
        """Return ByzFL's aggregate of (m, d) finite updates, and what is kept for the next round.

        Args:
            updates: Are written to.
            attackers: f among them.
            memory: Of the round before.
        """
        import torch

        self._check_honest_majority(len(updates), attackers)
        part = AGGREGATORS[self.aggregator]
        rounds = int(memory.get("rounds", 0))
        vectors = torch.from_numpy(updates)
        with _drawing(getattr(self, "seed", None) or 0, rounds), self._named_errors():
            for name in self.pre_aggregators:
                vectors = self._made(PRE_AGGREGATORS[name], len(vectors), attackers)(vectors)
            aggregator = self._made(part, len(vectors), attackers)
            if "m" in memory:
                aggregator.m = torch.tensor(memory["m"])  # its constructor takes none
            if part.draws and bool((vectors == vectors[0]).all()):
                aggregate = vectors[0]  # a covariance of zero has no direction
            else:
                aggregate = aggregator(vectors.numpy() if part.of_arrays else vectors)
        if aggregate is None:
            aggregate = vectors.mean(dim=0)
        kept = np.asarray(aggregate)
        renewed = {"rounds": np.array(rounds + 1), "m": kept}
        return kept, {name: renewed[name] for name in self._remembered}

    def _among(self, finite: NDArray[np.bool_]) -> ByzFLRule:
        """Return the rule that trusts the same report where only the finite ones are looked at.

        Who sends what is not finite must not choose whom MoNNA trusts. Where the trusted report
        itself is not finite, it is the next one, or the last.
        """
        trusted: int | None = getattr(self, "idx", None)
        if trusted is None or trusted >= len(finite) or "bucketing" in self.pre_aggregators:
            return self
        place = min(int(finite[:trusted].sum()), int(finite.sum()) - 1)
        return replace(self, **{"idx": place})

    def _made(self, part: Part, num_vectors: int, attackers: int) -> Any:
        """Return ByzFL's object for so many vectors."""
        arguments = {name: getattr(self, name) for name in part.settings}
        if "s" in arguments:
            arguments["s"] = self._bucket_size(num_vectors, attackers)
        if part.takes_f:
            arguments["f"] = attackers
        return getattr(byzfl_aggregators(), part.kind)(**arguments)

    def _check_honest_majority(self, num_reports: int, attackers: int) -> None:
        """Raise a `FedcrfError` where the aggregator would be told of half the vectors or more."""
        vectors = num_reports
        if "bucketing" in self.pre_aggregators:
            vectors = math.ceil(vectors / self._bucket_size(vectors, attackers))
        if AGGREGATORS[self.aggregator].takes_f and 2 * attackers >= vectors:
            buckets = f" in {vectors} buckets" if vectors < num_reports else ""
            raise FedcrfError(
                f"{self.name}: {attackers} attackers among {num_reports} reports{buckets} are half "
                f"or more, which ByzFL's {AGGREGATORS[self.aggregator].kind} refuses: "
                f"set fewer (rules.{self.name}.attackers)"
            )

    def _bucket_size(self, num_vectors: int, attackers: int) -> int:
        given: int | None = getattr(self, "s", None)
        return bucket_size(num_vectors, attackers) if given is None else given

    def _check_memory(self, memory: Memory, num_parameters: int) -> None:
        shapes = {"rounds": (), "m": (num_parameters,)}
        expected = {name: shapes[name] for name in self._remembered}
        if memory and {name: array.shape for name, array in memory.items()} != expected:
            raise FedcrfError(
                f"the memory is not of {self.name} and this model: give that of the round before, "
                "or none to begin anew"
            )

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Let what ByzFL refuses name the rule."""
        try:
            yield
        except FedcrfError:
            raise
        except (ValueError, TypeError) as error:  # the latter where distances are beyond float32
            raise FedcrfError(f"{self.name}: ByzFL refuses the round: {error}") from None

    @property
    def _attackers(self) -> int:
        """What f is; 0 where nobody has said."""
        return getattr(self, "attackers", None) or 0

    @property
    def _remembered(self) -> list[str]:
        """What the rule remembers: how many rounds it drew for, its last aggregate."""
        parts = [*(PRE_AGGREGATORS[name] for name in self.pre_aggregators)]
        parts.append(AGGREGATORS[self.aggregator])
        needs = {"rounds": any(part.draws for part in parts), "m": parts[-1].remembers}
        return [name for name, needed in needs.items() if needed]


def byzfl_rule(name: str) -> type[ByzFLRule]:
    """Return the rule of ByzFL of a name such as ``byzfl-krum`` or ``byzfl-nnm-krum``.

    Raises:
        FedcrfError: There is none.
    """
    before: list[str] = []
    rest = name.removeprefix(PREFIX)
    while (first := _first_pre_aggregator(rest)) not in (None, *before):
        before.append(str(first))
        rest = rest.removeprefix(f"{first}-")
    if not name.startswith(PREFIX) or rest not in AGGREGATORS:
        raise unknown_name("rule of ByzFL", name, BYZFL_RULES)
    return _rule_type(tuple(before), rest)


def bucket_size(num_vectors: int, attackers: int) -> int:
    """Return the largest s with ⌈m/s⌉ > 2f, so that most buckets are honest; 1 at least.

    Without attackers it is m: one bucket, the mean. Karimireddy et al. (ICLR 2022) allow as much.
    """
    return max(1, (num_vectors - 1) // (2 * attackers)) if attackers else num_vectors


def check_byzfl() -> None:
    """Raise a `FedcrfError` where the package is not installed."""
    _byzfl_spec()


@cache
def byzfl_aggregators() -> ModuleType:
    """Import ByzFL's aggregators, and nothing else of it.

    The package imports its own federations, with torchvision, matplotlib and seaborn: that takes
    seconds, and fails where torchvision and torch are built for different devices.

    Raises:
        FedcrfError: It is not installed.
    """
    spec = _byzfl_spec()
    if "byzfl" in sys.modules:
        return import_module("byzfl.aggregators")
    sys.modules["byzfl"] = module_from_spec(spec)  # where its parts lie; it is not executed
    try:
        return import_module("byzfl.aggregators")
    finally:
        del sys.modules["byzfl"]  # for others the whole package is still to be imported


def _byzfl_spec() -> ModuleSpec:
    spec = find_spec("byzfl")
    if spec is None:
        raise FedcrfError("ByzFL is not installed: pip install 'fedcrf[byzfl]'")
    return spec


def _first_pre_aggregator(rest: str) -> str | None:
    return next((name for name in PRE_AGGREGATORS if rest.startswith(f"{name}-")), None)


@cache
def _rule_type(pre_aggregators: tuple[str, ...], aggregator: str) -> type[ByzFLRule]:
    """Return the dataclass of one chain, whose fields are what its parts can be told."""
    parts = [*(PRE_AGGREGATORS[name] for name in pre_aggregators), AGGREGATORS[aggregator]]
    defaults = {name: default for part in parts for name, default in part.settings.items()}
    if any(part.takes_f or "s" in part.settings for part in parts):
        defaults["attackers"] = None
    if any(part.draws for part in parts):
        defaults["seed"] = None
    kinds = [part.kind for part in parts]
    made: type[ByzFLRule] = make_dataclass(
        "ByzFL" + "".join(kinds),
        [
            (name, int | None if default is None else type(default), default)
            for name, default in defaults.items()
        ],
        bases=(ByzFLRule,),
        frozen=True,
        namespace={
            "__doc__": f"ByzFL's {', then '.join(kinds)}.",
            "__module__": __name__,
            "pre_aggregators": pre_aggregators,
            "aggregator": aggregator,
        },
    )
    return made


def _rule_of(name: str, settings: Mapping[str, Any]) -> ByzFLRule:
    return byzfl_rule(name)(**settings)


def _updates(global_state: State, reports: Sequence[ClientReport]) -> NDArray[np.float32]:
    """Return (m, d) float32 w_i − w_t over all floating-point tensors."""
    origin = floating_layers(global_state)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.stack(
            [
                np.concatenate(
                    [
                        layer.astype(np.float32) - before.astype(np.float32)
                        for layer, before in zip(
                            floating_layers(report.state, global_state), origin, strict=True
                        )
                    ]
                )
                for report in reports
            ]
        )


def _moved(
    global_state: State,
    reports: Sequence[ClientReport],
    aggregate: NDArray[np.float32],
    finite: NDArray[np.bool_],
) -> State:
    """Return w_t + the aggregate; integer tensors are the mean of the finite reports', rounded."""
    integers = {
        name: weighted_average([report.state[name] for report in reports], finite / finite.sum())
        for name, array in global_state.items()
        if not is_floating(array.dtype)
    }
    return stepped_state(global_state, aggregate, integers)


@contextmanager
def _drawing(seed: int, rounds: int) -> Iterator[None]:
    """Let torch, which ByzFL draws from, draw as this seed and round say, and then go on."""
    import torch

    generator: torch.Generator = torch.default_generator
    before = generator.get_state()
    generator.manual_seed(int(np.random.SeedSequence([seed, rounds]).generate_state(1)[0]))
    try:
        yield
    finally:
        generator.set_state(before)

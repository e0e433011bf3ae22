"""The rules of ByzFL: its robust aggregators, with its pre-aggregators before them, by name.

A rule is called ``byzfl-AGGREGATOR``, with any pre-aggregators between the two in the order in
which they work, as in ``byzfl-nnm-krum`` or ``byzfl-arc-nnm-geometric-median``. Its settings are
ByzFL's own, except that f is ``attackers``. The package (``fedcrf[byzfl]``) is imported only when
a rule aggregates.
"""

from __future__ import annotations

import logging
import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, make_dataclass, replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedcrf.checks import Count, Natural, Positive, Times
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.extras import check_installed
from fedcrf.rules.base import ROUNDS, AggregationResult, Deciding, Memory, Round, stepped_state
from fedcrf.rules.state import State, update_of
from fedcrf.statistics import is_floating, weighted_average

LOGGER = logging.getLogger("fedcrf")

PREFIX = "byzfl-"
"""Prefix of the names of ByzFL's rules."""

LAST = "m"
"""Name in the memory of the last aggregate, which ByzFL's centered clipping starts from."""


@dataclass(frozen=True)
class Part:
    """An aggregator or a pre-aggregator.

    Attributes:
        kind: Its class in ByzFL.
        settings: The class's parameters but for f, each with its type and its default; None where
            it is computed unless given.
        takes_f: Whether the class takes f.
        draws: Whether it draws random numbers.
        remembers: Whether it starts from its last result.
        of_arrays: Whether it gets NumPy arrays instead of tensors: torch's quantile takes at most
            16 million numbers.
    """

    kind: str
    settings: Mapping[str, tuple[Any, int | float | None]] = field(default_factory=dict)
    takes_f: bool = False
    draws: bool = False
    remembers: bool = False
    of_arrays: bool = False


AGGREGATORS: Mapping[str, Part] = {
    "average": Part("Average"),
    "median": Part("Median", of_arrays=True),
    "trmean": Part("TrMean", takes_f=True),
    "geometric-median": Part("GeometricMedian", {"nu": (Positive, 0.1), "T": (Times, 3)}),
    "krum": Part("Krum", takes_f=True),
    "multi-krum": Part("MultiKrum", takes_f=True),
    "centered-clipping": Part(
        "CenteredClipping", {"L": (Times, 1), "tau": (Positive, 100.0)}, remembers=True
    ),
    "mda": Part("MDA", takes_f=True),
    "monna": Part("MoNNA", {"idx": (Natural, 0)}, takes_f=True),
    "meamed": Part("Meamed", takes_f=True, of_arrays=True),
    "caf": Part("CAF", takes_f=True, draws=True),
    "smea": Part("SMEA", takes_f=True, draws=True),
}
"""ByzFL's aggregators by name; of MoNNA's ``idx`` see `ByzFLRule`."""

PRE_AGGREGATORS: Mapping[str, Part] = {
    "clipping": Part("Clipping", {"c": (Positive, 2.0)}),
    "arc": Part("ARC", takes_f=True),
    "nnm": Part("NNM", takes_f=True),
    "bucketing": Part("Bucketing", {"s": (Count | None, None)}, draws=True),
}
"""ByzFL's pre-aggregators by name."""

BYZFL_RULES: Sequence[str] = tuple(
    f"{PREFIX}{before}{aggregator}"
    for before in ("", *(f"{name}-" for name in PRE_AGGREGATORS))
    for aggregator in AGGREGATORS
)
"""Every aggregator, alone and after each pre-aggregator; longer chains have names too."""


@dataclass(frozen=True)
class ByzFLRule(Deciding):
    """ByzFL's pre-aggregators and aggregator on the updates w_i − w_t; see `byzfl_rule`.

    They get float32 updates, all floating-point tensors in one vector, and no counts of examples.
    Integer tensors are the plain mean, rounded. A rule has the settings that its parts need: their
    own, ``attackers`` and ``seed`` (see `Deciding`); each round draws anew. A report that is not
    finite is excluded, and counts as one of the f. If too few clients report for f, the largest f
    that ByzFL accepts is used, with one warning.

    MoNNA is made for peers that trust themselves. It assumes that the report at place ``idx`` (by
    default the first) is honest. A server has no such client: if attackers are drawn, the first one
    may be one of them, and then leads the model. After Bucketing ``idx`` is the place of a bucket,
    another one in each round.

    Where ByzFL gives no result: if the updates are equal (SMEA, CAF), it is that update; if CAF has
    nothing to filter, as with f = 0, it is the mean. Bucketing without ``s`` makes the largest
    buckets of which fewer than half can hold an attacker (`bucket_size`). Updates so long that
    their squares overflow may give a model that is not finite, or an error, as ByzFL does.
    """

    remembers: ClassVar[bool] = True
    parts: ClassVar[tuple[Part, ...]]

    def __reduce__(self) -> tuple[Any, ...]:
        # The class has no place in a module: it is found by the rule's name.
        return _rule_of, (self.name, asdict(self))

    def check_clients(self, num_clients: int) -> None:
        """Raise a `FedcrfError` if ByzFL refuses so many attackers of so many clients."""
        refusal = self._refusal(num_clients, self._attackers)
        if refusal is not None:
            raise FedcrfError(f"{refusal}: set fewer (rules.{self.name}.attackers)")

    def decide(self, given: Round) -> AggregationResult:
        """Return the model moved by ByzFL's aggregate.

        Raises:
            FedcrfError: Also where ByzFL refuses the updates, or is not installed.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            updates = np.stack(
                [update_of(state, given.model, dtype=np.float32) for state in given.states]
            )
        finite = np.asarray(np.isfinite(updates).all(axis=1))
        given.restrict_to(finite)
        if not finite.any():
            return given.nobody(given.memory)
        shapes: dict[str, tuple[int, ...]] = {}
        if any(part.draws for part in self.parts):
            shapes[ROUNDS] = ()
        if self.parts[-1].remembers:
            shapes[LAST] = (updates.shape[1],)
        memory = given.kept(self.name, shapes)
        attackers = self._allowed(int(finite.sum()), self._attackers - int((~finite).sum()))
        rule, rounds = self._among(finite), given.rounds
        aggregate = rule._aggregated(updates[finite], attackers, rounds, memory)
        renewed = {ROUNDS: np.array(rounds + 1), LAST: aggregate}
        kept = {name: renewed[name] for name in shapes}
        return given.without_weights(_moved(given, aggregate), kept)

    def _aggregated(
        self, updates: NDArray[np.float32], attackers: int, rounds: int, memory: Memory
    ) -> NDArray[np.float32]:
        """Return ByzFL's aggregate of finite updates, which it overwrites."""
        byzfl_part()  # names the extra that has torch too
        import torch

        *before, part = self.parts
        vectors = torch.from_numpy(updates)
        seeds = [getattr(self, "seed", None) or 0, rounds]
        try:
            with torch.random.fork_rng(devices=[]):  # ByzFL draws from torch's own generator
                drawn = int(np.random.SeedSequence(seeds).generate_state(1)[0])
                torch.default_generator.manual_seed(drawn)
                for each in before:
                    vectors = self._made(each, len(vectors), attackers)(vectors)
                aggregator = self._made(part, len(vectors), attackers)
                if LAST in memory:
                    aggregator.m = torch.tensor(memory[LAST])  # its constructor takes none
                if part.draws and bool((vectors == vectors[0]).all()):
                    aggregate = vectors[0]  # a covariance of zero has no direction
                else:
                    aggregate = aggregator(vectors.numpy() if part.of_arrays else vectors)
        except (ValueError, TypeError) as error:  # the latter where distances are beyond float32
            raise FedcrfError(f"{self.name}: ByzFL refuses the round: {error}") from None
        return np.asarray(vectors.mean(dim=0) if aggregate is None else aggregate)

    def _among(self, finite: NDArray[np.bool_]) -> ByzFLRule:
        """Return the rule whose ``idx`` is that of the same report among the finite ones.

        Reports that are not finite must not change which one MoNNA trusts. If the trusted report
        itself is not finite, it is the next one, or the last.
        """
        trusted: int | None = getattr(self, "idx", None)
        if trusted is None or trusted >= len(finite) or self._has_buckets:
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
        return getattr(byzfl_part(), part.kind)(**arguments)

    def _allowed(self, num_reports: int, attackers: int) -> int:
        """Return f for so many reports: ``attackers``, or the most that ByzFL takes of so few."""
        most = max(0, attackers)
        while most and self._refusal(num_reports, most) is not None:
            most -= 1
        if most < attackers:  # some clients did not report
            warn_once(f"{self._refusal(num_reports, attackers)}: going on with {most}")
        return most

    def _refusal(self, num_reports: int, attackers: int) -> str | None:
        """Return why ByzFL refuses so many attackers of so many reports; None where it does not."""
        vectors = num_reports
        if self._has_buckets:
            vectors = math.ceil(vectors / self._bucket_size(vectors, attackers))
        buckets = f" in {vectors} buckets" if vectors < num_reports else ""
        start = f"{self.name}: {attackers} attackers among {num_reports} reports"
        *before, part = self.parts
        if part.takes_f and 2 * attackers >= vectors:
            return f"{start}{buckets} are half or more, which ByzFL's {part.kind} refuses"
        if any(each.takes_f for each in before) and attackers >= num_reports:
            return f"{start} are all of them"
        return None

    @property
    def _has_buckets(self) -> bool:
        """Whether Bucketing, whose setting is ``s``, is among the parts."""
        return hasattr(self, "s")

    def _bucket_size(self, num_vectors: int, attackers: int) -> int:
        given: int | None = getattr(self, "s", None)
        return bucket_size(num_vectors, attackers) if given is None else given

    @property
    def _attackers(self) -> int:
        """The number f; 0 where nobody has given it."""
        return getattr(self, "attackers", None) or 0


@cache
def warn_once(message: str) -> None:
    """Log a warning the first time only, since it may hold in every round."""
    LOGGER.warning("%s", message)


def bucket_size(num_vectors: int, attackers: int) -> int:
    """Return the largest s with ⌈m/s⌉ > 2f, so that most buckets are honest; 1 at least.

    Without attackers it is m: one bucket, the mean. The bound is Karimireddy et al.'s (ICLR 2022).
    """
    return max(1, (num_vectors - 1) // (2 * attackers)) if attackers else num_vectors


@cache
def byzfl_rule(name: str) -> type[ByzFLRule]:
    """Return the rule of ByzFL of a name such as ``byzfl-krum`` or ``byzfl-nnm-krum``.

    It is a dataclass whose fields are its parts' settings.

    Raises:
        FedcrfError: There is none.
    """
    chain = f"((?:(?:{'|'.join(PRE_AGGREGATORS)})-)*)({'|'.join(AGGREGATORS)})"
    found = re.fullmatch(PREFIX + chain, name)
    before = found[1].split("-")[:-1] if found else []
    if found is None or len({*before}) < len(before):
        raise unknown_name("rule of ByzFL", name, BYZFL_RULES)
    parts = (*(PRE_AGGREGATORS[each] for each in before), AGGREGATORS[found[2]])
    settings = {name: setting for part in parts for name, setting in part.settings.items()}
    if any(part.takes_f or "s" in part.settings for part in parts):
        settings["attackers"] = (Natural | None, None)
    if any(part.draws for part in parts):
        settings["seed"] = (Natural | None, None)
    kinds = [part.kind for part in parts]
    made: type[ByzFLRule] = make_dataclass(
        "ByzFL" + "".join(kinds),
        [(name, kind, default) for name, (kind, default) in settings.items()],
        bases=(ByzFLRule,),
        frozen=True,
        namespace={
            "__doc__": f"ByzFL's {', then '.join(kinds)}.",
            "__module__": __name__,
            "name": name,
            "parts": parts,
        },
    )
    return made


def _rule_of(name: str, settings: Mapping[str, Any]) -> ByzFLRule:
    return byzfl_rule(name)(**settings)


def _moved(given: Round, aggregate: NDArray[np.float32]) -> State:
    """Return w_t + the aggregate; integer tensors are the mean of the finite reports', rounded."""
    plain = given.finite / given.finite.sum()
    integers = {
        name: weighted_average([state[name] for state in given.states], plain)
        for name, array in given.model.items()
        if not is_floating(array.dtype)
    }
    return stepped_state(given.model, aggregate, integers)


# --- the package ---


@cache
def byzfl_part(name: str = "aggregators") -> ModuleType:
    """Import a part of ByzFL, and nothing else of it.

    The package imports its own federations, with torchvision, matplotlib and seaborn: that takes
    seconds, and fails where torchvision and torch are built for different devices.

    Raises:
        FedcrfError: It is not installed.
    """
    check_installed("byzfl")
    if "byzfl" in sys.modules:
        return import_module(f"byzfl.{name}")
    spec = find_spec("byzfl")
    assert spec is not None
    sys.modules["byzfl"] = module_from_spec(spec)  # so that parts are found; it is not executed
    try:
        return import_module(f"byzfl.{name}")
    finally:
        del sys.modules["byzfl"]  # a later import is still of the whole package

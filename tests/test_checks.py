"""What is no setting is named wherever it is given, and never read as something else."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest

from fedcrf import ClientCRF, EvidenceCRF, FedcrfError, RobustCRF
from fedcrf.attacks import ATTACKS
from fedcrf.checks import (
    Count,
    Part,
    Positive,
    Settings,
    check_whole,
    checked_number,
    is_number,
    number,
)
from fedcrf.crf import Field
from fedcrf.errors import KeywordError
from fedcrf.experiments.settings import build, without_gone
from fedcrf.models import CNN, MLP, MODELS, SmallCNN
from fedcrf.objectives import OBJECTIVES, Proximal
from fedcrf.rules import CRF, RULES, SERVER_OPTIMIZERS, Adam, FedAvg, FedNova, Optimized, byzfl_rule
from fedcrf.simulation.local_training import LocalTraining
from fedcrf.simulation.rounds import EarlyStopping


@pytest.mark.parametrize(
    ("value", "possible"),
    [
        (3, True),
        (2.5, True),
        (Fraction(1, 3), True),
        (np.float16(2.5), True),
        (np.int8(3), True),
        (True, False),
        (np.True_, False),
        ("3", False),
        (None, False),
        (1j, False),
        (float("nan"), False),
        (np.float32("inf"), False),
        (10**400, False),
    ],
)
@pytest.mark.filterwarnings("error")
def test_what_is_a_number(value: object, possible: bool) -> None:
    assert is_number(value) is possible
    for check in (number().by, checked_number):
        with nullcontext() if possible else pytest.raises(FedcrfError, match=r"x .*: give a"):
            check("x", value)


@pytest.mark.parametrize("value", [Decimal(1), np.array(1.0)], ids=["decimal", "array"])
@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("tolerance", " from 0 to 100"),
        ("prior_log_odds", ""),
        ("persistence", r" in \[0, 1\)"),
        ("clip", " above 0"),
    ],
)
def test_numbers_are_real_ones(name: str, bounds: str, value: object) -> None:
    """Others would fail where the setting is multiplied."""
    with pytest.raises(FedcrfError, match=rf"{name} .*: give a number{bounds}$"):
        RobustCRF(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RobustCRF(clip=True), "clip True: give a number"),
        (lambda: ClientCRF(bandwidth=10**400), "bandwidth .*: give a number"),
        (lambda: MLP((2.5,)), "hidden 2.5: give a whole number, 1 or more"),  # type: ignore[arg-type]
        (lambda: SmallCNN(batch_norm="no"), "batch_norm 'no': give"),  # type: ignore[arg-type]
        (lambda: EarlyStopping(patience=0), "patience 0: give a whole number, 1 or more"),
        (lambda: CNN(channels=0), "channels 0: give a whole number, 1 or more"),
        (lambda: Proximal("0.1"), "mu '0.1': give a number"),  # type: ignore[arg-type]
        (lambda: LocalTraining(learning_rate="0.1"), "learning_rate '0.1': give"),  # type: ignore[arg-type]
        (lambda: LocalTraining(batch_size="3"), "batch_size '3': give a whole number"),  # type: ignore[arg-type]
        (lambda: ATTACKS["ipm"](epsilon="2"), "epsilon '2': give a number of 0 or more"),
        (lambda: LocalTraining(momentum=True), "momentum True: give a number"),
        (lambda: byzfl_rule("byzfl-mda")(attackers=1.5), "attackers 1.5: give a whole number"),
        (lambda: ATTACKS["ipm"](epsilon=np.float32("inf")), "epsilon inf: give a finite number"),
        (lambda: RobustCRF(counts=np.array(["a", "b"])), r"counts array.*: choose from "),
        (lambda: FedNova(buffers="running_mean"), "buffers is 'running_mean': give names in a t"),  # type: ignore[arg-type]
        (lambda: Optimized(FedAvg(), Adam(), "n"), "buffers is 'n': give names in a tuple, as in"),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_setting_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(FedcrfError, match=message):
        make()


def test_a_whole_number_is_no_truth_value() -> None:
    check_whole("x", np.int64(3), least=3)
    with pytest.raises(FedcrfError, match="x True: give a whole number, 0 or more"):
        check_whole("x", True, least=0)


def flower() -> Any:
    pytest.importorskip("flwr", reason="needs fedcrf[flower]")
    return importlib.import_module("fedcrf.integrations.flower")


def settings_of(base: type[Settings]) -> set[type[Settings]]:
    """Return the package's own classes of settings that a user makes."""
    return {
        each
        for kind in base.__subclasses__()
        for each in (kind, *settings_of(kind))
        if each.__module__.startswith("fedcrf.") and not each.__name__.startswith("_")
    }


@pytest.mark.parametrize("name", ["bandwith", "no_such_setting_at_all"])
def test_a_misspelt_keyword_is_an_error_of_both_kinds(name: str) -> None:
    kinds = settings_of(Settings)
    registered = {*RULES.values(), *ATTACKS.values(), *OBJECTIVES.values(), *MODELS.values()}
    registered |= {*SERVER_OPTIMIZERS.values(), ClientCRF, RobustCRF, EvidenceCRF}
    assert registered <= kinds
    for kind in kinds:
        with pytest.raises(FedcrfError, match=rf"unknown setting of {kind.__name__} '{name}'"):
            kind(**{name: 3})
        with pytest.raises(TypeError, match=name):
            kind(**{name: 3})


@pytest.mark.parametrize(
    ("make", "nearest"),
    [
        (lambda: ClientCRF(bandwith=3), "bandwidth"),  # type: ignore[call-arg]
        (lambda: replace(RobustCRF(), tolerence=1), "tolerance"),  # type: ignore[call-arg]
        (lambda: byzfl_rule("byzfl-mda")(atackers=1), "attackers"),
        (lambda: flower().CRFAvg(bandwith=3), "bandwidth"),
        (lambda: flower().CRFAvg(fraction_trian=0.5), "fraction_train"),
        (lambda: flower().RuleStrategy(CRF(), fraction_trian=0.5), "fraction_train"),
    ],
)
def test_the_nearest_keyword_is_named(make: Callable[[], object], nearest: str) -> None:
    with pytest.raises(KeywordError, match=rf"did you mean '{nearest}'\?"):
        make()


@dataclass(frozen=True)
class Typed(Settings):
    kind: Literal["one", "two"] = "one"
    steps: Count | None = None
    share: Annotated[float, number(0.25, 0.75)] = 0.5
    rate: Positive = 1.0
    kept: Part = 1.0


def test_what_is_repeated_in_a_round_has_an_end() -> None:
    named = ("iterations", "evaluations", "local_epochs", "local_steps")
    repeating = [
        (kind, name)
        for kind in settings_of(Settings)
        if is_dataclass(kind) and not inspect.isabstract(kind)
        for name in named
        if name in {each.name for each in fields(kind)}
    ]
    assert {LocalTraining, ClientCRF, CRF, RULES["rfa"], RULES["bra"]} <= {
        kind for kind, _ in repeating
    }
    repeating += [
        (byzfl_rule("byzfl-geometric-median"), "T"),
        (byzfl_rule("byzfl-centered-clipping"), "L"),
    ]
    for kind, name in repeating:
        needed = {"labels": (0.0, 1.0), "prior": None} if kind is Field else {}
        said = rf"{name} 9\d*: give a whole number, [0-3] to 1000000"
        with pytest.raises(FedcrfError, match=said):
            kind(**{name: 9 * 10**18}, **needed)


def test_a_setting_is_checked_by_its_type() -> None:
    assert Typed("two", None, 0.75) == replace(Typed(), kind="two", share=0.75)
    wrong: dict[str, tuple[Any, str]] = {
        "kind": ("three", "kind 'three': choose from one, two"),
        "steps": (0, "steps 0: give a whole number, 1 or more"),
        "share": (0.8, "share 0.8: give a number from 0.25 to 0.75"),
        "rate": (None, "rate None: give a number above 0"),
        "kept": (0, "kept 0: give a number above 0 and up to 1"),
    }
    for name, (value, message) in wrong.items():
        with pytest.raises(FedcrfError, match=message):
            Typed(**{name: value})


@dataclass(frozen=True)
class Fewer(Settings):
    gone: ClassVar[Mapping[str, str]] = {"pace": "give steps", "gait": "leave it out"}

    steps: Count = 1


@dataclass(frozen=True)
class Own(Fewer):
    pace: float = 1.0


def test_of_a_setting_that_is_gone_it_is_said_what_to_give_instead() -> None:
    with pytest.raises(KeywordError, match=r"^Fewer\.pace is no setting any more: give steps$"):
        Fewer(pace=2.0)  # type: ignore[call-arg]
    with pytest.raises(KeywordError, match=r"^Fewer\.pace is no setting any more \(nor gait\): "):
        Fewer(pace=2.0, gait=1.0)  # type: ignore[call-arg]
    assert Own(pace=2.0).pace == 2.0, "a class of somebody's own has it"
    assert build(Own, {"pace": 2.0}, "own") == Own(pace=2.0)
    assert without_gone({"pace": 2.0, "gait": 1.0}, Own) == {"pace": 2.0}
    assert len(fields(RobustCRF)) == 10
    assert not set(RobustCRF.gone) & {each.name for each in fields(RobustCRF)}


def test_types_that_only_a_type_checker_knows_leave_the_others_checked() -> None:
    @dataclass(frozen=True)
    class Own(Typed):
        other: Missing | None = None  # type: ignore[name-defined]  # noqa: F821

    assert Own(other=3).other == 3
    with pytest.raises(FedcrfError, match="rate 0: give a number above 0"):
        Own(rate=0)


def test_a_setting_without_a_default_is_asked_for() -> None:
    @dataclass(frozen=True)
    class Needing(Settings):
        rate: float
        pace: float = field(kw_only=True)

    assert Needing(1.0, pace=2.0) == Needing(rate=1.0, pace=2.0)
    for given, said in (((), "Needing has no rate: give"), ((1.0,), "Needing has no pace: give")):
        with pytest.raises(KeywordError, match=said):
            Needing(*given)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3"):
        Needing(1.0, 2.0, pace=3.0)  # type: ignore[misc]

    class Passing(Needing):
        def __init__(self, path: str, *more: float, **named: float) -> None:
            super().__init__(*more, **named)
            assert path + 1  # type: ignore[operator]  # a mistake of its own

    with pytest.raises(TypeError, match="can only concatenate"):
        Passing("a", 1.0, pace=2.0)
    with pytest.raises(KeywordError, match="Passing has no path: give it a value"):
        Passing()  # type: ignore[call-arg]

"""What is no setting is named wherever it is given, and never read as something else."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fedcrf import ClientCRF, FedcrfError, RobustCRF
from fedcrf.attacks import ATTACKS
from fedcrf.checks import check_number, check_whole, checked_number, is_number
from fedcrf.models import CNN, MLP
from fedcrf.objectives import Proximal
from fedcrf.rules import byzfl_rule
from fedcrf.simulation.local_training import LocalTraining


@pytest.mark.parametrize(
    ("value", "number"),
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
def test_what_is_a_number(value: object, number: bool) -> None:
    assert is_number(value) is number
    for check in (check_number, checked_number):
        with nullcontext() if number else pytest.raises(FedcrfError, match=r"x .*: give a"):
            check("x", value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RobustCRF(clip=True), "clip True: give a number"),
        (lambda: ClientCRF(bandwidth=10**400), "bandwidth .*: give a number"),
        (lambda: MLP((2.5,)), "hidden 2.5: give a whole number, 1 or more"),  # type: ignore[arg-type]
        (lambda: CNN(channels=0), "channels 0: give a whole number, 1 or more"),
        (lambda: Proximal("0.1"), "mu '0.1': give a number"),  # type: ignore[arg-type]
        (lambda: LocalTraining(learning_rate="0.1"), "learning_rate '0.1': give"),  # type: ignore[arg-type]
        (lambda: LocalTraining(momentum=True), "momentum True: give a number"),
        (lambda: byzfl_rule("byzfl-mda")(attackers=1.5), "attackers 1.5: give a whole number"),
        (lambda: ATTACKS["ipm"](epsilon=np.float32("inf")), "epsilon inf: give a number"),
    ],
)
def test_what_is_no_setting_is_named(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(FedcrfError, match=message):
        make()


def test_a_whole_number_is_no_truth_value() -> None:
    check_whole("x", np.int64(3), least=3)
    with pytest.raises(FedcrfError, match="x True: give a whole number, 0 or more"):
        check_whole("x", True, least=0)

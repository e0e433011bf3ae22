"""Methods: a client objective with a server rule, under the name the field knows it by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.extensions import installed, is_outside, short_name
from fedcrf.objectives import OBJECTIVES
from fedcrf.rules import SERVER_OPTIMIZERS, find_rule
from fedcrf.rules.byzfl import PREFIX


@dataclass(frozen=True)
class Method:
    """A client objective with a server rule, and a server optimizer where there is one.

    Attributes:
        name: How it is called on the command line and in results.
        rule: What `fedcrf.rules.find_rule` knows.
        objective: One of `fedcrf.objectives.OBJECTIVES`, or from outside.
        title: How tables and figures call it.
        server_optimizer: One of `fedcrf.rules.SERVER_OPTIMIZERS`; None where the aggregate is the
            next model.
    """

    name: str
    rule: str
    objective: str
    title: str
    server_optimizer: str | None = None

    @property
    def parts(self) -> str:
        """What it is made of."""
        parts = (self.rule, self.objective, self.server_optimizer)
        return " + ".join(part for part in parts if part)


METHODS: Mapping[str, Method] = {
    method.name: method
    for method in (
        Method("fedavg", rule="fedavg", objective="plain", title="FedAvg"),
        Method("fedprox", rule="fedavg", objective="proximal", title="FedProx"),
        Method("fedavgm", "fedavg", "plain", title="FedAvgM", server_optimizer="momentum"),
        Method("fedadagrad", "fedavg", "plain", title="FedAdagrad", server_optimizer="adagrad"),
        Method("fedadam", "fedavg", "plain", title="FedAdam", server_optimizer="adam"),
        Method("fedyogi", "fedavg", "plain", title="FedYogi", server_optimizer="yogi"),
        Method("fedexp", "fedavg", "plain", title="FedExP", server_optimizer="fedexp"),
        Method("uniform", rule="uniform", objective="plain", title="Uniform"),
        Method("fednova", rule="fednova", objective="plain", title="FedNova"),
        Method("coordinate-median", "coordinate-median", "plain", title="Coord. median"),
        Method("trimmed-mean", rule="trimmed-mean", objective="plain", title="Trimmed mean"),
        Method("geometric-median", "geometric-median", "plain", title="Geom. median"),
        Method("rfa", rule="rfa", objective="plain", title="RFA"),
        Method("krum", rule="krum", objective="plain", title="Krum"),
        Method("multi-krum", rule="multi-krum", objective="plain", title="Multi-Krum"),
        Method("gas", rule="gas", objective="plain", title="GAS"),
        Method("fltrust", rule="fltrust", objective="plain", title="FLTrust (has server data)"),
        Method("foundation-fl", "foundation-fl", "plain", title="FoundationFL"),
        Method("centered-clipping", "centered-clipping", "plain", title="Centered clipping"),
        Method("fedawa", rule="fedawa", objective="plain", title="FedAWA"),
        Method("feddisco", rule="feddisco", objective="plain", title="FedDisco"),
        Method("bra", rule="bra", objective="plain", title="BRA"),
        Method("fedscs", rule="fedscs", objective="plain", title="FedSCS"),
        Method("foolsgold", rule="foolsgold", objective="plain", title="FoolsGold"),
        Method("dnc", rule="dnc", objective="plain", title="DnC"),
        Method("signguard", rule="signguard", objective="plain", title="SignGuard"),
        Method("flame", rule="flame", objective="plain", title="FLAME"),
        Method("lasa", rule="lasa", objective="plain", title="LASA"),
        Method("crf-fedavg", rule="crf", objective="plain", title="CRF-FedAvg"),
        Method("crf-fedprox", rule="crf", objective="proximal", title="CRF-FedProx"),
        Method("crf-robust", "crf-robust", "plain", title="CRF-robust"),
        Method("crf-evidence", "crf-evidence", "plain", title="CRF-evidence"),
        Method("crf-robust-evidence", "crf-robust-evidence", "plain", "CRF-robust-evidence"),
        Method("crf-windowed", "crf-windowed", "plain", title="CRF-windowed"),
    )
}


def find_method(name: str, *, known: bool = True) -> Method:
    """Return the method of that name.

    It may be a rule of ByzFL such as ``byzfl-nnm-krum``, one from outside the package such as
    ``./mine.py:MyRule`` (`fedcrf.extensions`), or any ``RULE+OBJECTIVE`` such as
    ``uniform+proximal``; either may be followed by a server optimizer, as in ``crf-fedavg+adam``.
    Unless it must be ``known`` it may be that of a stored result whose code is gone.
    """
    if name in METHODS:
        return METHODS[name]
    first, plus, last = name.rpartition("+")
    if not plus:
        first, last = name, ""
    if last in SERVER_OPTIMIZERS:
        return with_server_optimizer(find_method(first, known=known), last)
    outside = first.startswith(PREFIX) or is_outside(first) or first in installed("rule")
    if not last and known and not outside:
        raise unknown_name("method", name, [*METHODS, *installed("rule")])
    if known and last not in ("", *OBJECTIVES, *installed("objective")) and not is_outside(last):
        raise unknown_name("objective or server optimizer", last, (*OBJECTIVES, *SERVER_OPTIMIZERS))
    if known:
        find_rule(first)
    title = "+".join(short_name(part) for part in (first, last) if part)
    return Method(name, rule=first, objective=last or "plain", title=title)


def averaging_method(name: str) -> str:
    """Return the method that averages as FedAvg does, with a method's objective and optimizer."""
    method = find_method(name)
    objective, optimizer = method.objective, method.server_optimizer
    for known in METHODS.values():
        if known.rule == "fedavg" and (known.objective, known.server_optimizer) == (
            objective,
            optimizer,
        ):
            return known.name
    return "+".join(part for part in ("fedavg", objective, optimizer) if part)


def is_method(name: str) -> bool:
    """Tell whether there is a method of that name."""
    try:
        find_method(name)
    except FedcrfError:
        return False
    return True


def with_server_optimizer(method: Method, optimizer: str) -> Method:
    """Return the method followed by a server optimizer, of which it may have none yet."""
    if method.server_optimizer:
        raise FedcrfError(
            f"method {method.name}+{optimizer}: {method.name} has a server optimizer already "
            f"({method.server_optimizer}); name one"
        )
    name, title = f"{method.name}+{optimizer}", folder_name(f"{method.name}+{optimizer}")
    return replace(method, name=name, title=title, server_optimizer=optimizer)


def method_title(name: str) -> str:
    """Return how tables and figures call a method, whether or not there still is one."""
    return find_method(name, known=False).title


def folder_name(name: str) -> str:
    """Return what folders and files call a method: without the places of what is from outside."""
    return "+".join(map(short_name, name.split("+")))

"""Simulations of a model, sites and a loss of one's own; torch is imported when one is run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Never

from fedcrf.errors import FedcrfError
from fedcrf.extras import mend

if TYPE_CHECKING:
    from torch import nn

    from fedcrf.attacks import Attack, Threat
    from fedcrf.objectives import Loss, Metric, OptimizerFactory
    from fedcrf.own.result import SimulationResult
    from fedcrf.rules import Rule


def simulate(
    model: Callable[[], nn.Module] | nn.Module,
    sites: Mapping[str, Any] | Sequence[Any] | str | Path,
    rule: str | Rule = "crf-robust",
    *,
    rounds: int = 50,
    local_epochs: int = 1,
    batch_size: int = 32,
    learning_rate: float = 0.01,
    seed: int = 0,
    loss: Loss | None = None,
    metrics: Mapping[str, Metric] | Sequence[Metric] | Metric | None = None,
    optimizer: OptimizerFactory | None = None,
    validation: Any = None,
    test: Any = None,
    attack: str | Attack | Threat | None = None,
    attackers: int | float | str | Sequence[str] | None = None,
    clients_per_round: int | None = None,
    judge: str | Sequence[str] | None = None,
    share: str | Sequence[str] | None = None,
    record_to: str | Path | None = None,
    progress: bool = True,
    **unknown: Never,
) -> SimulationResult:
    """Train a model of your own at sites of your own; the server decides how far to trust each.

    The result is the same to the bit for the same arguments on the same machine.

    Args:
        model: Makes the network, with fresh weights that the seed decides; or the network itself,
            which is copied.
        sites: By name what each site holds: a pair of inputs (n, ...) and targets (n, ...), arrays
            or tensors, or a data set of torch, read once. A sequence of them has numbers for
            names. Or the path of an ``.npz`` file or a folder that holds them, read by
            `fedcrf.data.site_files.read_site_files`. Floats of arrays become float32, whole numbers
            int64; items of a data set keep their dtype.
        rule: A method's name as of `fedcrf methods`, ``FILE.py:RULE``, or a rule.
        rounds: How many rounds.
        local_epochs: Passes of a site over its examples in a round.
        batch_size: Examples in a step.
        learning_rate: Of momentum SGD (0.9); with ``optimizer`` a record keeps it, and nothing
            uses it.
        seed: Decides initial weights, parts and orders of the examples, and who attacks.
        loss: A function of what the network returns and the targets that returns a scalar; by
            default the cross-entropy of logits and labels.
        metrics: Functions of the same two that return a number: by name, or one or several, called
            by their own names. By default the accuracy, unless a loss is given.
        optimizer: A function of the trained parameters that returns a `torch.optim.Optimizer`,
            called anew for each site and round; by default momentum SGD.
        validation: What the server holds to validate on, as a site's; a share of each site's
            examples where it is a number, by default 0.1.
        test: The same, to test on.
        attack: Name of an attack as of `fedcrf attacks`, ``FILE.py:ATTACK``, or an attack; or a
            `fedcrf.attacks.Threat`, an attack with its schedule. All sites are honest where left
            out.
        attackers: Who attacks, by name; or how many, as a number or a fraction (by default 0.3),
            and the seed draws them. What they hold takes no part in validation and test.
        clients_per_round: Sites that the seed draws for each round; all of them where left out.
        judge: Patterns of the names of the tensors that the rule sees, such as ``"*lora*"``, or
            ``"!*running*"`` for all but those; all that are shared where left out.
        share: Patterns of the names of the tensors that are sent and averaged. Each site keeps the
            others to itself from round to round. All but frozen parameters where left out.
        record_to: A folder for the record, which `fedcrf report`, ``show`` and ``explain`` read.
            The same call goes on from where it was stopped, or to more rounds.
        progress: Whether a bar is shown, where there is a terminal.
        unknown: Nothing; a keyword that is no argument is an error that names the nearest one.

    Returns:
        The model after the last round, its course, and who was trusted.

    Raises:
        FedcrfError: Something of it does not fit, or fails in a round; nothing is written before
            all of it was checked. It is a `TypeError` too where a keyword is no argument.
    """
    given = SimpleNamespace(**locals())
    try:
        from fedcrf.own.run import run
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] == "fedcrf":
            raise
        raise FedcrfError(f"fedcrf.simulate: {mend(missing)}") from None
    return run(given)

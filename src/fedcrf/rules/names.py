"""What records and memories call a rule."""

from __future__ import annotations

from fedcrf.rules.base import Rule
from fedcrf.rules.byzfl import ByzFLRule
from fedcrf.rules.optimized import Optimized

BEHIND = "+"
"""Stands before the name of a server optimizer."""


def rule_name(rule: Rule) -> str:
    """Return the name of a rule's class, with those of server optimizers behind it.

    Rules of ByzFL have no class of their own and go by their names.
    """
    if isinstance(rule, Optimized):
        return f"{rule_name(rule.rule)}{BEHIND}{type(rule.optimizer).__name__}"
    return rule.name if isinstance(rule, ByzFLRule) else type(rule).__name__

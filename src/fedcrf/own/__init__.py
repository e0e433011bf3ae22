"""Simulations of a model, sites and a loss of one's own."""

from fedcrf.own.simulate import simulate

__all__ = ["simulate"]

"""Experiments: what to run, running it, keeping the results, and showing them."""

"""The rule on NumPy arrays costs the import of NumPy and nothing heavier."""

import subprocess
import sys

HEAVY = ("torch", "numba", "datasets", "sklearn", "matplotlib", "scipy")

PROGRAM = f"""
import sys
import numpy as np
import fedcrf

rng = np.random.default_rng(0)
posterior = fedcrf.ClientCRF().infer(rng.standard_normal((4, 5)), [1, 2, 3, 4])
assert abs(posterior.weights.sum() - 1) < 1e-12
fedcrf.ClientCRF().infer([[1.0, 2.0], [3.0, 4.0]])
fedcrf.exact_marginals(posterior.unary, posterior.affinity, (0.0, 0.25, 1.0), 0.5)
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_the_rule_alone_imports_nothing_heavy():
    # A fresh interpreter: in this one other tests have imported torch already.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"

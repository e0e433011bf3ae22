"""What the one pass tells of updates, as a value that parts of a field share."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedcrf.statistics import EPSILON, as_layers, centred_geometry, update_statistics


@pytest.mark.parametrize("gather", [update_statistics, centred_geometry])
def test_cosines_are_divided_once_and_nobody_can_change_them(gather):
    updates = np.random.default_rng(0).standard_normal((4, 6))
    updates[2, 1] = np.nan
    found = gather(as_layers(updates))
    size = np.sqrt(np.diagonal(found.gram))
    assert_allclose(found.cosines, found.gram / (np.outer(size, size) + EPSILON), rtol=1e-15)
    assert np.isnan(found.cosines[2]).all()
    assert found.cosines is found.cosines
    with pytest.raises(ValueError, match="read-only"):
        found.cosines[0, 0] = 2.0

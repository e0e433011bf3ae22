"""What a posterior makes of the clients' updates, in whatever form they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from fedcrf import ClientCRF, EvidenceCRF, FedcrfError, RobustCRF
from fedcrf.statistics import as_numpy, compiled

SHAPES = ((2, 3), (4,))
"""Of the layers of a model of ten numbers."""

CRFS: list[Any] = [ClientCRF(), RobustCRF(sketch_size=64), EvidenceCRF()]


def layers_of(vector: np.ndarray) -> list[np.ndarray]:
    return [vector[:6].reshape(SHAPES[0]), vector[6:]]


def tensors_of(rows: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(rows).to(dtype)


FORMS: dict[str, tuple[Callable[[np.ndarray], Any], type, Any]] = {
    "array": (lambda rows: rows, np.ndarray, np.float64),
    "float16": (lambda rows: rows.astype(np.float16), np.ndarray, np.float16),
    "vectors": (lambda rows: list(rows.astype(np.float32)), np.ndarray, np.float32),
    "strided": (lambda rows: np.asfortranarray(rows), np.ndarray, np.float64),
    "numbers": (lambda rows: rows.tolist(), np.ndarray, np.float64),
    "layers": (lambda rows: [layers_of(row) for row in rows], list, np.float64),
    "tuples": (lambda rows: tuple(tuple(layers_of(row)) for row in rows), list, np.float64),
    "tensor": (tensors_of, torch.Tensor, torch.float32),
    "tensors": (lambda rows: [*tensors_of(rows)], torch.Tensor, torch.float32),
    "bfloat16": (lambda rows: tensors_of(rows, torch.bfloat16), torch.Tensor, torch.bfloat16),
    "layers of tensors": (
        lambda rows: [[tensors_of(each) for each in layers_of(row)] for row in rows],
        list,
        torch.float32,
    ),
    "parameters": (
        lambda rows: [
            [torch.nn.Parameter(tensors_of(each)) for each in layers_of(row)] for row in rows
        ],
        list,
        torch.float32,
    ),
}  # fmt: skip


def rows() -> np.ndarray:
    """Six clients' updates: the fourth divided by zero, the fifth is long, the last opposes."""
    found = np.random.default_rng(0).normal(1.0, 0.5, size=(6, 10))
    found[3, 2], found[3, 7] = np.nan, np.inf
    found[4] *= 40.0
    found[5] *= -1.0
    return found


def flat(value: Any) -> np.ndarray:
    parts = value if isinstance(value, list) else [value]
    return np.concatenate([as_numpy(part).astype(np.float64).reshape(-1) for part in parts])


@pytest.mark.parametrize("crf", CRFS, ids=lambda crf: type(crf).__name__)
def test_every_crf_has_the_same_posterior(crf: Any) -> None:
    given = rows()
    posterior = crf.infer(given, [10, 20, 30, 40, 50, 60])
    m, labels = posterior.marginals.shape
    assert posterior.unary.shape == (m, labels)
    for values in (posterior.weights, posterior.base_weights, posterior.trust, posterior.clip):
        assert values.shape == (m,)
        assert not values.flags.writeable
    for values in posterior.causes.values():
        assert values.shape == (m,)
    assert posterior.expected_label is posterior.trust
    assert ((posterior.trust >= 0) & (posterior.trust <= 1)).all()
    assert posterior.excluded.tolist() == [False] * 3 + [True] + [False] * 2
    assert posterior.coefficients[3] == 0.0
    assert (posterior.affinity is None) == (not isinstance(crf, ClientCRF))
    assert bool(posterior.memory) == isinstance(crf, RobustCRF)


@pytest.mark.parametrize("name", ["reliability", "cosine", "distance", "norm_anomaly"])
def test_a_cause_of_another_field_is_named(name: str) -> None:
    message = f"no {name}, which is of the paper's field: its causes are .*opposition"
    with pytest.raises(FedcrfError, match=message):
        getattr(RobustCRF().infer(rows()), name)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("crf", CRFS, ids=lambda crf: type(crf).__name__)
def test_updates_of_any_form_are_combined_in_it(crf: Any, form: str) -> None:
    make, kind, dtype = FORMS[form]
    updates, start = make(rows()), make(np.arange(10.0)[None])[0]
    posterior = crf.infer(updates, [10, 20, 30, 40, 50, 60])
    expected = np.nan_to_num(posterior.weights * getattr(posterior, "clip", 1.0))
    assert expected[3] == 0.0
    step = expected @ np.nan_to_num(rows(), nan=0.0, posinf=0.0)

    near = {"atol": 0.0, "rtol": 1e-6}
    if dtype in (np.float16, torch.bfloat16):  # the updates themselves are rounded
        near = {"atol": 0.15, "rtol": 0.01}
    combined, after = posterior.combine(updates), posterior.next_model(start, updates)
    assert_allclose(flat(combined), step, **near)
    assert_allclose(flat(after), np.arange(10.0) + step, **near)
    for found, given in ((combined, updates[0]), (after, start)):
        assert type(found) is kind
        parts, like = (found, given) if kind is list else ([found], [given])
        assert [part.dtype for part in parts] == [dtype] * len(parts)
        assert [np.shape(part) for part in parts] == [np.shape(part) for part in like]
        assert not any(getattr(part, "requires_grad", False) for part in parts)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("crf", CRFS, ids=lambda crf: type(crf).__name__)
def test_where_no_update_is_finite_the_model_stays(crf: Any, form: str) -> None:
    make, _, _ = FORMS[form]
    updates, start = make(np.full((3, 10), np.nan)), make(np.ones((1, 10)))[0]
    posterior = crf.infer(updates)
    assert not posterior.weights.any()
    assert not flat(posterior.combine(updates)).any()
    assert posterior.next_model(start, updates) is start


@pytest.mark.parametrize("crf", CRFS, ids=lambda crf: type(crf).__name__)
def test_a_model_keeps_its_precision(crf: Any) -> None:
    updates = np.random.default_rng(1).normal(size=(4, 5))
    posterior = crf.infer(updates)
    step = posterior.combine(updates)
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        after = posterior.next_model(np.ones(5, dtype), updates)
        assert after.dtype == dtype
        assert_allclose(after.astype(np.float64), 1.0 + step, atol=0.02)
    whole = posterior.next_model(np.ones(5, np.int64), updates)
    assert_allclose(whole, 1.0 + step, err_msg="a step is no whole number")
    before = np.ones(5)
    posterior.next_model(before, updates)
    assert (before == 1.0).all()


@pytest.mark.parametrize("fewest", [0, 1 << 18], ids=["compiled", "plain"])
@pytest.mark.parametrize("form", ["layers", "layers of tensors"])
@pytest.mark.parametrize("crf", CRFS, ids=lambda crf: type(crf).__name__)
def test_integers_beside_real_numbers_are_no_evidence(
    crf: Any, form: str, fewest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As batch norm's counter of batches, which is far longer than a step."""
    monkeypatch.setattr(compiled, "FEWEST_NUMBERS", fewest)
    reals, (start,) = FORMS[form][0](rows()), FORMS[form][0](np.arange(10.0)[None])
    whole = torch.as_tensor if form == "layers of tensors" else np.asarray
    counters = [[whole(5 * client), whole([0, 8])] for client in range(6)]
    updates = [[each[0], *ints, each[1]] for each, ints in zip(reals, counters, strict=True)]
    model = [start[0], whole(7), whole([2**60 + 1, 0]), start[1]]
    alone = crf.infer(reals, **({"model": start} if isinstance(crf, RobustCRF) else {}))
    posterior = crf.infer(updates, **({"model": model} if isinstance(crf, RobustCRF) else {}))
    for name in ("weights", "trust", "unary", "clip"):
        assert_array_equal(getattr(posterior, name), getattr(alone, name))
    after = posterior.next_model(model, updates)
    assert [part.dtype for part in after] == [part.dtype for part in model]
    assert after[1] == round(7 + posterior.weights @ (5.0 * np.arange(6)))
    assert after[2].tolist() == [2**60 + 1, 8]  # what does not move stays to the last digit
    for part, expected in zip(after[::3], alone.next_model(start, reals), strict=True):
        assert_array_equal(part, expected)
    updates[2][1] = whole(np.float64(10))
    with pytest.raises(FedcrfError, match="client 2 has integers in other layers than client 0"):
        crf.infer(updates)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda seen: seen.combine(np.ones((2, 10))), "2 updates for 6 clients: give those that"),
        (lambda seen: seen.combine(np.ones(10)), r"updates have shape \(10,\): give an \(m, d\)"),
        (
            lambda seen: seen.next_model(np.ones(9), rows()),
            r"model does not have the layers of an .* \(9 numbers in 1, an update 10 in 1\): give",
        ),
        (lambda seen: seen.next_model(layers_of(np.ones(10)), rows()), "model does not have the"),
        (
            lambda seen: seen.next_model(torch.nn.Linear(2, 3).state_dict(), rows()),
            r"^the model is a OrderedDict: give its values\(\) as a list$",
        ),
        (
            lambda seen: seen.next_model(torch.nn.Linear(2, 3), rows()),
            "^the model is a Linear: give a vector, or its layers$",
        ),
        (
            lambda seen: seen.next_model(np.ones(10), [{"w": row} for row in rows()]),
            r"^the update of client 0 is a dict: give its values\(\) as a list$",
        ),
        (lambda seen: seen.next_model(np.ones(10), rows()[:2]), "2 updates for 6 clients"),
    ],
)
@pytest.mark.parametrize("crf", CRFS, ids=lambda crf: type(crf).__name__)
def test_what_does_not_belong_together_is_refused(
    crf: Any, make: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(FedcrfError, match=message):
        make(crf.infer(rows()))


@pytest.mark.parametrize("crf", CRFS[:2], ids=lambda crf: type(crf).__name__)
def test_updates_that_cannot_be_squared_are_left_out_and_named(
    crf: Any, caplog: pytest.LogCaptureFixture
) -> None:
    huge = crf.infer(1e200 * rows())
    assert not huge.weights.any()
    assert huge.excluded.all()
    assert huge.overflowed.tolist() == [client != 3 for client in range(6)]
    assert "places 0, 1, 2, 4, 5 of the round are finite" in caplog.text
    assert not crf.infer(rows()).overflowed.any()


@pytest.mark.parametrize("crf", CRFS, ids=lambda crf: type(crf).__name__)
def test_updates_of_no_numbers_are_refused(crf: Any) -> None:
    with pytest.raises(FedcrfError, match=r"the updates hold no numbers \(d = 0\)"):
        crf.infer(np.zeros((5, 0)))


@pytest.mark.parametrize("crf", CRFS, ids=lambda crf: type(crf).__name__)
def test_it_is_shown_in_a_few_lines(crf: Any) -> None:
    shown = repr(crf.infer(rows()))
    assert shown.startswith("Posterior(weights=[")
    assert "excluded=[3]" in shown
    assert len(repr(crf.infer(np.random.default_rng(0).normal(1.0, 0.1, (300, 20))))) < 700

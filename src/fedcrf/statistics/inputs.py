"""What a person may hand in as updates, turned into one shape: rows of flat layers, and blocks."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedcrf.errors import FedcrfError

Layers = list[NDArray[Any]]
"""One client's update: flat real-valued arrays, one a layer; tensors where it lies on a GPU."""

Origin = Sequence[NDArray[Any]] | None
"""Flat layers of the global model, to be taken away from clients' models; None from updates."""

BLOCK_NUMBERS = 1 << 16
"""Numbers in a block over all clients: 512 KiB in float64, which stays in a second-level cache."""

MANY_NUMBERS = 1 << 17
"""Numbers in a block where little is done with each: going to the clients' rows costs most."""

GPU_NUMBERS = 1 << 24
"""Numbers in a block on a GPU: 128 MiB, enough to keep it busy."""

FEWEST_COLUMNS = 64
"""Columns in a block at least: fewer numbers of a client are not worth going to it for."""


def is_torch_tensor(value: object) -> bool:
    """Tell whether ``value`` is a torch tensor, without importing torch."""
    return type(value) is not np.ndarray and any(
        (base.__module__, base.__name__) == ("torch", "Tensor") for base in type(value).__mro__
    )


def is_on_gpu(value: object) -> bool:
    """Tell whether ``value`` is a torch tensor on a CUDA device."""
    return is_torch_tensor(value) and getattr(value, "is_cuda", False) is True


def library_of(value: object) -> Any:
    """Return torch for a tensor, else NumPy."""
    return sys.modules["torch"] if is_torch_tensor(value) else np


def num_numbers(layers: Sequence[Any]) -> int:
    """Return d, the numbers in all layers."""
    return sum(math.prod(layer.shape) for layer in layers)


def bring_columns(clients: Sequence[Sequence[Any]], start: int, block: Any) -> None:
    """Fill an (m, b) block with b columns of the clients' flat layers joined, from ``start`` on.

    Numbers are converted to the block's dtype. The layers are tensors if the block is one.
    """
    first, stop = 0, start + block.shape[1]
    for number, layer in enumerate(clients[0]):
        low, high = max(start, first), min(stop, first + len(layer))
        if low < high:
            for row, layers in zip(block, clients, strict=True):
                row[low - start : high - start] = layers[number][low - first : high - first]
        first += len(layer)


def zeros(shape: tuple[int, ...], like: Any) -> Any:
    """Return zeros of float64: an array, or a tensor on the device of a tensor."""
    if is_torch_tensor(like):
        torch = sys.modules["torch"]
        return torch.zeros(shape, dtype=torch.float64, device=like.device)
    return np.zeros(shape)


def blocks(
    clients: Sequence[Sequence[Any]], origin: Origin = None, numbers: int | None = None
) -> Iterator[tuple[slice, Any]]:
    """Yield the updates block by block: which columns, and a fresh (m, b) float64 array of them.

    Tensors come in larger blocks, as tensors.

    Args:
        clients: For each of m clients its flat layers.
        origin: Flat layers to take away from each client's.
        numbers: How many a block has, unless clients are very many; by default what fits in cache.
    """
    if not clients or not clients[0]:
        return
    like, dimension = clients[0][0], num_numbers(clients[0])
    numbers = GPU_NUMBERS if is_torch_tensor(like) else numbers or BLOCK_NUMBERS
    width = max(FEWEST_COLUMNS, numbers // len(clients))
    for start in range(0, dimension, width):
        stop = min(start + width, dimension)
        block = zeros((len(clients), stop - start), like)
        bring_columns(clients, start, block)
        if origin is not None:
            base = zeros((1, stop - start), like)
            bring_columns([origin], start, base)
            block -= base
        yield slice(start, stop), block


def as_numpy(value: Any) -> NDArray[Any]:
    """Return ``value`` as a NumPy array; a view where the memory allows it.

    Torch tensors are detached and brought to the host; ``bfloat16``, which NumPy lacks, has the
    dtype of that name of ``ml_dtypes``, as JAX's arrays do.
    """
    if is_torch_tensor(value):
        tensor = value.detach().cpu().resolve_conj().resolve_neg()
        if str(tensor.dtype) == "torch.bfloat16":
            import ml_dtypes

            bits = tensor.view(sys.modules["torch"].int16).numpy()
            return np.asarray(bits.view(ml_dtypes.bfloat16))
        return np.asarray(tensor.numpy())
    return np.asarray(value)


NO_ARRAY = (TypeError, ValueError, RuntimeError, OverflowError)
"""What libraries raise where a value cannot be an array of numbers."""


def is_floating(dtype: Any) -> bool:
    """Tell whether a dtype, of NumPy or torch, is of floating-point numbers; bfloat16 is."""
    if isinstance(dtype, np.dtype):
        return dtype.kind == "f" or dtype.name == "bfloat16"
    return bool(dtype.is_floating_point)


def is_real(dtype: np.dtype[Any]) -> bool:
    """Tell whether a dtype is of real numbers, or of truth values, which count as 0 and 1."""
    return dtype.kind in "biu" or is_floating(dtype)


def as_layers(updates: Any) -> list[Layers]:
    """Return the updates as one list of flat layers for each client, checked against each other.

    Args:
        updates: An (m, d) array or tensor; or a sequence of m vectors; or a sequence of m lists
            of layers, of any shapes but the same for every client. NumPy arrays, torch tensors or
            nested lists of numbers. Integers and booleans are read as float64, but where an update
            has layers of floating-point numbers, its layers of integers are left out.

    Returns:
        m lists of 1-D arrays of floats. The arrays are views of the input where possible, and
        tensors where the updates lie on a CUDA device.

    Raises:
        FedcrfError: No updates, different lengths or dtypes, or not numbers.
    """
    clients, _, counted = given_layers(updates)
    return [counted_of(layers, counted) for layers in clients]


def counted_of(layers: Layers, counted: Sequence[bool]) -> Layers:
    """Return the layers that count in statistics; all where they are not an update's layers."""
    return list(compress(layers, counted)) if len(layers) == len(counted) else layers


def model_layers(model: Any) -> tuple[Layers, Callable[[Layers], Any], list[bool]]:
    """Return what `given_layers` does, of a model."""
    (layers,), in_form, counted = given_layers([model], "the model")
    return layers, in_form, counted


def given_layers(
    updates: Any, called: str = "the update of client {}"
) -> tuple[list[Layers], Callable[[Layers], Any], list[bool]]:
    """Return all layers of updates, how to give layers that form again, and which of them count.

    The function's form is one array, or a list of layers; of NumPy, or of torch on the updates'
    device. Layers of integers do not count in statistics beside layers of floating-point numbers:
    batch norm's counter is longer than any step. ``called`` is what errors call an update, with its
    client in place of ``{}``.
    """
    if isinstance(updates, memoryview):
        updates = np.asarray(updates)
    if _is_array_like(updates):
        if not is_torch_tensor(updates):
            check_filled(updates, "updates are")
            updates = np.asarray(updates)
        if updates.ndim < 2:
            raise FedcrfError(
                f"updates have shape {tuple(updates.shape)}: give an (m, d) array, "
                "or a sequence of m vectors"
            )
        rows: Sequence[Any] = [[row] for row in _floats(updates, called.format(0))]
    elif isinstance(updates, Sequence) and not isinstance(updates, str | bytes):
        rows = [_layers_of(update, called, client) for client, update in enumerate(updates)]
    else:
        raise FedcrfError(
            f"updates are a {type(updates).__name__}: give an (m, d) array, "
            "or a sequence of m vectors"
        )
    if len(rows) == 0:
        raise FedcrfError("there are no updates: give one vector for each client")
    shaped = []
    for client, row in enumerate(rows):
        name = called.format(client)  # once, since models have many layers
        shaped.append([_floats(layer, name) for layer in row])
    _check_alike(shaped)
    counted, *others = map(_counted, updates)
    for client, other in enumerate(others, start=1):
        if other != counted:
            raise FedcrfError(
                f"client {client} has integers in other layers than client 0: give each layer in "
                "one dtype, the same for all clients"
            )
    layered = _is_layered(updates[0])
    given = updates[0] if layered else [updates[0]]

    def in_form(flat: Layers) -> Any:
        layers = [in_form_of(layer, each) for layer, each in zip(flat, given, strict=True)]
        return layers if layered else layers[0]

    return [[layer.reshape(-1) for layer in layers] for layers in shaped], in_form, counted


def finite_clients(clients: Sequence[Layers]) -> NDArray[np.bool_]:
    """Return (m,) bool: whether every number of each client's layers is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array([all(_is_finite(layer) for layer in layers) for layers in clients])


def _is_finite(layer: Any) -> bool:
    if is_torch_tensor(layer):
        return bool(layer.isfinite().all())
    # Sums are finite of finite numbers alone, and the BLAS takes a tenth of the time for squares.
    quick = layer.dot(layer) if layer.dtype.char in "fd" else layer.sum()
    return bool(np.isfinite(quick) or np.isfinite(layer).all())


def _layers_of(update: Any, called: str, client: int) -> list[Any]:
    """Split one client's update into layers: itself, or the arrays it is a list of."""
    if isinstance(update, list | tuple):
        if _is_layered(update):
            return list(update)
        if any(isinstance(part, np.ndarray) or is_torch_tensor(part) for part in update):
            return [np.stack([as_numpy(part) for part in update])]
        return [update]
    if _is_array_like(update) and np.ndim(update) > 0:
        return [update]
    kind = "single number" if _is_array_like(update) else type(update).__name__
    mend = "its values() as a list" if isinstance(update, Mapping) else "a vector, or its layers"
    raise FedcrfError(f"{called.format(client)} is a {kind}: give {mend}")


def _is_layered(update: Any) -> bool:
    """Tell whether an update is a list of layers; a list of single numbers is a vector."""
    return (
        isinstance(update, list | tuple)
        and any(isinstance(part, np.ndarray) or is_torch_tensor(part) for part in update)
        and any(np.ndim(part) > 0 for part in update)
    )


def _counted(update: Any) -> list[bool]:
    """Tell of each layer whether it counts in statistics."""
    if not _is_layered(update):
        return [True]
    dtypes = [part.dtype if is_torch_tensor(part) else np.asarray(part).dtype for part in update]
    floating = [is_floating(dtype) for dtype in dtypes]
    return floating if any(floating) else [True] * len(floating)


def in_form_of(layer: Any, given: Any) -> Any:
    """Return a flat layer in the shape of a given one, as a tensor where that is one."""
    shaped = layer.reshape(tuple(np.shape(given)))
    if is_torch_tensor(shaped) or not is_torch_tensor(given):
        return shaped
    torch = sys.modules["torch"]
    if shaped.dtype.name == "bfloat16":
        return torch.from_numpy(shaped.view(np.int16)).view(torch.bfloat16).to(given.device)
    return torch.from_numpy(shaped).to(given.device)


def _is_array_like(value: object) -> bool:
    """Tell whether a value is an array or a tensor, or offers itself as one, as data frames do."""
    return hasattr(value, "__array__") and not isinstance(value, type)


def check_filled(
    array: Any, what: str, mend: str = "fill what is missing, with .filled(0)"
) -> None:
    """Raise a `FedcrfError` for a masked array, whose mask would be lost."""
    if isinstance(array, np.ma.MaskedArray):
        raise FedcrfError(f"{what} masked: {mend}")


def client_numbers(values: Any, num_clients: int, what: str, mend: str) -> NDArray[np.float64]:
    """Return one number for each client, (m,) float64; NaN for None.

    Args:
        values: A sequence, an array or a tensor.
        num_clients: m.
        what: How an error begins: what the values are called, and a verb.
        mend: How an error ends: what to give instead.

    Raises:
        FedcrfError: The values are not numbers, or not m; or they can only be iterated over, as a
            dictionary's values.
    """
    try:
        given = as_numpy(values)
        words = given.dtype.kind == "O" and any(
            isinstance(each, str | bytes) for each in given.flat
        )
        if words or (given.dtype.kind != "O" and not is_real(given.dtype)):
            raise TypeError  # NumPy would make numbers of words, and drop imaginary parts
        found = given.astype(np.float64)
    except NO_ARRAY:
        a_list = isinstance(values, Sequence) or _is_array_like(values)
        if isinstance(values, Iterable) and not a_list:
            mend = "its values() as a list" if isinstance(values, Mapping) else "a list"
            raise FedcrfError(f"{what} a {type(values).__name__}: give {mend}") from None
        raise FedcrfError(f"{what} not numbers: {mend}") from None
    if found.shape != (num_clients,):
        raise FedcrfError(f"{what} of shape {found.shape} for {num_clients} clients: {mend}")
    return found


def _floats(layer: Any, called: str) -> NDArray[Any]:
    check_filled(layer, f"{called} is")
    dtype = getattr(layer, "dtype", None)
    if getattr(dtype, "itemsize", 0) == 1 and "float8" in str(dtype):  # a dtype's text takes long
        raise FedcrfError(f"{called} has dtype {layer.dtype}: cast it to float32")
    if is_on_gpu(layer):
        detached = layer.detach()
        return detached if is_floating(layer.dtype) else detached.double()  # type: ignore[no-any-return]
    try:
        array = as_numpy(layer)
    except NO_ARRAY as error:
        mend = "give an array or a tensor for each layer"
        raise FedcrfError(f"{called} is not a vector ({error}): {mend}") from None
    if array.dtype.kind in "biu":
        array = array.astype(np.float64)
    if not is_floating(array.dtype):
        raise FedcrfError(f"{called} has dtype {array.dtype}: give real numbers")
    return array


def _check_alike(clients: list[Layers]) -> None:
    """Refuse updates that differ from the first client's in length, shape or dtype."""
    first = clients[0]
    expected = num_numbers(first)
    for client, layers in enumerate(clients[1:], start=1):
        length = num_numbers(layers)
        if length != expected:
            raise FedcrfError(
                f"the update of client {client} has length {length}, client 0's has {expected}: "
                "all updates must have one length"
            )
        if [layer.shape for layer in layers] != [layer.shape for layer in first]:
            raise FedcrfError(
                f"the layers of client {client} differ in shape from client 0's: "
                "give the same layers in the same order"
            )
        for layer, reference in zip(layers, first, strict=True):
            if layer.device != reference.device:
                raise FedcrfError(
                    f"the update of client {client} lies on {layer.device}, client 0's on "
                    f"{reference.device}: all updates must lie on one device"
                )
            if layer.dtype != reference.dtype:
                raise FedcrfError(
                    f"the update of client {client} has dtype {layer.dtype}, client 0's has "
                    f"{reference.dtype}: cast all updates to one dtype, such as float32"
                )

"""From encoded image bytes to one uint8 array."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from fedcrf.errors import FedcrfError

_GREY_MODES = ("1", "L")
_READ_AT_ONCE = 512


@dataclass(frozen=True)
class RawTable:
    """Rows as they were read, with images still encoded.

    Attributes:
        origin: The file or split of the rows, for messages.
        mend: What to do if the rows are damaged, for messages.
        rows: A ``datasets.Dataset``.
    """

    origin: str
    mend: str
    rows: Any


def image_block(image: Image.Image, size: int | None) -> NDArray[np.uint8]:
    """Convert one image to an array, grey or colour.

    Black-and-white and grey images (8 or 16 bits, the latter by their upper byte) become one
    channel, all others the three of RGB.

    Args:
        image: Any Pillow image.
        size: Height and width to resize to, bilinearly; None keeps the image's own.

    Returns:
        ``(1, C, H, W)`` uint8 with C 1 or 3.
    """
    if image.mode.startswith("I;16"):
        # Pillow's own conversion clips everything above 255 to white.
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    image = image.convert("L" if image.mode in _GREY_MODES else "RGB")
    if size is not None:
        image = image.resize((size, size), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return (pixels[np.newaxis] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))[np.newaxis]


def decode_images(
    name: str, tables: Iterable[RawTable], column: str, size: int | None
) -> NDArray[np.uint8]:
    """Decode every image of ``tables``, in order.

    Args:
        name: The data set's name, for messages.
        tables: Rows with an image each, as encoded bytes or a file's path.
        column: The column that holds the images.
        size: Height and width to resize to; None if all have one size.

    Returns:
        ``(n, C, H, W)`` uint8; C is 3 as soon as one image has colours.

    Raises:
        FedcrfError: If an image does not decode, or two images differ in size.
    """
    return join_blocks(
        name,
        # One thread on purpose: for images this small Pillow spends its time under the lock, and a
        # pool of threads made CIFAR-10 slower.
        [block for table in tables for block in _decoded_blocks(name, table, column, size)],
    )


def join_blocks(name: str, blocks: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Concatenate images along the first axis, all as RGB if some are.

    Args:
        name: The data set's name, for messages.
        blocks: At least one array ``(n_i, C_i, H, W)``.

    Raises:
        FedcrfError: If two blocks differ in height or width.
    """
    return np.concatenate(match_channels(name, blocks))


def match_channels(name: str, blocks: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Give all blocks as many channels as the one with the most; a grey image has R = G = B.

    Args:
        name: The data set's name, for messages.
        blocks: Arrays ``(n_i, C_i, H, W)``.

    Raises:
        FedcrfError: If two blocks differ in height or width.
    """
    first = blocks[0].shape[2:]
    for block in blocks:
        if block.shape[2:] != first:
            raise FedcrfError(
                f"the images of data set '{name}' are not of one size: {_size_text(first)} and "
                f"{_size_text(block.shape[2:])} pixels (width x height); resize them all with "
                "--image-size N."
            )
    channels = max(block.shape[1] for block in blocks)
    return [
        block if block.shape[1] == channels else np.repeat(block, channels, axis=1)
        for block in blocks
    ]


def _size_text(height_width: tuple[int, ...]) -> str:
    return f"{height_width[1]}x{height_width[0]}"


def _decoded_blocks(
    name: str, table: RawTable, column: str, size: int | None
) -> Iterator[NDArray[np.uint8]]:
    encoded = _encoded(name, table, column)
    for start in range(0, len(encoded), _READ_AT_ONCE):
        cells = encoded[start : start + _READ_AT_ONCE][column]
        rows = enumerate(cells, start=start)
        yield join_blocks(name, [_decode(cell, size, row, table) for row, cell in rows])


def _encoded(name: str, table: RawTable, column: str) -> Any:
    """Return the image column alone, as encoded bytes."""
    from datasets import Image as ImageFeature

    try:
        return table.rows.select_columns([column]).cast_column(column, ImageFeature(decode=False))
    except (TypeError, ValueError, NotImplementedError) as error:
        raise FedcrfError(
            f"column '{column}' of data set '{name}' does not hold images; name another one with "
            "--image-column."
        ) from error


def _decode(
    cell: dict[str, Any] | None, size: int | None, row: int, table: RawTable
) -> NDArray[np.uint8]:
    try:
        with Image.open(_file_of(cell)) as image:
            return image_block(image, size)
    except Exception as error:  # Pillow's readers raise almost anything on damaged bytes.
        raise FedcrfError(
            f"image {row} of {table.origin} does not decode ({error}); {table.mend}."
        ) from error


def _file_of(cell: dict[str, Any] | None) -> io.BytesIO | str:
    """Return what Pillow can read of a cell: its bytes, or the path of its file."""
    if cell is None or (cell["bytes"] is None and cell["path"] is None):
        raise ValueError("the cell is empty")
    return io.BytesIO(cell["bytes"]) if cell["bytes"] is not None else cell["path"]

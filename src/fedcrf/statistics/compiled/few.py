"""The compiled pass written out for m clients, where there are few of them.

Sixteen columns at a time travel through the sorting network in vector registers, and products are
summed in tiles that stay in registers too, over blocks that stay in the first-level cache; each
step on a block calls for a part of a block to come. The
functions have the arguments of those in `fedcrf.statistics.compiled.many`.
"""

from __future__ import annotations

from fedcrf.statistics.median import sorting_network

BLOCK = 256
"""Columns in a block: 11 KiB of float32 for ten clients and their median."""

AHEAD = 4
"""Blocks by which numbers are called for before they are read: memory answers while the processor
works on others."""

CACHE_LINE = 64
"""Bytes that memory gives at once."""

TILE = 5
"""Rows and columns of a tile of the Gram matrix: 25 sums and 10 rows fit in 32 registers. For many
clients, that matrix is padded to a multiple."""

HEADER = """
import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def pointer(typing, address):
    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@intrinsic
def prefetch(typing, address):
    def generate(context, builder, signature, arguments):
        place = builder.inttoptr(arguments[0], cgutils.voidptr_t)
        number = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, number, number, number])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(function, [place, number(0), number(2), number(1)])  # to read, as data
        return context.get_dummy_value()

    return types.void(address), generate

"""


def write_source(m: int) -> str:
    """Write ``gather``, ``median`` and ``average`` for m clients."""
    return "\n".join([HEADER, *_gather(m), "", "", *_median(m), "", "", *_average(m), ""])


def write_trimmed_mean(m: int, trim: int) -> str:
    """Write ``trimmed_mean`` for m clients of which so many are cut on each side."""
    kept = range(trim, m - trim)
    lines = [
        HEADER,
        "@njit(cache=True, nogil=True)",
        "def trimmed_mean(addresses, trim, like, columns, result):",
        *_rows(m, "columns", "0"),
        "    for k in range(columns):",
        *_network(m, kept.start, kept.stop),
        f"        total = np.float64(x{trim})",
        *(f"        total += x{i}" for i in kept[1:]),
        f"        result[k] = total / {len(kept)}",
        "",
    ]
    return "\n".join(lines)


def _rows(m: int, columns: str, offset: str) -> list[str]:
    return [
        f"    r{i} = carray(pointer(addresses[{i}] + {offset}), {columns}, like.dtype)"
        for i in range(m)
    ]


def _network(m: int, first: int, last: int, indent: str = "        ") -> list[str]:
    """Sort column k of the rows r0, r1, … as far as ranks ``first`` to ``last`` need it."""
    lines = [f"{indent}x{i} = r{i}[k]" for i in range(m)]
    for i, j in sorting_network(m, first, last):
        lines += [
            f"{indent}t = x{i} if x{i} < x{j} else x{j}",
            f"{indent}x{j} = x{j} if x{i} < x{j} else x{i}",
            f"{indent}x{i} = t",
        ]
    return lines


def _median(m: int) -> list[str]:
    low, high = (m - 1) // 2, m // 2
    return [
        "@njit(cache=True, nogil=True)",
        "def median(addresses, like, columns, result):",
        *_rows(m, "columns", "0"),
        "    for k in range(columns):",
        *_network(m, low, high + 1),
        f"        result[k] = (np.float64(x{low}) + np.float64(x{high})) / 2",
    ]


def _average(m: int) -> list[str]:
    return [
        "@njit(cache=True, nogil=True)",
        "def average(addresses, weights, like, columns, result):",
        *_rows(m, "columns", "0"),
        *(f"    w{i} = weights[{i}]" for i in range(m)),
        "    for k in range(columns):",
        "        total = w0 * r0[k]",
        *(f"        total += w{i} * r{i}[k]" for i in range(1, m)),
        "        result[k] = total",
    ]


def _gather(m: int) -> list[str]:
    low, high = (m - 1) // 2, m // 2
    rows, tiles = range(m), _tiles(m)
    steps = 1 + len(tiles) + len(tiles) * (len(tiles) + 1) // 2
    shares = (rows[step * m // steps : (step + 1) * m // steps] for step in range(steps))
    lines = [
        '@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz", "arcp"})',
        "def gather(addresses, origin, like, columns, squares, gram, inner, squared_distance):",
        "    zero, half = like.dtype.type(0), like.dtype.type(0.5)",
        f"    block = np.empty(({m + 1}, {BLOCK}), like.dtype)",
        f"    median = block[{m}]",
        *(f"    b{i} = block[{i}]" for i in rows),
        "    total = 0.0",
        f"    for start in range(0, columns, {BLOCK}):",
        f"        n, offset = min({BLOCK}, columns - start), start * like.itemsize",
        f"        ahead = offset + {AHEAD * BLOCK} * like.itemsize",
        f"        stop = min(ahead + {BLOCK} * like.itemsize, columns * like.itemsize)",
        *("    " + line for line in _rows(m, "n", "offset")),
        "        if origin == 0:",
        *(f"            for k in range(n): b{i}[k] = r{i}[k]" for i in rows),
        "        else:",
        "            o = carray(pointer(origin + offset), n, like.dtype)",
        *(f"            for k in range(n): b{i}[k] = r{i}[k] - o[k]" for i in rows),
        *(f"        r{i} = b{i}" for i in rows),
        *_call_for(next(shares)),
        "        square = zero",
        "        for k in range(n):",
        *_network(m, low, high + 1, indent="            "),
        f"            c = {f'x{low}' if low == high else f'(x{low} + x{high}) * half'}",
        "            median[k] = c",
        "            square += c * c",
        "        total += square",
    ]
    for tile in tiles:
        lines += _call_for(next(shares))
        lines += [f"        q{i} = e{i} = zero" for i in tile]
        lines += [f"        s{i} = 0.0" for i in tile]
        lines += ["        for k in range(n):", "            c = median[k]"]
        for i in tile:
            lines += [
                f"            y = b{i}[k]",
                "            z = y - c",
                f"            q{i} += y * c",
                f"            e{i} += z * z",
                f"            s{i} += np.float64(y) * np.float64(y)",
            ]
        for i in tile:
            lines += [
                f"        inner[{i}] += q{i}",
                f"        squared_distance[{i}] += e{i}",
                f"        squares[{i}] += s{i}",
            ]
    for number, down in enumerate(tiles):
        for across in tiles[number:]:
            lines += _call_for(next(shares))
            pairs = [(i, j) for i in down for j in across if i < j]
            lines += [f"        g{i}_{j} = zero" for i, j in pairs]
            lines += ["        for k in range(n):"]
            lines += [f"            y{i} = b{i}[k]" for i in sorted({*down, *across})]
            lines += [f"            g{i}_{j} += y{i} * y{j}" for i, j in pairs]
            lines += [f"        gram[{i}, {j}] += g{i}_{j}" for i, j in pairs]
    return [*lines, "    return total"]


def _call_for(rows: range) -> list[str]:
    """Call for the numbers of some rows that are read a few blocks later."""
    if not rows:
        return []
    return [
        f"        for at in range(ahead, stop, {CACHE_LINE}):",
        *(f"            prefetch(addresses[{i}] + at)" for i in rows),
    ]


def _tiles(m: int) -> list[range]:
    return [range(start, min(m, start + TILE)) for start in range(0, m, TILE)]

"""The one pass as compiled loops, for any number of clients.

Only `fedcrf.statistics.compiled` runs this file, from a copy in the cache folder. ``layers`` are
the clients' layers, joined to one row a client, by the addresses of their first numbers: one
compilation then serves every number of clients and of layers, and no array's reference count is
touched in a loop. They are four arrays:

    addresses: (layers, m) int64; where each client's numbers lie.
    origins: (layers,) int64; where those lie that are taken away from each client's, 0 for nothing.
    ends: (layers,) int64; one past each layer's last column.
    like: Empty, of the numbers' dtype, float32 or float64.

A block is a few hundred columns of all rows, which stay in cache: row i holds what client i sent,
less the origin, of one layer or several. Loops stand in place of slices and array expressions,
which take long to compile.
"""

import numpy as np
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 512
"""Columns in a block, at most."""

STRIP = 128
"""Columns that go through a sorting network together: ten clients' fit in the first-level cache."""

LANES = 32
"""Columns in which a rank is sought together, where clients are many."""

CACHED = 1 << 20
"""Numbers in a block, at most, where clients are many: it stays in the third-level cache."""

PADDING = 16
"""Numbers between the rows of a block, so that they do not share cache lines."""

LONG_BLOCK = 2048
"""Columns in a block of an average, of which little else is in cache."""

TILE_ROWS, TILE_COLUMNS = 4, 2
"""A tile of the Gram matrix: its sums and the rows' numbers fit in 16 vector registers."""

BLOCKED_ROWS = 64
"""Rows whose products with all others are summed while they lie in the second-level cache."""

compiled = njit(cache=True, nogil=True, error_model="numpy")
"""For what Python calls."""

within = {
    "nogil": True,
    "error_model": "numpy",
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
"""For what these functions alone call: a quarter less to compile."""

loops = njit(**within)
summing = njit(**within, fastmath={"reassoc", "contract", "nsz", "arcp"})
"""For sums: the compiler may change their order, and no more."""


@intrinsic
def _pointer(typing, address):
    """Return a pointer to what lies at an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


@loops
def _at(address, like):
    """Return the numbers that lie at an address, of which nothing else is known."""
    return carray(_pointer(address), 1, like.dtype)


@loops
def _row(block, i):
    """Return row i of a block."""
    return _at(block.ctypes.data + i * block.strides[0], block)


@loops
def _piece(ends, layer, start, stop):
    """Return where columns lie: their layer, the place in it, and how many up to stop it has.

    The layer is sought from one on that is not beyond it.
    """
    while ends[layer] <= start:
        layer += 1
    first = ends[layer - 1] if layer else 0
    return layer, start - first, min(ends[layer], stop) - start


@summing
def _read(layers, start, stop, block, squares):
    """Bring columns into the block; add to each row's sum of squares.

    Zeros follow up to a multiple of `STRIP`. Returns whether all sums are finite.
    """
    addresses, origins, ends, like = layers
    columns, layer, done, finite = stop - start, 0, 0, True
    while done < columns:
        layer, place, n = _piece(ends, layer, start + done, stop)
        offset, into = place * like.itemsize, block.ctypes.data + done * block.itemsize
        base = _at(origins[layer] + offset, like)
        for i in range(len(squares)):
            source, total = _at(addresses[layer, i] + offset, like), 0.0
            row = _at(into + i * block.strides[0], block)
            if origins[layer] == 0:
                for k in range(n):
                    value = block.dtype.type(source[k])
                    row[k] = value
                    total += np.float64(value) * np.float64(value)
            else:
                for k in range(n):
                    value = block.dtype.type(source[k]) - block.dtype.type(base[k])
                    row[k] = value
                    total += np.float64(value) * np.float64(value)
            squares[i] += total
        done += n
    for i in range(len(squares)):
        for k in range(columns, (columns + STRIP - 1) // STRIP * STRIP):
            block[i, k] = 0
        finite &= np.isfinite(squares[i])
    return finite


@loops
def _sort(block, steps, first):
    """Send a strip of columns through a sorting network.

    A step (a, b, lesser, greater) compares rows a and b of the block and writes to two others; −1
    is a result that nobody wants. It never writes where it reads: where that may be the same, the
    compiler makes stores under a mask, which take six times as long.
    """
    offset = first * block.itemsize
    for step in range(len(steps)):
        a = _at(_row(block, steps[step, 0]).ctypes.data + offset, block)
        b = _at(_row(block, steps[step, 1]).ctypes.data + offset, block)
        lesser = _at(_row(block, steps[step, 2]).ctypes.data + offset, block)
        greater = _at(_row(block, steps[step, 3]).ctypes.data + offset, block)
        if steps[step, 2] < 0:
            for k in range(STRIP):
                greater[k] = a[k] if a[k] > b[k] else b[k]
        elif steps[step, 3] < 0:
            for k in range(STRIP):
                lesser[k] = a[k] if a[k] < b[k] else b[k]
        else:
            for k in range(STRIP):
                x, y = a[k], b[k]
                lesser[k] = x if x < y else y
                greater[k] = x if x > y else y


@summing
def _compare(block, rows, columns, median, inner, squared_distance):
    """Add products with the median and squared distances to it; return the median's square."""
    middle, square = _row(median, 0), block.dtype.type(0)
    for i in range(rows):
        row, product, distance = _row(block, i), block.dtype.type(0), block.dtype.type(0)
        for k in range(columns):
            product += row[k] * middle[k]
            distance += (row[k] - middle[k]) * (row[k] - middle[k])
        inner[i] += product
        squared_distance[i] += distance
    for k in range(columns):
        square += middle[k] * middle[k]
    return np.float64(square)


@summing
def _add_tile(block, i, j, columns, gram):
    """Add the products of rows i to i + 3 with rows j and j + 1."""
    a, b, c, d = _row(block, i), _row(block, i + 1), _row(block, i + 2), _row(block, i + 3)
    e, f = _row(block, j), _row(block, j + 1)
    ae = be = ce = de = af = bf = cf = df = block.dtype.type(0)
    for k in range(columns):
        x, y = e[k], f[k]
        ae += a[k] * x
        be += b[k] * x
        ce += c[k] * x
        de += d[k] * x
        af += a[k] * y
        bf += b[k] * y
        cf += c[k] * y
        df += d[k] * y
    gram[i, j] += ae
    gram[i + 1, j] += be
    gram[i + 2, j] += ce
    gram[i + 3, j] += de
    gram[i, j + 1] += af
    gram[i + 1, j + 1] += bf
    gram[i + 2, j + 1] += cf
    gram[i + 3, j + 1] += df


@loops
def _add_products(block, rows, columns, gram):
    """Add the rows' products on and above the diagonal; what lies elsewhere is not defined.

    Four rows stay in the first-level cache while those they are multiplied with come from the
    second. The block and the matrix have `TILE_ROWS` rows more, which tiles reach into.
    """
    for panel in range(0, rows, BLOCKED_ROWS):
        end = min(panel + BLOCKED_ROWS, rows)
        for i in range(0, end, TILE_ROWS):
            for j in range(max(i, panel), end, TILE_COLUMNS):
                _add_tile(block, i, j, columns, gram)


@compiled
def gather(layers, start, stop, squares, gram, inner, squared_distance, steps, kept, slots):
    """Add the sums of `fedcrf.statistics.sums.Sums` over columns; return the median's square.

    Only squares count, and are not finite, where a number is not.

    Args:
        layers: The clients'.
        start: The first column.
        stop: One past the last.
        squares: (m,) float64; added to, as the next three.
        gram: (m + 4, m + 4).
        inner: (m,).
        squared_distance: (m,).
        steps: (s, 4) of a sorting network, as `_sort` takes them.
        kept: The rows of the block that hold the median after them, or the two whose mean it is.
        slots: Rows of the block: the clients' and those that the network writes to.
    """
    m, like, finite, total = len(squares), layers[3], True, 0.0
    width = _width(slots)
    block = np.empty((slots + TILE_ROWS, width + PADDING), like.dtype)
    median, half = np.empty((1, width), like.dtype), like.dtype.type(0.5)
    for first in range(start, stop, width):
        n = min(width, stop - first)
        finite &= _read(layers, first, first + n, block, squares)
        if not finite:
            continue
        for strip in range(0, n, STRIP):
            _sort(block, steps, strip)
        low, high, middle = _row(block, kept[0]), _row(block, kept[-1]), _row(median, 0)
        if m % 2:
            for k in range(n):
                middle[k] = low[k]
        else:
            for k in range(n):
                middle[k] = (low[k] + high[k]) * half
        total += _compare(block, m, n, median, inner, squared_distance)
        _add_products(block, m, n, gram)
    return total


@compiled
def gather_crowd(layers, start, stop, squares, inner, squared_distance, whole, medians):
    """Do what `gather` does without the Gram matrix, for very many clients.

    Beside products of all pairs a sorting network takes little time. Without them a search for the
    rank saves a third of the time. ``whole`` is an empty array of integers of the rows' size; the
    median's numbers are put into ``medians`` unless that is empty.
    """
    m, like, finite, total = len(squares), layers[3], True, 0.0
    width = _width(m)
    block = np.empty((m, width + PADDING), like.dtype)
    median, following = np.empty((1, width), like.dtype), np.empty((1, width), like.dtype)
    half = like.dtype.type(0.5)
    for first in range(start, stop, width):
        n = min(width, stop - first)
        finite &= _read(layers, first, first + n, block, squares)
        if not finite:
            continue
        _rank(block, m, n, (m - 1) // 2, whole, median, following)
        if m % 2 == 0:
            for k in range(n):
                median[0, k] = (median[0, k] + following[0, k]) * half
        if len(medians):
            for k in range(n):
                medians[first - start + k] = median[0, k]
        total += _compare(block, m, n, median, inner, squared_distance)
    return total


@loops
def _width(rows):
    """Return how many columns of so many rows a block has, a multiple of `STRIP`."""
    return max(STRIP, min(BLOCK, CACHED // rows // STRIP * STRIP))


@loops
def _rank(block, rows, columns, rank, whole, found, following):
    """Find each column's value of a rank, counted from 0, and the one that follows it.

    A bracket that holds the value shrinks for `LANES` columns at once, to about where the rank must
    lie by the counts at its ends, and every third time in halves of the numbers that there are
    between them: so it closes whatever the values. Each time is a pass over rows in cache. What
    follows the last rank is infinite. All values are finite.
    """
    strip = np.empty(((rows + 3) // 4 * 4, LANES), block.dtype)
    lower, upper = np.empty(LANES, block.dtype), np.empty(LANES, block.dtype)
    pivot, count = np.empty(LANES, block.dtype), np.empty(LANES, block.dtype)
    fewest, most = np.empty(LANES, block.dtype), np.empty(LANES, block.dtype)
    lower_bits, upper_bits, pivot_bits = (
        lower.view(whole.dtype),
        upper.view(whole.dtype),
        pivot.view(whole.dtype),
    )
    least, enough = np.int64(-1) << (8 * block.itemsize - 1), rank + 1
    for first in range(0, columns, LANES):
        _fetch(block, rows, first, strip, lower, upper)
        for k in range(LANES):
            fewest[k], most[k] = 0, rows
        step, is_open = 0, True
        while is_open:
            for k in range(LANES):
                share = (np.float64(enough - fewest[k]) - 0.5) / max(1, most[k] - fewest[k])
                pivot[k] = lower[k] + (upper[k] - lower[k]) * block.dtype.type(share)
                if step % 3 == 2 or not lower[k] <= pivot[k] < upper[k]:
                    low, high = _order(lower_bits[k], least), _order(upper_bits[k], least)
                    middle = (low >> 1) + (high >> 1) + (low & high & 1)
                    pivot_bits[k] = _order(middle, least)
                count[k] = 0
            _count(strip, pivot, count)
            is_open = False
            for k in range(LANES):
                if count[k] == enough:
                    lower[k] = upper[k] = pivot[k]
                elif count[k] > enough:
                    upper[k], most[k] = pivot[k], count[k]
                elif lower[k] < upper[k]:
                    lower_bits[k] = _order(_order(pivot_bits[k], least) + 1, least)
                    fewest[k] = count[k]
                is_open |= lower[k] < upper[k]
            step += 1
        _split(strip, upper, count, lower, pivot)
        for k in range(LANES):
            found[0, first + k] = lower[k]
            following[0, first + k] = lower[k] if count[k] > enough else pivot[k]


@loops
def _order(bits, least):
    """Return integers in the order of the floats whose bits they are, and the bits of those.

    ``least`` is the least integer of their size.
    """
    return bits if bits >= 0 else least - bits


@loops
def _fetch(block, rows, first, strip, lower, upper):
    """Copy columns to a strip, where their rows follow each other; find their bounds.

    A strip's rows are a multiple of four, and infinite beyond the block's: four at a time take
    fewer stores, and none under a mask.
    """
    least, greatest = _at(lower.ctypes.data, lower), _at(upper.ctypes.data, upper)
    for k in range(LANES):
        least[k], greatest[k] = np.inf, -np.inf
    for i in range(rows):
        source, row = (
            _at(_row(block, i).ctypes.data + first * block.itemsize, block),
            _row(strip, i),
        )
        for k in range(LANES):
            row[k] = source[k]
    for i in range(rows, len(strip)):
        row = _row(strip, i)
        for k in range(LANES):
            row[k] = np.inf
    last = rows - 1
    for i in range(0, rows, 4):
        a, b = _row(strip, i), _row(strip, min(i + 1, last))
        c, d = _row(strip, min(i + 2, last)), _row(strip, min(i + 3, last))
        for k in range(LANES):
            low = _lesser(_lesser(a[k], b[k]), _lesser(c[k], d[k]))
            high = _greater(_greater(a[k], b[k]), _greater(c[k], d[k]))
            least[k] = _lesser(low, least[k])
            greatest[k] = _greater(high, greatest[k])


@loops
def _lesser(x, y):
    return x if x < y else y


@loops
def _greater(x, y):
    return x if x > y else y


@loops
def _count(strip, pivot, count):
    """Count each column's values that are no greater than its pivot."""
    bound, total = _at(pivot.ctypes.data, pivot), _at(count.ctypes.data, count)
    one, none = strip.dtype.type(1), strip.dtype.type(0)
    for i in range(0, len(strip), 4):
        a, b, c, d = _row(strip, i), _row(strip, i + 1), _row(strip, i + 2), _row(strip, i + 3)
        for k in range(LANES):
            w, x = one if a[k] <= bound[k] else none, one if b[k] <= bound[k] else none
            y, z = one if c[k] <= bound[k] else none, one if d[k] <= bound[k] else none
            total[k] += (w + x) + (y + z)


@loops
def _split(strip, pivot, count, below, above):
    """Count each column's values up to its pivot; find the greatest of them, and the next."""
    least, greatest = strip.dtype.type(-np.inf), strip.dtype.type(np.inf)
    bound = _at(pivot.ctypes.data, pivot)
    low, high = _at(below.ctypes.data, below), _at(above.ctypes.data, above)
    for k in range(LANES):
        count[k], low[k], high[k] = 0, least, greatest
    _count(strip, pivot, count)
    for i in range(0, len(strip), 4):
        a, b, c, d = _row(strip, i), _row(strip, i + 1), _row(strip, i + 2), _row(strip, i + 3)
        for k in range(LANES):
            p = bound[k]
            w, x = a[k] if a[k] <= p else least, b[k] if b[k] <= p else least
            y, z = c[k] if c[k] <= p else least, d[k] if d[k] <= p else least
            low[k] = _greater(_greater(_greater(w, x), _greater(y, z)), low[k])
        for k in range(LANES):
            p = bound[k]
            w, x = greatest if a[k] <= p else a[k], greatest if b[k] <= p else b[k]
            y, z = greatest if c[k] <= p else c[k], greatest if d[k] <= p else d[k]
            high[k] = _lesser(_lesser(_lesser(w, x), _lesser(y, z)), high[k])


@compiled
def gather_centred(layers, start, stop, squares, gram):
    """Add the products of the rows about their mean, in float64; squares are as in `gather`.

    The first row is taken away before the mean: exact for equal rows, as their mean alone is not.
    """
    m, finite = len(squares), True
    width = _width(m)
    block, mean = np.empty((m + TILE_ROWS, width + PADDING)), np.empty(width)
    for first in range(start, stop, width):
        n = min(width, stop - first)
        finite &= _read(layers, first, first + n, block, squares)
        if not finite:
            continue
        for k in range(n):
            mean[k] = 0.0
        for i in range(m - 1, -1, -1):
            for k in range(n):
                block[i, k] -= block[0, k]
                mean[k] += block[i, k]
        for k in range(n):
            mean[k] /= m
        for i in range(m):
            for k in range(n):
                block[i, k] -= mean[k]
        _add_products(block, m, n, gram)


@compiled
def sketch(layers, start, stop, place, shifts, signs, sums):
    """Add the count sketches of the rows' columns, each row's its own.

    ``place`` is where the first column lies in what is sketched, and ``signs`` begin with its own.
    Four rows in turns keep as many streams from memory busy. What shifts and signs are is told in
    `fedcrf.statistics.sketches`.
    """
    addresses, origins, ends, like = layers
    m, size = sums.shape
    for i in range(0, m, 4):
        layer, done = 0, 0
        while start + done < stop:
            column, row = (place + done) % size, (place + done) // size
            bucket = (column + shifts[row]) % size
            layer, first, n = _piece(ends, layer, start + done, stop)
            n = min(n, size - column, size - bucket)  # their buckets follow each other
            sign, offset = _at(signs.ctypes.data + done, signs), first * like.itemsize
            base = _at(origins[layer] + offset, like)
            for j in range(i, min(i + 4, m)):
                source = _at(addresses[layer, j] + offset, like)
                buckets = _at(_row(sums, j).ctypes.data + bucket * 8, sums)
                if origins[layer] == 0:
                    for k in range(n):
                        buckets[k] += sign[k] * np.float64(source[k])
                else:
                    for k in range(n):
                        buckets[k] += sign[k] * (np.float64(source[k]) - np.float64(base[k]))
            done += n


@compiled
def average(layers, start, stop, weights, result):
    """Fill the result with the weighted sum of the rows, added up in their order.

    Five rows at a time keep as many streams from memory busy.
    """
    addresses, _, ends, like = layers
    m, total = len(weights), np.empty(LONG_BLOCK)
    layer, done = 0, 0
    while start + done < stop:
        layer, place, n = _piece(ends, layer, start + done, stop)
        n, offset, where = min(LONG_BLOCK, n), place * like.itemsize, addresses[layer]
        for k in range(n):
            total[k] = 0.0
        for i in range(0, m - 4, 5):
            a, b = _at(where[i] + offset, like), _at(where[i + 1] + offset, like)
            c, d = _at(where[i + 2] + offset, like), _at(where[i + 3] + offset, like)
            e, v = _at(where[i + 4] + offset, like), weights[i]
            w, x, y, z = weights[i + 1], weights[i + 2], weights[i + 3], weights[i + 4]
            for k in range(n):
                first = (total[k] + v * a[k]) + w * b[k]
                total[k] = ((first + x * c[k]) + y * d[k]) + z * e[k]
        for i in range(m // 5 * 5, m):
            row, weight = _at(where[i] + offset, like), weights[i]
            for k in range(n):
                total[k] += weight * row[k]
        for k in range(n):
            result[done + k] = total[k]
        done += n


@compiled
def trimmed_mean(layers, start, stop, steps, kept, slots, result):
    """Fill the result with each column's mean of the values of some ranks; see `gather`."""
    squares = np.zeros(layers[0].shape[1])
    width = _width(slots)
    block, total = np.empty((slots, width + PADDING), layers[3].dtype), np.empty(width)
    for first in range(start, stop, width):
        n = min(width, stop - first)
        _read(layers, first, first + n, block, squares)
        for strip in range(0, n, STRIP):
            _sort(block, steps, strip)
        for k in range(n):
            total[k] = 0.0
        for i in range(len(kept)):
            row = _row(block, kept[i])
            for k in range(n):
                total[k] += row[k]
        for k in range(n):
            result[first - start + k] = total[k] / len(kept)

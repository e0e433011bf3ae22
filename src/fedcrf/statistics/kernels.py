"""The one pass as compiled loops, for any number of clients.

Only `fedcrf.statistics.compiled` runs this file, from a copy in the cache folder. ``layers`` are
the clients' layers, joined to one row a client, by the addresses of their first numbers: one
compilation then serves every number of clients and of layers, and no array's reference count is
touched in a loop. They are three arrays:

    addresses: (layers, m + 1) int64; where each client's numbers lie, and in the last column those
        that are taken away from each client's, 0 for nothing.
    ends: (layers,) int64; one past each layer's last column.
    like: Empty, of the numbers' dtype, float32 or float64.

A block is a few hundred columns of all rows, which stay in cache: row i holds what client i sent,
less the origin, of one layer or several. Loops stand in place of slices and array expressions,
which take long to compile.
"""

import numpy as np
from llvmlite.binding import llvm_version_info
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 512
"""Columns in a block, at most."""

PADDING = 16
"""Numbers between the rows of a block, so that they do not share cache lines."""

STRIDE = BLOCK + PADDING
"""Numbers from a row to the next in the widest block, which few clients have."""

FEW = 10 if llvm_version_info >= (20,) else 0
"""Most clients whose medians are found in registers; earlier compilers make no vectors of it."""

SHORT = 128
"""Columns that are read of a row before the next one's: memory is asked for many rows at once."""

LONG = 2048
"""The same in an average of more clients than `STREAMS`, where it costs more to change rows."""

STREAMS = 16
"""Rows, or a few more, that processors read ahead of at the same time."""

STRIP = 128
"""Columns that go through a sorting network together, which stay in the first-level cache."""

LANES = 32
"""Columns in which a rank is sought together, where clients are many."""

CACHED = 1 << 20
"""Numbers in a block, at most, where clients are many: it stays in the third-level cache."""

LINE = 64
"""Bytes that memory brings together."""

TILE_ROWS, TILE_COLUMNS = 4, 2
"""A tile of the Gram matrix: its sums and the rows' numbers fit in 16 vector registers."""

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


def room(rows, dtype, like):
    """Return what a task works in: a block of so many rows, and constants of the layers' dtype.

    They are (rows + `TILE_ROWS`, columns + `PADDING`), and (3, `BLOCK`): 0, −∞ and ∞.
    """
    rows = max(rows, FEW + 1)
    width = max(STRIP, min(BLOCK, CACHED // rows // STRIP * STRIP))
    constants = np.repeat(np.array([[0.0], [-np.inf], [np.inf]], like), BLOCK, axis=1)
    columns, itemsize = width + PADDING, np.dtype(dtype).itemsize
    memory = np.empty((rows + TILE_ROWS) * columns * itemsize + LINE, np.uint8)
    start = -memory.ctypes.data % LINE  # a vector that lies in two lines is read as two
    block = memory[start : start + len(memory) - LINE].view(dtype)
    return block.reshape(rows + TILE_ROWS, columns), constants


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


@loops
def _read(layers, start, stop, block, constants):
    """Bring columns into the block, less the origin's; zeros follow up to a multiple of `STRIP`."""
    addresses, ends, like = layers
    columns, layer, done, m = stop - start, 0, 0, addresses.shape[1] - 1
    while done < columns:
        layer, place, n = _piece(ends, layer, start + done, stop)
        n, offset = min(n, SHORT), place * like.itemsize
        base = _source(addresses[layer, m], offset, constants)
        for i in range(m):
            source = _at(addresses[layer, i] + offset, like)
            row = _at(_row(block, i).ctypes.data + done * block.itemsize, block)
            for k in range(n):
                row[k] = block.dtype.type(source[k]) - block.dtype.type(base[k])
        done += n
    for i in range(m):
        for k in range(columns, (columns + STRIP - 1) // STRIP * STRIP):
            block[i, k] = 0


@loops
def _read_few(layers, start, stop, block, constants):
    """Do what `_read` does for `FEW` clients or fewer, and put their median into row `FEW`.

    They are the last of the first `FEW` rows. Before them are as many rows of −∞ as of ∞, or one
    less, which changes no median.
    """
    addresses, ends, like = layers
    columns, layer, done, m = stop - start, 0, 0, addresses.shape[1] - 1
    top, where = FEW - m, np.empty(FEW, np.int64)
    for i in range(top):
        where[i] = _row(constants, 1 if i < top // 2 else 2).ctypes.data
    while done < columns:
        layer, place, n = _piece(ends, layer, start + done, stop)
        offset, into = place * like.itemsize, block.ctypes.data + done * block.itemsize
        base = _source(addresses[layer, m], offset, constants)
        for i in range(m):
            where[top + i] = addresses[layer, i] + offset
        _median_of_few(where, base, _at(into, like), n, m % 2)
        done += n


@loops
def _source(address, offset, zeros):
    """Return the numbers at a place of what lies at an address; zeros where nothing does."""
    return _at(address + offset if address else np.int64(zeros.ctypes.data), zeros)


@loops
def _ordered(x, y):
    """Return the lesser and the greater of two numbers."""
    return x if x < y else y, x if x > y else y


@loops
def _median_of_few(where, origin, rows, columns, is_odd):
    """Bring ten rows into a block, less the origin's; put their medians into the next row.

    It is Waksman's sorting network for ten, cut to what the middle two need. Between its steps all
    is in registers.
    """
    p, q, r, s = _at(where[0], rows), _at(where[1], rows), _at(where[2], rows), _at(where[3], rows)
    t, u, v, w = _at(where[4], rows), _at(where[5], rows), _at(where[6], rows), _at(where[7], rows)
    x, y, half = _at(where[8], rows), _at(where[9], rows), rows.dtype.type(0.5)
    for k in range(columns):
        z = origin[k]
        a, b, c, d, e = p[k] - z, q[k] - z, r[k] - z, s[k] - z, t[k] - z
        f, g, h, i, j = u[k] - z, v[k] - z, w[k] - z, x[k] - z, y[k] - z
        rows[k], rows[k + STRIDE], rows[k + 2 * STRIDE] = a, b, c
        rows[k + 3 * STRIDE], rows[k + 4 * STRIDE], rows[k + 5 * STRIDE] = d, e, f
        rows[k + 6 * STRIDE], rows[k + 7 * STRIDE], rows[k + 8 * STRIDE] = g, h, i
        rows[k + 9 * STRIDE] = j
        a, b = _ordered(a, b)
        c, f = _ordered(c, f)
        d, g = _ordered(d, g)
        e, h = _ordered(e, h)
        i, j = _ordered(i, j)
        a, g = _ordered(a, g)
        b, i = _ordered(b, i)
        c, e = _ordered(c, e)
        d, j = _ordered(d, j)
        f, h = _ordered(f, h)
        a, c = _ordered(a, c)
        b, d = _ordered(b, d)
        e, f = _ordered(e, f)
        g, i = _ordered(g, i)
        h, j = _ordered(h, j)
        c, h = _ordered(c, h)
        d, f = _ordered(d, f)
        e, g = _ordered(e, g)
        b, c = _ordered(b, c)
        d, e = _ordered(d, e)
        f, g = _ordered(f, g)
        h, i = _ordered(h, i)
        c, e = _ordered(c, e)
        f, h = _ordered(f, h)
        e, f = _ordered(e, f)
        rows[k + FEW * STRIDE] = e if is_odd else (e + f) * half


@loops
def _sort(block, steps, first):
    """Send a strip of columns through a sorting network.

    A step (a, b, lesser, greater) compares rows a and b of the block and writes to two others. It
    never writes where it reads: where that may be the same, the compiler makes stores under a mask,
    which take six times as long.
    """
    offset = first * block.itemsize
    for step in range(len(steps)):
        a = _at(_row(block, steps[step, 0]).ctypes.data + offset, block)
        b = _at(_row(block, steps[step, 1]).ctypes.data + offset, block)
        lesser = _at(_row(block, steps[step, 2]).ctypes.data + offset, block)
        greater = _at(_row(block, steps[step, 3]).ctypes.data + offset, block)
        for k in range(STRIP):
            lesser[k], greater[k] = _ordered(a[k], b[k])


@summing
def _product(a, b, columns):
    """Return the inner product of two rows."""
    total = a.dtype.type(0)
    for k in range(columns):
        total += a[k] * b[k]
    return np.float64(total)


@summing
def _squares(row, other, columns):
    """Return the square of a row, in float64, and its squared distance to another."""
    square, distance = 0.0, row.dtype.type(0)
    for k in range(columns):
        square += np.float64(row[k]) * np.float64(row[k])
        distance += (row[k] - other[k]) * (row[k] - other[k])
    return square, np.float64(distance)


@summing
def _add_tile(block, top, i, j, columns, gram):
    """Add the products of rows i to i + 3 with rows j and j + 1, counted from ``top`` on."""
    a, b = _row(block, top + i), _row(block, top + i + 1)
    c, d = _row(block, top + i + 2), _row(block, top + i + 3)
    e, f = _row(block, top + j), _row(block, top + j + 1)
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
def _add_products(block, top, rows, apart, columns, gram):
    """Add the products of rows, from ``top`` on, above the diagonal; what lies below is undefined.

    ``apart`` is 0 where the diagonal is wanted, else 1. Four rows stay in the first-level cache
    while those they are multiplied with come from the second. The block and the matrix have
    `TILE_ROWS` rows more, which tiles reach into.
    """
    for i in range(0, rows, TILE_ROWS):
        for j in range(i + apart, rows, TILE_COLUMNS):
            _add_tile(block, top, i, j, columns, gram)


@compiled
def gather(layers, start, stop, squares, gram, squared_distance, block, constants, steps, kept):
    """Add the sums of `fedcrf.statistics.sums.AboutMedian` over columns.

    Only squares count, and are not finite, where a number is not. The median is one more row below
    the clients', whose products are among the others'.

    Args:
        layers: The clients'.
        start: The first column.
        stop: One past the last.
        squares: (m + 1,) float64; added to, as the next two. The last is the median's.
        gram: (m + 5, m + 5); inner products above the diagonal, with the median in column m.
        squared_distance: (m + 1,).
        block: Rows for the clients, the median, copies of the clients' and two more; see `room`.
        constants: As there.
        steps: Of a sorting network of the copies, as `_sort` takes them.
        kept: The row that holds the median after them, or the two whose mean it is.
    """
    m, width, half = len(squares) - 1, block.shape[1] - PADDING, block.dtype.type(0.5)
    top = max(FEW - m, 0)
    middle = _row(block, top + m)
    for first in range(start, stop, width):
        n = min(width, stop - first)
        if m <= FEW:
            _read_few(layers, first, first + n, block, constants)
        else:
            _read(layers, first, first + n, block, constants)
            for strip in range(0, n, STRIP):
                for i in range(m):
                    row, copy = _row(block, i), _row(block, m + 1 + i)
                    for k in range(strip, strip + STRIP):
                        copy[k] = row[k]
                _sort(block, steps, strip)
            low, high = _row(block, kept[0]), _row(block, kept[-1])
            for k in range(n):
                middle[k] = low[k] if m % 2 else (low[k] + high[k]) * half
        for i in range(m + 1):
            square, distance = _squares(_row(block, top + i), middle, n)
            squares[i] += square
            squared_distance[i] += distance
        _add_products(block, top, m + 1, 1, n, gram)


@compiled
def gather_crowd(
    layers, start, stop, squares, inner, squared_distance, block, constants, whole, medians
):
    """Do what `gather` does without the Gram matrix, for very many clients.

    Beside products of all pairs a sorting network takes little time. Without them a search for the
    rank saves a third of the time. ``inner`` is (m,), the products with the median. ``whole`` is an
    empty array of integers of the rows' size; the median's numbers are put into ``medians``.
    """
    m, width, finite = len(squares) - 1, block.shape[1] - PADDING, True
    median, following = np.empty((1, width), block.dtype), np.empty((1, width), block.dtype)
    half = block.dtype.type(0.5)
    for first in range(start, stop, width):
        n = min(width, stop - first)
        _read(layers, first, first + n, block, constants)
        for i in range(m):
            squares[i] += _squares(_row(block, i), _row(block, i), n)[0]
            finite &= np.isfinite(squares[i])
        if not finite:
            continue
        _rank(block, m, n, (m - 1) // 2, whole, median, following)
        if m % 2 == 0:
            for k in range(n):
                median[0, k] = (median[0, k] + following[0, k]) * half
        for k in range(n):
            medians[first - start + k] = median[0, k]
        middle = _row(median, 0)
        squares[m] += _squares(middle, middle, n)[0]
        for i in range(m):
            inner[i] += _product(_row(block, i), middle, n)
            squared_distance[i] += _squares(_row(block, i), middle, n)[1]


@loops
def _rank(block, rows, columns, rank, whole, found, following):
    """Find each column's value of a rank, counted from 0, and the one that follows it.

    A bracket that holds the value shrinks for `LANES` columns at once, to about where the rank must
    lie by the counts at its ends, and every third time in halves of the numbers that there are
    between them: so it closes whatever the values. Each time is a pass over rows in cache. What
    follows the last rank is infinite. All values are finite.
    """
    strip = np.full(((rows + 3) // 4 * 4, LANES), np.inf, block.dtype)
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
    """Copy columns to a strip, where their rows follow each other; find their bounds."""
    least, greatest = _row(lower, 0), _row(upper, 0)
    for k in range(LANES):
        least[k], greatest[k] = np.inf, -np.inf
    for i in range(rows):
        source = _at(_row(block, i).ctypes.data + first * block.itemsize, block)
        row = _row(strip, i)
        for k in range(LANES):
            row[k] = source[k]
            least[k] = _ordered(row[k], least[k])[0]
            greatest[k] = _ordered(row[k], greatest[k])[1]


@loops
def _count(strip, pivot, count):
    """Count each column's values that are no greater than its pivot.

    Rows are a multiple of four, and infinite beyond the block's. Four at a time take fewer stores:
    one at a time, a crowd's statistics take five times as long.
    """
    bound, total = _row(pivot, 0), _row(count, 0)
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
    bound, low, high = _row(pivot, 0), _row(below, 0), _row(above, 0)
    for k in range(LANES):
        count[k], low[k], high[k] = 0, least, greatest
    _count(strip, pivot, count)
    for i in range(len(strip)):
        row = _row(strip, i)
        for k in range(LANES):
            is_below = row[k] <= bound[k]
            low[k] = _ordered(low[k], row[k] if is_below else least)[1]
            high[k] = _ordered(high[k], greatest if is_below else row[k])[0]


@compiled
def gather_centred(layers, start, stop, squares, gram, block, constants):
    """Add the products of the rows about their mean, in float64; squares are as in `gather`.

    The first row is taken away before the mean: exact for equal rows, as their mean alone is not.
    The block is of float64.
    """
    m, width = len(squares), block.shape[1] - PADDING
    mean = np.empty(width)
    for first in range(start, stop, width):
        n = min(width, stop - first)
        _read(layers, first, first + n, block, constants)
        for i in range(m):
            squares[i] += _squares(_row(block, i), _row(block, i), n)[0]
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
        _add_products(block, 0, m, 0, n, gram)


@compiled
def sketch(layers, start, stop, place, shifts, signs, sums):
    """Add the count sketches of the rows' columns, each row's its own.

    ``place`` is where the first column lies in what is sketched, and ``signs`` begin with its own.
    What shifts and signs are is told in `fedcrf.statistics.sketches`.
    """
    addresses, ends, like = layers
    m, size = sums.shape
    for i in range(m):
        layer, done = 0, 0
        while start + done < stop:
            column, row = (place + done) % size, (place + done) // size
            bucket = (column + shifts[row]) % size
            layer, first, n = _piece(ends, layer, start + done, stop)
            n = min(n, size - column, size - bucket)  # their buckets follow each other
            sign, offset = _at(signs.ctypes.data + done, signs), first * like.itemsize
            source = _at(addresses[layer, i] + offset, like)
            buckets = _at(_row(sums, i).ctypes.data + bucket * 8, sums)
            if addresses[layer, m] == 0:
                for k in range(n):
                    buckets[k] += sign[k] * np.float64(source[k])
            else:
                base = _at(addresses[layer, m] + offset, like)
                for k in range(n):
                    buckets[k] += sign[k] * (np.float64(source[k]) - np.float64(base[k]))
            done += n


@compiled
def average(layers, start, stop, weights, result):
    """Fill the result with the weighted sum of the rows, added up in their order.

    Five rows at a time keep as many streams from memory busy.
    """
    addresses, ends, like = layers
    m, layer, done = len(weights), 0, 0
    length = SHORT if m <= STREAMS else LONG
    total = np.empty(length)
    while start + done < stop:
        layer, place, n = _piece(ends, layer, start + done, stop)
        n, offset, where = min(length, n), place * like.itemsize, addresses[layer]
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
def trimmed_mean(layers, start, stop, block, constants, steps, kept, result):
    """Fill the result with each column's mean of the values of some ranks.

    They are in the rows ``kept`` after the steps, which write to two rows beside the clients'.
    """
    width = block.shape[1] - PADDING
    total = np.empty(width)
    for first in range(start, stop, width):
        n = min(width, stop - first)
        _read(layers, first, first + n, block, constants)
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

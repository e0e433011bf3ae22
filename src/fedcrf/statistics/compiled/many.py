"""The compiled pass for any number of clients: blocks of columns that stay in cache.

Only `fedcrf.statistics.compiled.loading` runs this file. Clients' rows are told by the addresses
of their first numbers, so that one compilation serves every number of clients; ``like`` is an empty
array of their dtype, and ``block`` a scratch matrix with a row for each client, of the dtype that
is computed in.

The k-th smallest number of a column is found by shrinking the bracket that holds it, for many
columns at once: in halves at first, then at about where the rank must lie by the counts so far.
Each time is a pass over rows that lie in cache, does the same to every column, and needs no more
memory. Ties, zeros and denormals are numbers like any other.
"""

import numpy as np
from llvmlite import ir
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from fedcrf.statistics.compiled.few import TILE

assert TILE == 5, "add_tile is written out for tiles of five"

BLOCK = 512
"""Columns in a block, at most."""

CACHED = 1 << 20
"""Numbers in a block, at most: it stays in the third-level cache, beside another thread's."""

FEWEST_PACKED = 4096
"""Rows from which on a strip of columns is copied to where its rows follow each other: it is gone
through some twelve times, and would not stay in the second-level cache."""

PADDING = 16
"""Numbers between the rows of a block, so that they do not share cache lines."""

LONG_BLOCK = 4096
"""Columns in a block of an average, of which little else is in cache."""

GROUPED = 4
"""Numbers in each group of a row, at least, of which the maxima are looked at first."""

BISECTED = 8
"""Times that an interval is halved in which such a bound lies."""

HALVED, COUNTED = 3, 5
"""Passes over a column that halve the bracket of a rank, and those that count and no more."""

LANES = 32
"""Columns in which a rank is sought at once; their state stays in vector registers."""

PANEL = 20 * TILE
"""Rows of the Gram matrix that are worked through while they lie in the second-level cache."""

FAST = {"reassoc", "contract", "nsz", "arcp"}
"""What the compiler may do to a sum: change its order, and no more."""


@intrinsic
def pointer(typing, address):
    """Return a pointer to the numbers at an address."""

    def generate(context, builder, signature, arguments):
        return builder.inttoptr(arguments[0], cgutils.voidptr_t)

    return types.voidptr(address), generate


def lanes(context, builder, signature, arguments, position):
    """Return a pointer to an argument's `LANES` numbers as one vector, and their alignment."""
    data = context.make_array(signature.args[position])(context, builder, arguments[position]).data
    vector = ir.VectorType(data.type.pointee, LANES)
    return builder.bitcast(data, vector.as_pointer()), signature.args[position].dtype.bitwidth // 8


def over_rows(context, builder, signature, arguments, num_read, step):
    """Generate a loop over the rows of a strip of `LANES` columns, its state held in registers.

    The arguments of the function are the block (flat), first column, rows, stride; then arrays of
    `LANES` numbers, some to read and after them one for each result. ``step`` takes the row's
    values, the arrays read and the state so far to the next state; with no row, it gives the first.
    """
    parts = context, builder, signature, arguments
    arrays = [lanes(*parts, position) for position in range(4, len(arguments))]
    read = [builder.load(place, align=align) for place, align in arrays[:num_read]]
    block = context.make_array(signature.args[0])(context, builder, arguments[0]).data
    vector = ir.VectorType(block.type.pointee, LANES)
    at = builder.gep(block, [arguments[1]])
    state = [cgutils.alloca_once_value(builder, value) for value in step(vector, None, read, None)]
    with cgutils.for_range(builder, arguments[2]) as loop:
        row = builder.gep(at, [builder.mul(loop.index, arguments[3])])
        align = signature.args[0].dtype.bitwidth // 8
        values = builder.load(builder.bitcast(row, vector.as_pointer()), align=align)
        now = [builder.load(each) for each in state]
        for each, value in zip(state, step(vector, values, read, now), strict=True):
            builder.store(value, each)
    for (place, align), each in zip(arrays[num_read:], state, strict=True):
        builder.store(builder.load(each), place, align=align)
    return context.get_dummy_value()


def all_lanes(vector, value):
    """Return a constant in every lane."""
    return ir.Constant(vector, [value] * LANES)


def greater(builder, left, right):
    """Return the greater of two in every lane."""
    return builder.select(builder.fcmp_ordered(">", left, right), left, right)


def lesser(builder, left, right):
    """Return the lesser of two in every lane."""
    return builder.select(builder.fcmp_ordered("<", left, right), left, right)


COUNTS = ir.VectorType(ir.IntType(32), LANES)


@intrinsic
def bounds(typing, block, first, rows, stride, lower, upper):
    """Find each column's least value and the greatest."""

    def generate(context, builder, signature, arguments):
        def step(vector, values, read, state):
            if values is None:
                return [all_lanes(vector, float("inf")), all_lanes(vector, float("-inf"))]
            return [lesser(builder, values, state[0]), greater(builder, values, state[1])]

        return over_rows(context, builder, signature, arguments, 0, step)

    return types.void(block, types.intp, types.intp, types.intp, lower, upper), generate


@intrinsic
def count_up_to(typing, block, first, rows, stride, pivot, count):
    """Count each column's values that are no greater than its pivot."""

    def generate(context, builder, signature, arguments):
        def step(vector, values, read, state):
            if values is None:
                return [all_lanes(COUNTS, 0)]
            low = builder.fcmp_ordered("<=", values, read[0])
            return [builder.add(state[0], builder.zext(low, COUNTS))]

        return over_rows(context, builder, signature, arguments, 1, step)

    return types.void(block, types.intp, types.intp, types.intp, pivot, count), generate


@intrinsic
def split(typing, block, first, rows, stride, pivot, count, below, above):
    """Count each column's values up to its pivot; find the greatest of them and the next above."""

    def generate(context, builder, signature, arguments):
        def step(vector, values, read, state):
            if values is None:
                infinite = all_lanes(vector, float("-inf")), all_lanes(vector, float("inf"))
                return [all_lanes(COUNTS, 0), *infinite]
            low = builder.fcmp_ordered("<=", values, read[0])
            return [
                builder.add(state[0], builder.zext(low, COUNTS)),
                builder.select(low, greater(builder, values, state[1]), state[1]),
                builder.select(low, state[2], lesser(builder, values, state[2])),
            ]

        return over_rows(context, builder, signature, arguments, 1, step)

    kinds = (types.intp, types.intp, types.intp, pivot, count, below, above)
    return types.void(block, *kinds), generate


@intrinsic
def divide(typing, lower, upper, share, pivot):
    """Put a pivot into every bracket, at its share: lower ≤ pivot < upper, or the one value."""

    def generate(context, builder, signature, arguments):
        parts = context, builder, signature, arguments
        (low_at, align), (up_at, _), (share_at, _), (pivot_at, _) = (
            lanes(*parts, k) for k in range(4)
        )
        low, up, share = (builder.load(at, align=align) for at in (low_at, up_at, share_at))
        middle = builder.fadd(low, builder.fmul(builder.fsub(up, low), share))
        # A bracket wider than the largest number; and one of neighbours, or of one value.
        rest = builder.fsub(all_lanes(low.type, 1.0), share)
        other = builder.fadd(builder.fmul(low, rest), builder.fmul(up, share))
        within = builder.and_(
            builder.fcmp_ordered("<=", low, other), builder.fcmp_ordered("<", other, up)
        )
        other = builder.select(within, other, low)
        pivot = builder.select(builder.fcmp_ordered("<", middle, up), middle, other)
        builder.store(pivot, pivot_at, align=align)
        return context.get_dummy_value()

    return types.void(lower, upper, share, pivot), generate


@intrinsic
def narrow(typing, lower, upper, fewest, most, pivot, count, below, above, enough):
    """Shrink brackets by what was counted, and tell whether one is open still.

    ``fewest`` and ``most`` become the counts at its two ends, of the pivots that it shrank to.

    A bracket goes on to the nearest value below or above the pivot. It closes on a pivot with just
    enough values up to it: those on its two sides are the ones that are sought.
    """

    def generate(context, builder, signature, arguments):
        parts = context, builder, signature, arguments
        places = [lanes(*parts, k) for k in range(8)]
        low, up, fewest, most, pivot, count, below, above = (
            builder.load(place, align=align) for place, align in places
        )
        needed = builder.trunc(arguments[8], ir.IntType(32))
        empty = ir.Constant(COUNTS, ir.Undefined)
        needed = builder.insert_element(empty, needed, ir.Constant(ir.IntType(32), 0))
        needed = builder.shuffle_vector(needed, empty, all_lanes(COUNTS, 0))
        parted = builder.icmp_signed("==", count, needed)
        is_open = builder.and_(builder.fcmp_ordered("<", low, up), builder.not_(parted))
        many = builder.and_(is_open, builder.icmp_signed(">", count, needed))
        few = builder.and_(is_open, builder.icmp_signed("<", count, needed))
        low = builder.select(parted, pivot, builder.select(few, above, low))
        up = builder.select(parted, pivot, builder.select(many, below, up))
        fewest = builder.select(few, count, fewest)
        most = builder.select(many, count, most)
        for value, (place, align) in zip((low, up, fewest, most), places, strict=False):
            builder.store(value, place, align=align)
        mask = builder.bitcast(is_open, ir.IntType(LANES))
        return builder.icmp_unsigned("!=", mask, ir.Constant(mask.type, 0))

    arrays = (lower, upper, fewest, most, pivot, count, below, above)
    return types.boolean(*arrays, types.intp), generate


@njit(cache=True, nogil=True)
def width(rows):
    """Return how many columns of so many rows a block has, a multiple of `LANES`."""
    return max(LANES, min(BLOCK, CACHED // max(1, rows) // LANES * LANES))


@njit(cache=True, nogil=True)
def lean(fewest, most, enough, share):
    """Guess where in a bracket a rank lies from the counts at its ends, as if spread evenly."""
    half, least, greatest = share.dtype.type(0.5), share.dtype.type(0.02), share.dtype.type(0.98)
    for k in range(len(share)):
        between = share.dtype.type(max(1, most[k] - fewest[k]))
        guess = (share.dtype.type(enough - fewest[k]) - half) / between
        share[k] = min(max(guess, least), greatest)


@njit(cache=True, nogil=True)
def select(block, rows, columns, rank, found, following):
    """Find each column's value of a rank, counted from 0, and the one that follows it.

    Both are known from a pivot between them. Columns are a multiple of `LANES`, the rank is not
    the last, or what follows is infinite; all values are finite.
    """
    packed = rows >= FEWEST_PACKED
    strip = np.empty(rows * LANES if packed else 0, block.dtype)
    flat, stride = (strip, LANES) if packed else (block.reshape(-1), block.shape[1])
    lower, upper = np.empty(LANES, block.dtype), np.empty(LANES, block.dtype)
    below, above = np.empty(LANES, block.dtype), np.empty(LANES, block.dtype)
    pivot, share = np.empty(LANES, block.dtype), np.empty(LANES, block.dtype)
    fewest, most, count = (
        np.empty(LANES, np.int32),
        np.empty(LANES, np.int32),
        np.empty(LANES, np.int32),
    )
    enough = rank + 1
    for first in range(0, columns, LANES):
        if packed:
            for i in range(rows):
                values, into = block[i, first:], strip[i * LANES :]
                for k in range(LANES):
                    into[k] = values[k]
        at = 0 if packed else first
        bounds(flat, at, rows, stride, lower, upper)
        fewest[:], most[:] = 1, rows
        is_open, step = True, 0
        while is_open:
            if step < HALVED or step % 3 == 2:  # whatever the values, a bracket must shrink
                share[:] = 0.5
            else:
                lean(fewest, most, enough, share)
            divide(lower, upper, share, pivot)
            if step < COUNTED:  # the bracket alone, while it holds many
                count_up_to(flat, at, rows, stride, pivot, count)
                narrow(lower, upper, fewest, most, pivot, count, pivot, pivot, enough)
            else:  # from value to value
                split(flat, at, rows, stride, pivot, count, below, above)
                is_open = narrow(lower, upper, fewest, most, pivot, count, below, above, enough)
            step += 1
        for k in range(LANES):
            found[first + k] = below[k]
            following[first + k] = above[k] if count[k] == enough else below[k]


@njit(cache=True, nogil=True)
def read(addresses, origin, like, start, columns, block):
    """Bring columns into the block, the origin's taken away; zeros up to a multiple of `LANES`."""
    offset = start * like.itemsize
    for i in range(len(addresses)):
        source, row = carray(pointer(addresses[i] + offset), columns, like.dtype), block[i]
        if origin == 0:
            for k in range(columns):
                row[k] = source[k]
        else:
            base = carray(pointer(origin + offset), columns, like.dtype)
            for k in range(columns):
                row[k] = block.dtype.type(source[k]) - block.dtype.type(base[k])
    for i in range(len(block)):
        for k in range(columns, (columns + LANES - 1) // LANES * LANES):
            block[i, k] = 0


@njit(cache=True, nogil=True, fastmath=FAST)
def add_squares(block, rows, columns, squares):
    """Add each row's sum of squares, and tell whether all are finite."""
    finite = True
    for i in range(rows):
        row, total = block[i], 0.0
        for k in range(columns):
            value = np.float64(row[k])
            total += value * value
        squares[i] += total
        finite &= np.isfinite(squares[i])
    return finite


@njit(cache=True, nogil=True, fastmath=FAST)
def add_tile(block, i, j, columns, gram):
    """Add the inner products of TILE rows from i on with TILE rows from j on."""
    a0, a1, a2, a3, a4 = block[i], block[i + 1], block[i + 2], block[i + 3], block[i + 4]
    b0, b1, b2, b3, b4 = block[j], block[j + 1], block[j + 2], block[j + 3], block[j + 4]
    s00 = s01 = s02 = s03 = s04 = s10 = s11 = s12 = s13 = s14 = block.dtype.type(0)
    s20 = s21 = s22 = s23 = s24 = s30 = s31 = s32 = s33 = s34 = block.dtype.type(0)
    s40 = s41 = s42 = s43 = s44 = block.dtype.type(0)
    for k in range(columns):
        y0, y1, y2, y3, y4 = b0[k], b1[k], b2[k], b3[k], b4[k]
        x = a0[k]
        s00, s01, s02, s03, s04 = (
            s00 + x * y0,
            s01 + x * y1,
            s02 + x * y2,
            s03 + x * y3,
            s04 + x * y4,
        )
        x = a1[k]
        s10, s11, s12, s13, s14 = (
            s10 + x * y0,
            s11 + x * y1,
            s12 + x * y2,
            s13 + x * y3,
            s14 + x * y4,
        )
        x = a2[k]
        s20, s21, s22, s23, s24 = (
            s20 + x * y0,
            s21 + x * y1,
            s22 + x * y2,
            s23 + x * y3,
            s24 + x * y4,
        )
        x = a3[k]
        s30, s31, s32, s33, s34 = (
            s30 + x * y0,
            s31 + x * y1,
            s32 + x * y2,
            s33 + x * y3,
            s34 + x * y4,
        )
        x = a4[k]
        s40, s41, s42, s43, s44 = (
            s40 + x * y0,
            s41 + x * y1,
            s42 + x * y2,
            s43 + x * y3,
            s44 + x * y4,
        )
    sums = (
        (s00, s01, s02, s03, s04),
        (s10, s11, s12, s13, s14),
        (s20, s21, s22, s23, s24),
        (s30, s31, s32, s33, s34),
        (s40, s41, s42, s43, s44),
    )
    for down in range(TILE):
        for across in range(TILE):
            gram[i + down, j + across] += sums[down][across]


@njit(cache=True, nogil=True)
def add_products(block, columns, gram):
    """Add the rows' inner products on and above the diagonal; the rows are a multiple of TILE."""
    rows = len(block)
    for panel in range(0, rows, PANEL):
        end = min(panel + PANEL, rows)
        for i in range(0, end, TILE):
            for j in range(max(i, panel), end, TILE):
                add_tile(block, i, j, columns, gram)


@njit(cache=True, nogil=True, fastmath=FAST)
def square(vector):
    """Return the sum of the squares."""
    total = vector.dtype.type(0)
    for k in range(len(vector)):
        total += vector[k] * vector[k]
    return total


@njit(cache=True, nogil=True, fastmath=FAST)
def beside(row, median):
    """Return the inner product of a row with the median, and its squared distance to it."""
    product = distance = row.dtype.type(0)
    for k in range(len(median)):
        value, middle = row[k], median[k]
        product += value * middle
        distance += (value - middle) * (value - middle)
    return product, distance


@njit(cache=True, nogil=True)
def gather(addresses, origin, like, columns, squares, gram, inner, squared_distance):
    """Add the sums of `fedcrf.statistics.sums.Sums` over columns; return the median's square.

    Only squares count, and are not finite, where a number is not. Products are left out where the
    Gram matrix is empty.
    """
    none, shifts, signs = np.zeros((0, 0), like.dtype), np.zeros(0, np.int64), np.zeros(0, np.int8)
    sums = squares, gram, inner, squared_distance, none
    return gather_sketched(addresses, origin, like, columns, *sums, shifts, signs, 0)


@njit(cache=True, nogil=True)
def gather_sketched(
    addresses,
    origin,
    like,
    columns,
    squares,
    gram,
    inner,
    squared_distance,
    sketches,
    shifts,
    signs,
    first,
):
    """Gather, and add what the columns add to the sketches, their median's the last.

    ``first`` is the coordinate of the first column; what shifts and signs are is told in
    `fedcrf.statistics.sketches`. Where there is one sketch, it is the median's alone; none, where
    there is none.
    """
    rows, finite, total = len(addresses), True, 0.0
    step = width(rows)
    block = np.zeros((max(rows, len(gram)), step + PADDING), like.dtype)
    low, following = np.empty(step, like.dtype), np.empty(step, like.dtype)
    for start in range(0, columns, step):
        n = min(step, columns - start)
        read(addresses, origin, like, start, n, block)
        finite &= add_squares(block, rows, n, squares)
        if finite:
            select(block, rows, (n + LANES - 1) // LANES * LANES, (rows - 1) // 2, low, following)
            if rows % 2 == 0:
                for k in range(n):
                    low[k] = (low[k] + following[k]) * like.dtype.type(0.5)
            middle, sign = low[:n], signs[start : start + n].astype(like.dtype)
            total += square(middle)
            for i in range(rows):  # while the row is near
                product, distance = beside(block[i], middle)
                inner[i] += product
                squared_distance[i] += distance
                if len(sketches) > 1:
                    add_signed(block[i], first + start, shifts, sign, sketches[i])
            if len(sketches):
                add_signed(middle, first + start, shifts, sign, sketches[-1])
            if len(gram):
                add_products(block, n, gram)
    return total


@njit(cache=True, nogil=True)
def add_signed(row, first, shifts, signs, sketch):
    """Add a row's columns, as many as there are signs, to their buckets."""
    start = 0
    while start < len(signs):
        bucket, n = buckets_of(first + start, len(signs) - start, shifts, len(sketch))
        values, sign, buckets = row[start:], signs[start : start + n], sketch[bucket:]
        for k in range(len(sign)):
            buckets[k] += sign[k] * values[k]
        start += n


@njit(cache=True, nogil=True)
def buckets_of(coordinate, left, shifts, size):
    """Return a coordinate's bucket, and of how many that are left the buckets follow each other."""
    place = coordinate % size
    bucket = (place + shifts[coordinate // size]) % size
    return bucket, min(left, size - place, size - bucket)


@njit(cache=True, nogil=True)
def gather_centred(addresses, origin, like, columns, squares, gram):
    """Add the products of the rows about their mean, in float64; squares are as in `gather`.

    The first row is taken away before the mean: exact for equal rows, as their mean alone is not.
    """
    rows, finite = len(addresses), True
    step = width(rows)
    block = np.zeros((len(gram), step + PADDING))
    first, mean = np.empty(step), np.empty(step)
    for start in range(0, columns, step):
        n = min(step, columns - start)
        read(addresses, origin, like, start, n, block)
        finite &= add_squares(block, rows, n, squares)
        if finite:
            first[:n], mean[:n] = block[0, :n], 0.0
            for i in range(rows):
                row = block[i]
                for k in range(n):
                    row[k] -= first[k]
                    mean[k] += row[k]
            for k in range(n):
                mean[k] /= rows
            for i in range(rows):
                row = block[i]
                for k in range(n):
                    row[k] -= mean[k]
            add_products(block, n, gram)


@njit(cache=True, nogil=True)
def sketch(addresses, origin, like, columns, first, shifts, signs, sums):
    """Add the count sketches of the rows, each row's its own; the columns' places begin at first.

    Four rows in turns keep as many streams from memory busy. What shifts and signs are is told in
    `fedcrf.statistics.sketches`.
    """
    taken = np.zeros(columns, like.dtype)
    if origin != 0:
        taken[:] = carray(pointer(origin), columns, like.dtype)
    for i in range(0, len(addresses), 4):
        start = 0
        while start < columns:
            bucket, n = buckets_of(first + start, columns - start, shifts, sums.shape[1])
            minus, sign = taken[start : start + n], signs[start : start + n]
            for j in range(i, min(i + 4, len(addresses))):
                row = carray(pointer(addresses[j]), columns, like.dtype)[start : start + n]
                buckets = sums[j, bucket : bucket + n]
                for k in range(len(row)):
                    buckets[k] += sign[k] * (np.float64(row[k]) - np.float64(minus[k]))
            start += n


@njit(cache=True, nogil=True)
def greatest(block, places):
    """Fill in where each row's greatest numbers are, in any order; of equal ones the first count.

    In a long row only those are looked at that are no less than a bound that as many maxima of
    groups reach.
    """
    k, columns = places.shape[1], block.shape[1]
    groups = (k // LANES + 1) * LANES
    maxima, best = np.empty(groups, block.dtype), np.empty(k, block.dtype)
    everywhere, where = np.arange(columns), np.empty(columns, np.int64)
    for i in range(len(block)):
        row = block[i]
        if columns < GROUPED * groups:
            rank(row, everywhere, best, places[i])
            continue
        maxima[:] = row[:groups]
        for start in range(groups, columns, groups):
            part = row[start : start + groups]
            for j in range(len(part)):
                maxima[j] = max(maxima[j], part[j])
        bound, kept = reached(maxima, k), 0
        for j in range(columns):
            where[kept] = j
            kept += row[j] >= bound
        rank(row, where[:kept], best, places[i])


@njit(cache=True, nogil=True)
def reached(values, k):
    """Return a number that k of the values or a few more are no less than."""
    low, high = values.min(), values.max()
    for _ in range(BISECTED):
        middle, count = (low + high) * values.dtype.type(0.5), 0
        for j in range(len(values)):
            count += values[j] >= middle
        if count >= k:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True, nogil=True)
def rank(row, where, best, place):
    """Find which of a row's numbers at some places are the greatest, as many as best takes.

    Those found so far are a heap, the least of them at its root, of equal ones the last.
    """
    k = len(best)
    for j in range(k):
        best[j], place[j] = row[where[j]], where[j]
    for j in range(k // 2 - 1, -1, -1):
        sift(best, place, j)
    for at in where[k:]:
        if row[at] > best[0]:
            best[0], place[0] = row[at], at
            sift(best, place, 0)


@njit(cache=True, nogil=True)
def sift(best, place, at):
    """Bring one number of a heap down to where it belongs."""
    value, where = best[at], place[at]
    while 2 * at + 1 < len(best):
        below = 2 * at + 1
        other = below + 1
        if other < len(best) and (
            best[other] < best[below]
            or (best[other] == best[below] and place[other] > place[below])
        ):
            below = other
        if best[below] > value or (best[below] == value and place[below] < where):
            break
        best[at], place[at] = best[below], place[below]
        at = below
    best[at], place[at] = value, where


@njit(cache=True, nogil=True, fastmath=FAST)
def products(vectors, rows, places, found):
    """Fill in the inner products of the rows' vectors with those at their places."""
    for i in range(len(rows)):
        mine = vectors[rows[i]]
        for j in range(places.shape[1]):
            other, total = vectors[places[i, j]], vectors.dtype.type(0)
            for k in range(len(mine)):
                total += mine[k] * other[k]
            found[i, j] = total


@njit(cache=True, nogil=True)
def median(addresses, like, columns, result):
    """Fill the result with each column's median, the mean of the middle two for an even number."""
    rows = len(addresses)
    step = width(rows)
    block = np.zeros((rows, step + PADDING), like.dtype)
    low, following = np.empty(step, like.dtype), np.empty(step, like.dtype)
    for start in range(0, columns, step):
        n = min(step, columns - start)
        read(addresses, 0, like, start, n, block)
        select(block, rows, (n + LANES - 1) // LANES * LANES, (rows - 1) // 2, low, following)
        for k in range(n):
            high = low[k] if rows % 2 else following[k]
            result[start + k] = (np.float64(low[k]) + np.float64(high)) / 2


@njit(cache=True, nogil=True)
def trimmed_mean(addresses, trim, like, columns, result):
    """Fill the result with each column's mean but for its ``trim`` least and greatest values.

    A value beyond the ranks that are kept counts as the nearest of them, and that is taken away.
    """
    rows = len(addresses)
    step = width(rows)
    block = np.zeros((rows, step + PADDING), like.dtype)
    low, high = np.empty(step, like.dtype), np.empty(step, like.dtype)
    spare, total = np.empty(step, like.dtype), np.empty(step)
    for start in range(0, columns, step):
        n = min(step, columns - start)
        wide = (n + LANES - 1) // LANES * LANES
        read(addresses, 0, like, start, n, block)
        select(block, rows, wide, trim, low, spare)
        select(block, rows, wide, rows - 1 - trim, high, spare)
        for k in range(n):
            total[k] = -trim * (np.float64(low[k]) + np.float64(high[k]))
        for i in range(rows):
            row = block[i]
            for k in range(n):
                total[k] += min(max(row[k], low[k]), high[k])
        for k in range(n):
            result[start + k] = total[k] / (rows - 2 * trim)


@njit(cache=True, nogil=True)
def average(addresses, weights, like, columns, result):
    """Fill the result with the weighted sum of the rows, added up in their order.

    Four rows at a time keep as many streams from memory busy.
    """
    total = np.empty(LONG_BLOCK)
    for start in range(0, columns, LONG_BLOCK):
        n, offset = min(LONG_BLOCK, columns - start), start * like.itemsize
        total[:n] = 0.0
        for i in range(0, len(addresses) - 3, 4):
            a = carray(pointer(addresses[i] + offset), n, like.dtype)
            b = carray(pointer(addresses[i + 1] + offset), n, like.dtype)
            c = carray(pointer(addresses[i + 2] + offset), n, like.dtype)
            d = carray(pointer(addresses[i + 3] + offset), n, like.dtype)
            u, v, w, x = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
            for k in range(n):
                total[k] = (((total[k] + u * a[k]) + v * b[k]) + w * c[k]) + x * d[k]
        for i in range(len(addresses) // 4 * 4, len(addresses)):
            row, weight = carray(pointer(addresses[i] + offset), n, like.dtype), weights[i]
            for k in range(n):
                total[k] += weight * row[k]
        for k in range(n):
            result[start + k] = total[k]

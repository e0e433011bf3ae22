"""The tables and the picture of what was measured."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks.crowds import NEAREST, exponent
from fedcrf.files import atomic_write

Section = Mapping[str, Any]
"""A section's ``result``, and what it was measured with: ``provenance``, ``peers``, ``peaks``."""

Found = Mapping[str, Section]
"""The sections by name."""

MNIST_ROUND = "MNIST round: MLP 784-200-10, 10 clients, 60,000 images, evaluation on 10,000"
OURS = "fedcrf"


def tables(found: Found) -> str:
    """Return everything that was measured as Markdown."""
    parts = [_machine(found)]
    for name, (title, lines) in SECTIONS.items():
        if name in found:
            parts.append("\n".join([f"### {title}", "", *lines(found[name])]))
    return "\n\n".join(parts) + "\n"


SHORT = {"mnist-mlp", "small-clients", "aggregation"}
"""The sections that docs/speed.md shows."""


def short(found: Found) -> str:
    """Return what docs/speed.md shows: the MNIST round, the small clients, the rule itself."""
    lines = [
        f"{MNIST_ROUND}, beside the peers in one run (times ours: median and range of the",
        "turns; share of the machine's measured matrix-product peak):",
        "",
        *rounds(found["mnist-mlp"]),
        "",
        *small_clients(found["small-clients"]),
        "",
        "What the whole of CRF aggregation takes, and what others take, as multiples of a plain",
        "weighted mean of the same models (`w @ V`), with one thread each:",
        "",
    ]
    cases = [case for case in found["aggregation"]["result"] if case["threads"] == 1]
    heads = [f"m = {case['clients']}, d = {case['numbers']:,}" for case in cases]
    lines += [f"| | {' | '.join(heads)} |", f"| --- |{' ---: |' * len(cases)}"]
    for who in ("fedcrf CRF", "torch.median", "ByzFL Median", "ByzFL Krum"):
        cells = (_short_cell(case, who) for case in cases)
        lines.append(f"| {who} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _short_cell(case: Mapping[str, Any], who: str) -> str:
    timed = case["timings"].get(who)
    return "not run" if timed is None else spread(timed["times_weighted_mean"])


def rounds(section: Section) -> Iterator[str]:
    """Yield the table of one round: times, times ours with its spread, share of the peak."""
    cores = section["result"]
    heads = [f"{_cores(n)}, s | x ours [least, greatest] | of peak" for n in cores]
    yield f"| round by | {' | '.join(heads)} |"
    yield f"| --- |{' ---: | ---: | ---: |' * len(cores)}"
    names = dict.fromkeys(
        who for each in cores.values() for who in (*each["contenders"], *each["missing"])
    )
    for who in names:
        yield f"| {who} | " + " | ".join(_round_cells(each, who) for each in cores.values()) + " |"


def _round_cells(each: Mapping[str, Any], who: str) -> str:
    if who in each["missing"]:
        return f"not run: {each['missing'][who]} | – | –"
    timed = each["contenders"][who]
    ratio = "–" if who == OURS else spread(timed["times_ours"])
    return f"{timed['median']:.3f} | {ratio} | {timed['share_of_peak']:.0%}"


def spread(ratio: Mapping[str, float]) -> str:
    """Return a ratio with its least and greatest over the turns."""
    return f"{ratio['median']:.2f} [{ratio['least']:.2f}, {ratio['greatest']:.2f}]"


def small_clients(section: Section) -> Iterator[str]:
    """Yield what a small client costs beyond its arithmetic."""
    result = section["result"]
    costs = [
        f"{statistics.median(values):.2f} ms [{values[0]:.2f}, {values[-1]:.2f}] with {name}"
        for name, values in result["overhead_ms_per_client"].items()
    ]
    yield (
        f"{result['clients']:,} clients, {result['per_round']} a round, {result['examples']} "
        "images each (MLP 784-200-10): beyond its arithmetic "
        f"({result['arithmetic_ms_per_client']:.2f} ms) a client costs {' and '.join(costs)}."
    )


def aggregation(section: Section) -> Iterator[str]:
    """Yield the table of the rules: one row for each, one column for each size and threads."""
    cases = section["result"]
    names = dict.fromkeys(who for case in cases for who in (*case["timings"], *case["missing"]))
    heads = [f"m={c['clients']} d={c['numbers']:.1e} t={c['threads']}" for c in cases]
    yield f"| ms (x weighted mean) | {' | '.join(heads)} |"
    yield f"| --- |{' ---: |' * len(cases)}"
    for who in names:
        yield f"| {who} | " + " | ".join(_rule_cell(case, who) for case in cases) + " |"
    bandwidth = section["peaks"]["bandwidth"]
    shares = [
        f"{_least_seconds(case, bandwidth) / case['timings']['fedcrf CRF']['median']:.0%}"
        for case in cases
    ]
    yield f"| fedcrf CRF, of the limit | {' | '.join(shares)} |"
    if all("inference" in case for case in cases):
        inferred = [case["inference"] / case["timings"]["fedcrf CRF"]["median"] for case in cases]
        cells = (f"{share:.1%}" for share in inferred)
        yield f"| fedcrf CRF, of it affinities and mean field | {' | '.join(cells)} |"
    yield ""
    yield "The limit is every model read twice at the memory's bandwidth. Median of the turns;"
    yield "ratios to ours and their spread are in `benchmarks.json`."


def _rule_cell(case: Mapping[str, Any], who: str) -> str:
    if who in case["missing"]:
        return f"not run: {case['missing'][who]}"
    if who not in case["timings"]:
        return "–"
    timed = case["timings"][who]
    return f"{1e3 * timed['median']:.1f} ({timed['times_weighted_mean']['median']:.2f})"


def _least_seconds(case: Mapping[str, Any], bandwidth: Mapping[str, float]) -> float:
    least_bytes = 4.0 * case["numbers"] * (2 * case["clients"] + 2)
    return least_bytes / bandwidth[str(case["threads"])]


def growth(section: Section) -> Iterator[str]:
    """Yield the curves as tables."""
    for key, what in (("over_clients", "clients"), ("over_numbers", "numbers")):
        points = section["result"][key]
        yield f"| {what} | fedcrf CRF, ms | ns a number of a client | x weighted mean |"
        yield "| ---: | ---: | ---: | ---: |"
        for point in points:
            ours, mean = point["medians"]["fedcrf CRF"], point["medians"]["weighted mean"]
            each = 1e9 * ours / point["clients"] / point["numbers"]
            yield f"| {point[what]:,} | {1e3 * ours:.1f} | {each:.3f} | {ours / mean:.2f} |"
        yield ""


def crowds(section: Section) -> Iterator[str]:
    """Yield the table of very many clients: time, memory, and what sketches find of the graph."""
    cases = section["result"]
    sizes = [each["numbers"] for each in cases[0]["sketches"]]
    heads = [f"recall, weights moved by {size}" for size in sizes]
    yield (
        "| clients | s | x weighted mean [least, greatest] | graph's share | peak, GiB | "
        f"{' | '.join(heads)} | exact neighbours for all pairs, weights moved |"
    )
    yield f"|{' ---: |' * (6 + len(heads))}"
    for case in cases:
        moved = case["all_pairs_moved"]
        cells = [
            f"{case['clients']:,}",
            f"{case['medians'][NEAREST]:.3f}",
            spread(case["times_weighted_mean"]),
            f"{case['graph_share']:.0%}",
            f"{case['peak_bytes'] / 2**30:.2f}",
            *(f"{each['recall']:.2f}, {each['weights_moved']:.3f}" for each in case["sketches"]),
            "–" if moved is None else f"{moved:.3f}",
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    first = cases[0]
    yield f"d = {first['numbers']:,}, {first['neighbours']} neighbours sought by sketches of"
    yield f"{sizes[0]} numbers, {first['threads']} threads; time grows as"
    yield f"m^{exponent(cases):.2f} from the smallest to the largest. Peak memory is that of the"
    yield "process, the updates in it. Recall is the share of the exact graph's pairs that are"
    yield "found, where many clients are about equally near; weights moved is the total variation"
    yield "from the exact graph's weights, and of those from the weights with all pairs."


def in_flower(section: Section) -> Iterator[str]:
    """Yield the table of the strategies: times, times Flower's FedAvg, peaks of memory."""
    cases = section["result"]
    heads = [f"t={case['threads']}, ms | x Flower FedAvg [least, greatest]" for case in cases]
    yield f"| m={cases[0]['clients']} d={cases[0]['numbers']:.1e} | {' | '.join(heads)} | peak |"
    yield f"| --- |{' ---: | ---: |' * len(cases)} ---: |"
    for who, last in cases[-1]["strategies"].items():
        each = [case["strategies"][who] for case in cases]
        cells = [f"{1e3 * one['median']:.1f} | {spread(one['times_fedavg'])}" for one in each]
        yield f"| {who} | {' | '.join(cells)} | {last['peak']:.2f} |"
    yield ""
    yield "The whole of `aggregate_train` on the same replies; the peak is of memory beyond the"
    yield "replies, in multiples of the model."


def in_byzfl(section: Section) -> Iterator[str]:
    """Yield the table of whole cells: seconds of either loop, and how many times ours."""
    cells = section["result"]
    yield "| attack | rule | fedcrf, s | ByzFL's loop, s | times ours |"
    yield "| --- | --- | ---: | ---: | ---: |"
    for each in cells:
        mine = f"{statistics.median(each['fedcrf_seconds']):.2f}"
        its, ratio = each["byzfl_seconds"], each["byzfl_times_ours"]
        theirs = "– | –" if its is None else f"{statistics.median(its):.2f} | {spread(ratio)}"
        yield f"| {each['attack']} | {each['rule']} | {mine} | {theirs} |"
    yield ""
    yield f"A cell of {cells[0]['rounds']} rounds with seed 1000 on one core, with evaluations and"
    yield "records. Ours trains 13 clients with an attack, ten without, and evaluates 22,000"
    yield "images; ByzFL's loop trains ten and evaluates 10,000."


SECTIONS: Mapping[str, tuple[str, Callable[[Section], Iterator[str]]]] = {
    "mnist-mlp": (MNIST_ROUND, rounds),
    "mnist-cnn": (
        "Convolutional network (two 5x5), 10 clients, 1,920 images, evaluation on 1,024",
        rounds,
    ),
    "cifar-resnet9": ("ResNet9 on 32x32, 4 clients, 128 images, evaluation on 32", rounds),
    "small-clients": ("Many small clients", small_clients),
    "aggregation": ("Aggregation", aggregation),
    "growth": ("Growth", growth),
    "crowds": ("Crowds", crowds),
    "flower": ("In Flower", in_flower),
    "flower-load": ("In Flower, 200 nodes", in_flower),
    "byzfl": ("In ByzFL's protocol", in_byzfl),
}
"""By name a section's title and what writes its lines, in the order of the page."""


def _machine(found: Found) -> str:
    first = next(iter(found.values()))
    peaks, origin = first["peaks"], first["provenance"]
    products = [f"{v / 1e9:.0f} GFLOP/s on {_cores(n)}" for n, v in peaks["product"].items()]
    reads = [f"{v / 1e9:.0f} GB/s on {_cores(n)}" for n, v in peaks["bandwidth"].items()]
    versions = ", ".join(
        f"{name} {number or 'not installed'}" for name, number in first["peers"].items()
    )
    return (
        f"{origin['processor']}, {origin['cores']} cores; torch {origin['torch']}, NumPy "
        f"{origin['numpy']}, Numba {origin['numba']}; {versions}. Measured peaks: "
        f"matrix product {' and '.join(products)}, memory read {' and '.join(reads)}."
    )


def _cores(number: str) -> str:
    return "1 core" if number == "1" else f"{number} cores"


def draw(found: Found, path: Path) -> None:
    """Draw the MNIST round by contender, and the aggregation's growth over clients and numbers."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")
    if "mnist-mlp" in found:
        _draw_rounds(axes[0], found["mnist-mlp"])
    if "growth" in found:
        for axis, key, label in (
            (axes[1], "over_clients", "clients m (d = 100,000)"),
            (axes[2], "over_numbers", "numbers d (m = 10)"),
        ):
            _draw_growth(axis, found["growth"]["result"][key], label)
    with atomic_write(path) as file:
        figure.savefig(file, dpi=150, format="png")
    plt.close(figure)


def _draw_rounds(axis: Any, section: Section) -> None:
    result = section["result"]
    names = list(next(iter(result.values()))["contenders"])
    height = 0.8 / len(result)
    for place, (cores, each) in enumerate(result.items()):
        timed = [each["contenders"].get(who) for who in names]
        medians = [t["median"] if t else 0.0 for t in timed]
        below = [t["median"] - min(t["seconds"]) if t else 0.0 for t in timed]
        above = [max(t["seconds"]) - t["median"] if t else 0.0 for t in timed]
        where = [number + (place - (len(result) - 1) / 2) * height for number in range(len(names))]
        color = f"C{place}"
        axis.barh(where, medians, height, label=_cores(cores), color=color, xerr=[below, above],
                  error_kw={"elinewidth": 1})  # fmt: skip
        floor = each["operations"] / section["peaks"]["product"][cores]
        axis.axvline(floor, color=color, linestyle=":", linewidth=1.2)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_xlabel("seconds a round (dotted: arithmetic at the measured peak)")
    axis.set_title("MNIST round, 10 clients, MLP")
    axis.set_xlim(right=1.3 * axis.get_xlim()[1])  # beside the longest bar
    axis.legend(loc="lower right")


def _draw_growth(axis: Any, points: list[Mapping[str, Any]], label: str) -> None:
    what = "clients" if label.startswith("clients") else "numbers"
    for who in ("fedcrf CRF", "weighted mean"):
        each = [1e9 * p["medians"][who] / p["clients"] / p["numbers"] for p in points]
        axis.plot([p[what] for p in points], each, marker="o", label=who)
    axis.set(xscale="log", yscale="log", xlabel=label, ylabel="ns a number of a client")
    axis.set_title(f"Aggregation, {points[0]['threads']} threads")
    axis.grid(alpha=0.3)
    axis.legend()

"""The robust CRF once more: whole vectors instead of sketches, loops over Python floats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from paper.reference import Vector, dot, norm


def minus(a: Vector, b: Vector) -> list[float]:
    return [x - y for x, y in zip(a, b, strict=True)]


def cosine(a: Vector, b: Vector) -> float:
    """Return the cosine; 0 where a vector is 0."""
    lengths = norm(a) * norm(b)
    return dot(a, b) / lengths if lengths else 0.0


def usual(values: Iterable[float]) -> tuple[float, float]:
    """The median, and the median distance to it of what is not above; 0 and 0 of nothing."""
    known = list(values)
    if not known:
        return 0.0, 0.0
    middle = median(known)
    return middle, median(middle - value for value in known if value <= middle)


def reported_trust(
    values: Sequence[float | None],
    threshold: float = 1.0,
    softening: float = 0.55,
    strength: float = 6.0,
    limit: float = 6.0,
) -> list[float]:
    """exp(−min(limit, strength·max(0, z − threshold))); 1 where nothing is reported."""
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return [1.0] * len(values)
    middle = median(known)
    spread = median(abs(value - middle) for value in known) + softening
    return [
        1.0
        if value is None or not math.isfinite(value)
        else math.exp(-min(limit, strength * max(0.0, (value - middle) / spread - threshold)))
        for value in values
    ]


@dataclass
class History:
    """A client's average updates and those of the model it started from; and the ones before."""

    first: int
    last: int
    rounds: int
    update: Vector
    position: Vector
    earlier_update: Vector | None = None
    earlier_position: Vector | None = None

    def held(self, window: float, number: int) -> float:
        """How many of its rounds lie in a window that ends with round ``number``."""
        if self.rounds == 1:
            return 1.0
        return min(self.rounds, max(1.0, window * (self.rounds - 1) / (number - self.first)))

    def then(self, update: Vector, position: Vector, window: float, number: int) -> History:
        """What it is after round ``number``."""
        after = replace(self, rounds=self.rounds + 1, last=number)
        share = 1 / after.held(window, number)
        before = 1 / min(after.held(window, number), self.rounds)
        return replace(
            after,
            update=towards(self.update, update, share),
            position=towards(self.position, position, share),
            earlier_update=towards(self.earlier_update, self.update, before),
            earlier_position=towards(self.earlier_position, self.position, before),
        )


def towards(mean: Vector | None, value: Vector, share: float) -> Vector:
    """Part of the way from a mean to a value; the value where there is no mean."""
    if mean is None:
        return value
    return [(1 - share) * a + share * b for a, b in zip(mean, value, strict=True)]


def slowly(values: Sequence[float], most: float) -> float:
    """The mean of numbers, of which each counts 1/n, and 1/most at least."""
    mean = 0.0
    for number, value in enumerate(values, 1):
        mean += (value - mean) / min(most, number)
    return mean


@dataclass
class SlowRobust:
    """One federation's server, with the defaults of the settings unless told otherwise."""

    labels: Sequence[float] = (0.0, 0.25, 1.0)
    tolerance: float = 1.0
    prior_log_odds: float = 2.0
    persistence: float = 0.9
    longest_window: float = 10.0
    opposition_strength: float = 2.0
    vote_power: float = 32.0
    large_round: float = 10.0
    copy_power: float = 100.0
    norm_strength: float = 8.0
    norm_exponent: float = 0.7
    response_strength: float = 10.0
    consistency_strength: float = 10.0
    camp_strength: float = 8.0
    clip: float = 2.0
    counts: str = "claimed"
    count_cap: float = 3.0
    trust_floor: float = 0.15
    iterations: int = 30
    damping: float = 0.5
    last: dict[Any, list[float]] = field(default_factory=dict)
    credit: dict[Any, float] = field(default_factory=dict)
    history: dict[Any, History] = field(default_factory=dict)
    window: float = 1.0
    number: int = 0
    middles: list[float] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)
    jumps: list[float] = field(default_factory=list)
    response: dict[Any, float] = field(default_factory=dict)
    steadiness: dict[Any, float] = field(default_factory=dict)
    goal: dict[Any, float] = field(default_factory=dict)

    def round(
        self,
        model: Vector,
        updates: Mapping[Any, Vector],
        counts: Mapping[Any, float],
        reported: Mapping[Any, float] | None = None,
    ) -> tuple[dict[Any, float], list[float]]:
        """Return the weights of the clients, by identity, and the next model."""
        present = [c for c in updates if all(map(math.isfinite, updates[c]))]
        lengths = {c: norm(updates[c]) for c in present}
        self.number += bool(present)
        for c in present:
            self.history[c] = (
                self.history[c].then(updates[c], model, self.window, self.number)
                if c in self.history
                else History(self.number, self.number, 1, updates[c], model)
            )
        held = {c: self.history[c].held(self.window, self.number) for c in present}
        few = self._few(present)
        absent = [
            c
            for c, each in self.history.items()
            if c not in present and each.last >= self.number - self.longest_window and few == 1
        ]
        voters = [*present, *absent]
        mean = {c: self.history[c].update for c in voters}
        norms = {c: norm(mean[c]) for c in present}
        alike = {(i, j): cosine(mean[i], mean[j]) for i in voters for j in voters}
        same = {(i, j): cosine(updates[i], updates[j]) for i in present for j in present}
        vote, copies = (
            {
                j: 1 / (1 + sum(max(0.0, near[i, j]) ** power for i in among if i != j))
                for j in among
            }
            for near, power, among in (
                (alike, self.vote_power, voters),
                (same, self.copy_power, present),
            )
        )
        own = dict(zip(present, reported_trust([(reported or {}).get(c) for c in present])))  # noqa: B905
        credited = [c for c in present if own[c] >= 0.5]
        prior = self._normalised([math.exp(self.prior_log_odds * q) for q in self.labels])
        energy = {}
        silent = self._answers(present)
        examples, sizes = self._counted({c: counts[c] for c in present}, norms)
        agrees = self._agrees(present, alike)
        grown = self._grown(present)
        factor = {c: 2 if agrees[c] and c not in grown else 1 for c in present}
        long = self._norms(held, norms, examples, factor)

        def opposition(trust: dict) -> dict:
            """What each meets beyond the median, and what of it is tolerated."""
            met = dict.fromkeys(voters, 0.0)
            for i, j in ((i, j) for i in voters for j in voters if i != j):
                against = -alike[i, j] if alike[i, j] < 0 else -(1 - part) * alike[i, j]
                met[i] += part * against * own.get(j, 1.0) * vote[j] * {**trust, **elsewhere}[j]
            middle, deviation = usual(met[i] for i in [*credited, *absent])
            crowded = (1 - few) * 4 * self.tolerance * deviation
            settled = few * self.tolerance / 2
            return {
                i: (
                    met[i] - middle,
                    max(-middle, settled * math.sqrt(max(1.0, sizes[i])) + crowded),
                )
                for i in present
            }

        start = {c: list(prior) for c in present}
        for c in self.last.keys() & start.keys():
            stay = self.persistence ** (1 / held[c])
            start[c] = [stay * b + (1 - stay) * p for b, p in zip(self.last[c], prior, strict=True)]
        elsewhere = {c: self.credit[c] * dot(self.last[c], self.labels) for c in absent}
        votes = sum(vote[c] * elsewhere[c] for c in absent)
        votes += sum(vote[c] * dot(start[c], self.labels) for c in present)
        part = min(1.0, 10 * dot(prior, self.labels) / votes) if absent else few
        counted = {
            c: dot(start[c], self.labels)
            / sum(max(0.0, alike[i, c]) ** self.copy_power if i != c else 1.0 for i in present)
            for c in credited
        }
        lighter = self._lighter(alike, counted, 1 - few)
        turned = self._turned(present)
        distant = self._distant(present)
        for c in present:
            energy[c] = [
                -math.log(p + 1e-12)
                + self.response_strength * q * silent[c] / held[c]
                + self.consistency_strength * q * turned[c] / held[c]
                + self.norm_strength * q * distant[c] / held[c]
                + self.camp_strength * q * lighter.get(c, 0.0) / held[c]
                for p, q in zip(start[c], self.labels, strict=True)
            ]
        belief = dict(start)
        for _ in range(self.iterations):
            against = opposition({c: dot(belief[c], self.labels) for c in present})
            renewed = {}
            for i in present:
                beyond, tolerated = against[i]
                opposed = max(0.0, beyond - tolerated) / held[i]
                clearly = 2 * beyond / tolerated - 1 if tolerated else float(beyond > 0)
                heard = min(1.0, max(0.0, clearly, 2 * start[i][0] - 1, grown.get(i, 1.0)))
                heard /= held[i]
                fresh = self._normalised(
                    [
                        math.exp(
                            -e
                            - 2 * self.opposition_strength * q * opposed
                            - self.norm_strength * q * heard * long[i]
                        )
                        for e, q in zip(energy[i], self.labels, strict=True)
                    ]
                )
                renewed[i] = [
                    self.damping * old + (1 - self.damping) * new
                    for old, new in zip(belief[i], fresh, strict=True)
                ]
            belief = renewed
        trusted = {c: dot(belief[c], self.labels) for c in present}
        share = {c: examples[c] * copies[c] * trusted[c] * own[c] for c in present}
        total = sum(share.values())
        least = self.trust_floor * dot(prior, self.labels)
        stays = bool(total) and total < least * sum(examples[c] * copies[c] for c in present)
        if stays:
            total = 0.0
            others = self.last.keys() - updates.keys()
            if any(dot(self.last[c], self.labels) >= least for c in others):
                for c in self.last.keys() & belief.keys():
                    belief[c] = min(belief[c], self.last[c], key=lambda b: dot(b, self.labels))
        weights = {c: share.get(c, 0.0) / total if total else 0.0 for c in updates}
        after = list(model)
        self.credit |= own
        for c in present:
            self.last[c] = belief[c]
            most = self.clip * median(lengths.values()) * math.sqrt(held[c])
            clip = min(1.0, most / lengths[c]) if lengths[c] else 1.0
            for place, number in enumerate(updates[c]):
                after[place] += weights[c] * clip * number
        self._find_window()
        return weights, after

    def _find_window(self) -> None:
        """Longer where clients respond less clearly than they scatter, over clients and rounds."""
        most, known = self.longest_window, list(self.response.values())
        if len(known) < 3:
            return
        middle, before = median(known), slowly(self.middles, most)
        if self.middles:
            self.jumps.append((middle - before) ** 2)
        self.middles.append(middle)
        self.deviations.append((1.4826 * median(abs(r - middle) for r in known)) ** 2)
        if len(self.middles) < 2:
            return
        noise = math.sqrt(slowly(self.jumps, most) + slowly(self.deviations, most))
        clear = max(0.0, -slowly(self.middles, most)) / noise if noise else math.inf
        wanted = min(2.0, max(0.5, 2.25 / max(clear, 1e-3)))
        self.window = min(most, max(1.0, self.window * math.sqrt(wanted)))

    def _few(self, present: list) -> float:
        """The share of what counts of one client; less than all of it in a crowd."""
        return min(1.0, self.large_round / max(1, len(present)))

    def _counted(self, counts: dict, norms: dict) -> tuple[dict, dict]:
        """How many examples count of each, and how many times the median's it has."""
        held = [count for count in counts.values() if count]
        middle = median(held) if held else 1.0
        if self.counts == "attested":
            return counts, {c: count / middle for c, count in counts.items()}
        logs = {
            c: math.log(max(norms[c], 2.2250738585072014e-308))
            - self.norm_exponent * math.log(counts[c])
            for c in counts
            if counts[c]
        }
        usual_log = median(logs.values()) if logs else 0.0
        answered = median(self.response.values()) if self.response else 0.0
        believed, sized = {}, {}
        for c, count in counts.items():
            most = middle
            asked = max(0.0, 1 - 0.75 * self.tolerance) * answered
            if answered < 0 and count and self.response.get(c, math.inf) < asked:
                most = count * math.exp((logs[c] - usual_log) / self.norm_exponent)
            believed[c], sized[c] = min(count, self.count_cap * most), min(count, most)
        held = [each for each in sized.values() if each]
        return believed, {c: each / median(held) if held else 0.0 for c, each in sized.items()}

    def _agrees(self, present: list, alike: dict) -> dict:
        """Whether most others agree with each as much as half of what is usual."""
        if len(present) < 2:
            return dict.fromkeys(present, False)
        agreement = {i: median(alike[i, j] for j in present if i != j) for i in present}
        least = max(0.0, 1 - self.tolerance / 2) * median(agreement.values())
        return {i: agreement[i] >= least and median(agreement.values()) > 0 for i in present}

    def _norms(self, held: dict, norms: dict, examples: dict, factor: dict) -> dict:
        z = {
            c: math.log(max(norms[c], 2.2250738585072014e-308))
            - self.norm_exponent * math.log(examples[c])
            for c in held
            if examples[c] > 0
        }
        middle, deviation = usual(z.values())
        beyond = {
            c: z.get(c, middle)
            - middle
            - self.tolerance * max(1, 4 * deviation) * factor[c]
            - math.log(k) / 2
            for c, k in held.items()
        }
        return {c: min(2.0, max(0.0, each)) for c, each in beyond.items()}

    def _grown(self, present: list) -> dict:
        """How much longer each has become than the median has, in tolerances; not of new ones."""
        grown = {
            c: math.log(norm(each.update) / norm(each.earlier_update))
            for c in present
            if (each := self.history[c]).earlier_update is not None
            and norm(each.update)
            and norm(each.earlier_update)
        }
        middle = median(grown.values()) if grown else 0.0
        return {c: (each - middle) / max(self.tolerance, 1e-300) for c, each in grown.items()}

    def _answers(self, present: list) -> dict:
        self.response = {}
        for c in present:
            past = self.history[c]
            if past.earlier_update is not None:
                moved = minus(past.position, past.earlier_position)
                if norm(moved):
                    self.response[c] = cosine(minus(past.update, past.earlier_update), moved)
        middle, deviation = usual(self.response.values())
        if middle >= 0:
            return dict.fromkeys(present, 0.0)
        share, crowded = max(0.0, 1 - 0.75 * self.tolerance), 1 - self._few(present)
        expected = max(share * middle, middle + crowded * 4 * self.tolerance * deviation)
        return {
            c: max(0.0, self.response[c] - expected) if c in self.response else 0.0 for c in present
        }

    def _turned(self, present: list) -> dict:
        past = {c: self.history[c] for c in present}
        self.steadiness = {
            c: cosine(each.update, each.earlier_update)
            for c, each in past.items()
            if each.earlier_update is not None
        }
        middle, deviation = usual(-value for value in self.steadiness.values())
        crowded = 1 - self._few(present)
        missing = min(1, self.tolerance / 2) * (1 - crowded / 2) * abs(middle)
        expected = -middle - max(missing, crowded * 4 * self.tolerance * deviation)
        return {
            c: max(0.0, expected - self.steadiness[c]) if c in self.steadiness else 0.0
            for c in present
        }

    def _distant(self, present: list) -> dict:
        """How many times as far as the median's is the point where a line would meet zero."""
        far = {}
        for c in present:
            past = self.history[c]
            if past.earlier_update is None:
                continue
            step = norm(minus(past.position, past.earlier_position))
            change = norm(minus(past.update, past.earlier_update))
            if step and change and norm(past.update):
                far[c] = norm(past.update) * step / change
        middle = math.exp(median(map(math.log, far.values()))) if far else 1.0
        self.goal = {c: math.log(each / middle) for c, each in far.items()}
        return {c: min(2.0, max(0.0, self.goal.get(c, 0.0) - self.tolerance)) for c in present}

    def _lighter(self, alike: dict, counted: dict, crowded: float) -> dict:
        """How clearly the clients are two camps, of those in the lighter one."""
        judges = list(counted)
        if crowded == 0 or len(judges) < 2:
            return {}
        near = {(i, j): counted[i] * counted[j] * alike[i, j] for i in judges for j in judges}
        loudest = sorted(judges, key=lambda j: -sum(abs(near[i, j]) for i in judges))
        best, camps = -math.inf, {}
        for start in loudest[:16]:
            sides = {i: -1 if near[i, start] < 0 else 1 for i in judges}
            for _ in range(4):
                pull = {i: sum(near[i, j] * sides[j] for j in judges) for i in judges}
                sides = {i: -1 if pull[i] < 0 else 1 for i in judges}
            total = sum(near[i, j] * sides[i] * sides[j] for i in judges for j in judges)
            if total > best:
                best, camps = total, sides
        clear = []
        for i in judges:
            own = [j for j in judges if j != i and camps[j] == camps[i]]
            other = [j for j in judges if camps[j] != camps[i]]
            agrees = self._errors([(counted[j], alike[i, j]) for j in own])
            clear.append(min(agrees, self._errors([(counted[j], -alike[i, j]) for j in other])))
        evidence = min(2.0, max(0.0, sorted(clear)[len(judges) // 10] - self.tolerance))
        whole = sum(counted.values())
        kinds = best / whole**2  # 1 where there is one direction, 1/2 where there are three kinds
        evidence *= max(0.0, 1 - 2 * kinds)
        heavy = sum(counted[c] * camps[c] for c in judges)
        lighter = [c for c in judges if camps[c] * heavy < 0]
        return dict.fromkeys(lighter, crowded * evidence) if len(lighter) > 1 else {}

    @staticmethod
    def _errors(values: list[tuple[float, float]]) -> float:
        """The weighted mean of numbers, in its standard errors; of nothing 0."""
        if not values:
            return 0.0
        whole = sum(weight for weight, _ in values)
        mean = sum(weight * value for weight, value in values) / whole
        squares = sum((weight * (value - mean)) ** 2 for weight, value in values)
        return mean / max(math.sqrt(squares) / whole, 1e-12)

    @staticmethod
    def _normalised(values: list[float]) -> list[float]:
        return [value / sum(values) for value in values]

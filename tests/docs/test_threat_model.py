"""Each line of the threat model names tests and published tables that are there."""

from __future__ import annotations

import re

import numpy as np

from docs.test_docs import DOCS, page_text
from fedcrf.rules import CRFRobust
from integrations.hostile import COUNT, Answer, server_of

ROOT = DOCS.parent
TEST = re.compile(r"`(test_\w+\.py)::(\w+)`")
ROW = re.compile(r"\]\((\.\./results/[^)]+)\): \*([^*]+)\*")
LINK = re.compile(r"\]\(([^)#:]+)[)#]")


def lines(section: str) -> list[str]:
    """Return the rows of a section's table."""
    text = page_text("threat-model").split(f"## {section}\n")[1].split("\n## ")[0]
    return [line for line in text.splitlines() if line.startswith("| ")][1:]


def test_every_line_names_what_shows_it() -> None:
    rows = [*lines("What a client may lie about"), *lines("The server's own files")]
    assert len(rows) > 20
    for row in rows:
        shown = row.rstrip("| ").rpartition(" | ")[2]
        assert TEST.search(shown) or ROW.search(shown), row


def test_what_is_named_is_there() -> None:
    text = page_text("threat-model")
    for file, name in TEST.findall(text):
        (path,) = (ROOT / "tests").rglob(file)
        assert re.search(rf"^(def {name}\(|{name} = )", path.read_text("utf-8"), re.M), name
    for target, row in ROW.findall(text):
        assert f"\n| {row} |" in (DOCS / target).read_text("utf-8"), row
    for target in LINK.findall(text):
        assert (DOCS / target).exists(), target


def test_a_majority_decides() -> None:
    # Six of ten clients have another goal than the rest. To a server they are the honest ones.
    draws = np.random.default_rng(0)
    aim = draws.normal(size=60)
    goals = [(1 if node < 4 else -1) * aim + 0.3 * draws.normal(size=60) for node in range(10)]
    server, model = server_of(CRFRobust(sketch_seed=1)), {"w": np.zeros(60)}
    for number in range(1, 9):
        server.begin_round(number, model, range(10))
        after = [model["w"] + 0.3 * (goal - model["w"]) for goal in goals]
        answers = [
            Answer(node, {"metrics": {COUNT: 10}, "model": {"w": each}})
            for node, each in enumerate(after)
        ]
        decision, state = server.decide(answers, COUNT)
        model = model if decision.kept_reason is not None else dict(state)
        server.finish(decision, model)
    assert np.dot(model["w"], aim) < 0
    assert sum(decision.shares[4:]) > sum(decision.shares[:4])

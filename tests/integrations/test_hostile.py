"""A server among random and hostile replies, restarts, and damage of what it keeps.

``FEDCRF_FUZZ_ROUNDS=100000 pytest tests/integrations/test_hostile.py -k fuzz -s`` runs as many
rounds of the fuzz and prints what happened in them.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from fedcrf.errors import FedcrfError
from fedcrf.experiments.recorded import recorded_runs
from fedcrf.integrations.checkpoint import RULE, Checkpoint
from fedcrf.integrations.server import RuleServer
from fedcrf.rules import (
    CRF,
    RULES,
    Adam,
    CRFRobust,
    FedAvg,
    FoolsGold,
    Memory,
    Momentum,
    Optimized,
    Rule,
)
from integrations.hostile import (
    COUNT,
    MANY,
    ODD_NUMBERS,
    USABLE,
    Answer,
    Rng,
    Seen,
    a_model,
    an_answer,
    check_round,
    server_of,
)

FUZZ_ROUNDS = int(os.environ.get("FEDCRF_FUZZ_ROUNDS", "400"))
MODEL = {"w": np.zeros(6, np.float32), "steps": np.array(3)}
RUN = 8
"""Rounds of a run, after which there are another model and another rule."""


def a_rule(number: int) -> Rule:
    """Return each rule in turn, and server optimizers behind some."""
    name = [*USABLE, "adam", "momentum"][number % (len(USABLE) + 2)]
    if name in RULES:
        return RULES[name]()
    return Optimized(FedAvg(), Adam()) if name == "adam" else Optimized(FedAvg(), Momentum())


def damaged(memory: Mapping[str, Any], others: Mapping[str, Any], rng: Rng) -> dict[str, Any]:
    """Return a memory in which one array is another, or all arrays of another run's rule are."""
    if rng.random() < 0.2:
        of_rule = {name: array for name, array in others.items() if name.startswith(RULE)}
        return {
            name: array for name, array in memory.items() if not name.startswith(RULE)
        } | of_rule
    name = str(rng.choice([*memory]))
    array = np.array(memory[name])
    with np.errstate(all="ignore"):
        odd = np.float64(ODD_NUMBERS[rng.integers(len(ODD_NUMBERS))])
        changes = (
            lambda: array[..., None],
            lambda: array.reshape(-1)[:-1],
            lambda: array.astype("U9"),
            lambda: np.full(array.shape, odd),
            lambda: np.full(array.shape, odd).astype(array.dtype),
            lambda: np.array(3),
            lambda: -array if array.dtype.kind in "if" else array,
            lambda: np.concatenate([array.reshape(-1)] * 2),
        )
        changed = dict(memory)
        if rng.random() < 0.1:
            del changed[name]
        else:
            changed[name] = changes[rng.integers(len(changes))]()
    return changed


def fuzz_round(
    server: RuleServer,
    number: int,
    model: Mapping[str, Any],
    rng: Rng,
    hostile: float,
    tampered: bool,
) -> tuple[Mapping[str, Any], bool, int]:
    """Run a round; return the next model, whether it was kept, and how many were excluded."""
    nodes = [int(node) for node in rng.permutation(12)[: rng.integers(0, 9)]]
    server.begin_round(number, model, nodes)
    answers: list[Any] = []
    for node in [node for node in nodes if rng.random() < 0.9]:
        others = [each.content["model"] for each in answers if "model" in each.content]
        answers.append(an_answer(node, model, others, rng, hostile))
    if answers and rng.random() < 0.1:  # one replies twice
        answers.append(an_answer(answers[0].node, model, [], rng, hostile))
    decision, state = server.decide(answers, COUNT)
    after = model if decision.kept_reason is not None else state
    check_round(model, after, decision, server, tampered=tampered)
    server.finish(decision, after)
    for metrics in server.evaluations(answers, COUNT):
        server.evaluated(number, metrics["metrics"], by_clients=True)
    return after, decision.kept_reason is not None, len(decision.excluded)


def fuzz_run(number: int, rounds: int, seen: Seen, others: Mapping[str, Any]) -> Memory:
    """Run some rounds with one rule, which is perhaps begun again; return its memory.

    It begins with its memory, with a damaged one, or with the memory of other clients.
    """
    rng = np.random.default_rng([20, number])
    rule, model = a_rule(number), a_model(rng)
    hostile = float(rng.choice([0.0, 0.3, 0.6, 1.0]))
    server, at, tampered = server_of(rule), 0, False
    for _ in range(rounds):
        try:
            if at and rng.random() < 0.2:  # it begins again, perhaps with a damaged memory
                memory, at = server.memory, 0
                if rng.random() < 0.5:
                    memory, tampered = damaged(memory, others, rng), True
                server = server_of(rule, memory=memory)
            at += 1
            model, kept, excluded = fuzz_round(server, at, model, rng, hostile, tampered)
            seen.kept += kept
            seen.excluded += excluded
        except FedcrfError as error:
            said = str(error)
            assert said.isprintable(), said
            seen.refused += 1
            seen.reasons.add(said.partition(":")[0][:40])
            server, at, tampered = server_of(rule), 0, False
        except Exception as error:
            error.add_note(f"run {number}: {rule}, hostile {hostile}")
            raise
        seen.rounds += 1
    return server.memory


@pytest.mark.filterwarnings("default::RuntimeWarning")  # a server goes on where numbers overflow
def test_fuzz() -> None:
    seen, number, memory = Seen(), 0, {}
    while seen.rounds < FUZZ_ROUNDS:
        memory = fuzz_run(number, RUN, seen, memory)
        number += 1
    print(seen)
    assert seen.kept < seen.rounds / 2
    assert seen.excluded > seen.rounds / 2
    assert seen.refused > 0


def test_a_node_that_replies_twice_is_excluded() -> None:
    server, rng = server_of(FedAvg()), np.random.default_rng(0)
    server.begin_round(1, MODEL, [1, 2, 3])
    answers = [an_answer(node, MODEL, [], rng, 0.0) for node in (2, 1, 3, 1)]
    decision, state = server.decide(answers, COUNT)
    assert [reply.node for reply in decision.replies] == [2, 3]
    assert [(each.node, each.reason) for each in decision.excluded] == [(1, "replied 2 times")]
    huge = [Answer(node, {"metrics": {COUNT: MANY}, "model": MODEL}) for node in (1, 2)]
    server.begin_round(2, state, [1, 2])
    decision, _ = server.decide(huge, COUNT)
    assert decision.replies == []
    assert all("which must be above 0" in each.reason or "…" in each.reason
               for each in decision.excluded)  # fmt: skip


def checkpointed(rule: Rule, path: Path) -> Checkpoint:
    """Return the checkpoint of a server after a round."""
    server = server_of(rule, checkpoint_to=path)
    fuzz_round(server, 1, MODEL, np.random.default_rng(2), 0.0, tampered=False)
    return Checkpoint.load(path)


def unharmed(path: Path, sound: Checkpoint) -> bool:
    """Tell whether a damaged checkpoint is read as it was; otherwise it is refused."""
    try:
        other = Checkpoint.load(path)
    except FedcrfError as error:
        said = str(error)
    else:
        assert same(other, sound)
        return True
    assert said.startswith(f"checkpoint {path} cannot be read: ")
    return False


def same(one: Checkpoint, other: Checkpoint) -> bool:
    def bits(found: Checkpoint) -> Sequence[Mapping[str, Any]]:  # a memory may hold NaN
        return [
            {name: (each.dtype, each.shape, each.tobytes()) for name, each in part.items()}
            for part in (found.model, found.memory)
        ]

    return (one.round, one.run, bits(one)) == (other.round, other.run, bits(other))


def test_a_flipped_bit_of_a_checkpoint_is_found_or_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.npz"
    sound, whole = checkpointed(CRF(), path), path.read_bytes()
    # In the archive's list of arrays, such a bit makes a comment of all that follows.
    hiding = [each.start() + 32 for each in re.finditer(b"PK\x01\x02", whole)]
    places = [*range(0, len(whole), 11), *hiding]
    harmless = 0
    for number, at in enumerate(places):
        flipped = bytes([whole[at] ^ (1 << number % 8)])
        path.write_bytes(whole[:at] + flipped + whole[at + 1 :])
        harmless += unharmed(path, sound)
    assert 0 < harmless < len(places) / 2


SERVED = (CRFRobust(sketch_seed=1), CRF(), FoolsGold(), Optimized(FedAvg(), Adam()))
NODES = range(1, 8)


class Rounds(RuleBasedStateMachine):
    """A server that is stopped and begins again, beside a twin that never stops.

    Nodes come and go; some are hostile, and some claim to be others. The checkpoint is damaged.
    Whatever happens in whatever order, the two have the same models to the bit, a node is the same
    client for ever, and damage is found.
    """

    @initialize(rule=st.sampled_from(SERVED))
    def begins(self, rule: Rule) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "run.npz"
        self.rule, self.done, self.clients = rule, 0, dict[int, int]()
        self.model: Mapping[str, Any] = MODEL
        self.server, self.at = self._another(), 0
        self.twin, self.twin_at = server_of(rule), 0

    def _another(self) -> RuleServer:
        places = {"checkpoint_to": self.path, "record_to": self.folder / "runs"}
        return server_of(self.rule, **places)

    @rule(
        nodes=st.lists(st.sampled_from(NODES), min_size=1, unique=True),
        hostile=st.sets(st.sampled_from(NODES)),
        claimed=st.none() | st.sampled_from(NODES),
        killed=st.booleans(),
        seed=st.integers(0, 99),
    )
    def a_round(
        self, nodes: list[int], hostile: set[int], claimed: int | None, killed: bool, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        answers = [an_answer(node, self.model, [], rng, float(node in hostile)) for node in nodes]
        for answer in answers:
            if "metrics" in answer.content:
                answer.content["metrics"]["partition-id"] = answer.node
        honest = [node for node in nodes if node not in hostile]
        # A node that is new gives the partition of one that is there. (Of one that is not heard of
        # since a restart it gets it: nodes without keys have new ids.)
        if claimed in honest and claimed in self.twin.memory["nodes"]:
            answers.append(an_answer(100 + seed, self.model, [], rng, 0.0))
            answers[-1].content["metrics"]["partition-id"] = claimed
        if killed:  # after the decision, before it was saved
            self.server.begin_round(self.at + 1, self.model, nodes)
            self.server.decide(answers, COUNT)
            self.begins_again()
        after = self._round_of(self.server, self.at + 1, answers)
        expected = self._round_of(self.twin, self.twin_at + 1, answers)
        self.at, self.twin_at, self.done = self.at + 1, self.twin_at + 1, self.done + 1
        assert (after is None) == (expected is None)
        if after is None or expected is None:  # both runs have ended, and go on from what they kept
            self.begins_again()
            self.twin, self.twin_at = server_of(self.rule, memory=self.twin.memory), 0
            return
        for name, array in expected.items():
            assert np.array_equal(after[name], array)
        self.model = after

    def _round_of(
        self, server: RuleServer, number: int, answers: Sequence[Any]
    ) -> Mapping[str, Any] | None:
        """Return the next model; None where the run has ended."""
        server.begin_round(number, self.model, [answer.node for answer in answers])
        decision, state = server.decide(answers, COUNT)
        after = self.model if decision.kept_reason is not None else state
        check_round(self.model, after, decision, server)
        try:
            server.finish(decision, after)
        except FedcrfError as error:
            said = str(error)
        else:
            return after
        assert "had no usable reply, and the run ends" in said
        return None

    @precondition(lambda self: self.done)
    @rule()
    def begins_again(self) -> None:
        self.server, self.at = self._another(), 0
        self.twin._unusable = 0  # rounds without a usable reply are counted within one start
        saved = self.server.saved()
        assert (saved is None) == (self.done == 0)
        if saved is not None:
            assert saved.round == self.done
            assert all(np.array_equal(saved.model[name], self.model[name]) for name in MODEL)
            self.server.go_on(saved, MODEL)

    @precondition(lambda self: self.done)
    @rule(
        place=st.floats(0, 1, exclude_max=True),
        bit=st.integers(0, 7),
        kind=st.sampled_from(["bit", "cut", "zeros", "more", "none"]),
    )
    def its_checkpoint_is_damaged(self, place: float, bit: int, kind: str) -> None:
        whole = self.path.read_bytes()
        sound = Checkpoint.load(self.path)
        at = int(place * len(whole))
        flipped = bytes([whole[at] ^ (1 << bit)])
        damage = {
            "bit": whole[:at] + flipped + whole[at + 1 :],
            "cut": whole[:at],
            "zeros": whole[:at] + bytes(len(whole) - at),
            "more": whole + whole[at:],
            "none": b"",
        }
        self.path.write_bytes(damage[kind])
        assert unharmed(self.path, sound) <= (kind not in ("cut", "none"))  # not all bits are read
        self.path.write_bytes(whole)

    @invariant()
    def a_node_is_the_same_client_for_ever(self) -> None:
        for server in (self.server, self.twin):
            memory = server.memory
            now = dict(zip(memory["nodes"].tolist(), memory["clients"].tolist(), strict=True))
            assert len({*now.values()}) == len(now)
        if self.at:  # one that begins again reads what it kept in its first round
            assert now.items() >= self.clients.items()
            self.clients = now

    def teardown(self) -> None:
        if not hasattr(self, "folder"):
            return
        if self.done:
            runs = recorded_runs(self.folder / "runs").values()
            written = [[each.round for each in run.records()] for run in runs]
            # One that was killed in its first round has nothing to go on from.
            assert [each for each in written if each] == [list(range(1, self.done + 1))]
        shutil.rmtree(self.folder)


TestRounds = Rounds.TestCase
TestRounds.settings = settings(deadline=None, max_examples=25, stateful_step_count=15)

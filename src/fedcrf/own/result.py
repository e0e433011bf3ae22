"""What a simulation of a user's came to."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fedcrf.checks import check_path, current_names, is_number
from fedcrf.errors import FedcrfError, unknown_name
from fedcrf.extras import check_installed, naming_extras

with naming_extras():
    import pandas as pd
    from rich.console import Console
    from torch import Tensor

from fedcrf.experiments.recorded import Description, RecordedRun
from fedcrf.experiments.store import Course
from fedcrf.report.effects import effects_of, verdicts_of
from fedcrf.report.explanation import CUT, WIDTH, find_round, in_words, reason_in_words
from fedcrf.simulation.records import RoundRecord, Rounds


@dataclass(frozen=True, eq=False)
class SimulationResult:
    """What a simulation came to.

    Attributes:
        model: The network's ``state_dict`` after the last round; what sites keep to themselves is
            as it was initialised.
        sites: Their names, or numbers.
        records: What happened in each round.
        description: What was run.
        personal: By site the tensors that it kept to itself.
    """

    model: Mapping[str, Tensor]
    sites: Sequence[int | str]
    records: Rounds
    description: Description
    personal: Mapping[int | str, Mapping[str, Tensor]] = field(default_factory=dict)

    def model_of(self, site: int | str) -> dict[str, Tensor]:
        """Return the ``state_dict`` of a site: the model, with what the site kept to itself."""
        return {**self.model, **self.personal[self._site(site)]}

    @property
    def metrics(self) -> pd.DataFrame:
        """By round: the training loss, and loss and metrics of validation and test.

        There is no accuracy where none is measured, and nothing of a test where there is none.
        """
        rows = []
        for record in self.records:
            row = {"training_loss": record.training_loss}
            for name in ("validation", "test"):
                measured = getattr(record, name)
                row |= {f"{name}_loss": measured.loss, f"{name}_accuracy": measured.accuracy}
                others = (record.metrics or {}).get(name, {})
                row |= {f"{name}_{other}": value for other, value in others.items()}
            rows.append(row)
        frame = pd.DataFrame(rows, index=self._rounds)
        absent = {"validation_accuracy", "test_accuracy"}
        of_test = [name for name in frame if name.startswith("test_")]
        if frame[of_test].isna().all(axis=None):
            absent.update(of_test)
        return frame.drop(columns=[name for name in absent if frame[name].isna().all()])

    @property
    def trust(self) -> pd.DataFrame:
        """Rounds × sites: the trust that the rule inferred; NaN where it infers none."""
        return self._by_site(lambda record: record.reasons.trust if record.reasons else [])

    @property
    def weights(self) -> pd.DataFrame:
        """Rounds × sites: each site's share of the model."""
        return self._by_site(lambda record: record.weight)

    def table(self) -> pd.DataFrame:
        """Return a row for each site: its weight in its last round, and whether it is trusted.

        ``since_round`` is the first round of the present doubt, missing for a trusted site.
        """
        rows: dict[int | str, dict[str, Any]] = {}
        effects = [effects_of(record, self.description.known_rule) for record in self.records]
        for record, verdicts in zip(self.records, verdicts_of(self.records, effects), strict=True):
            trust = record.reasons.trust if record.reasons else []
            for i, (site, verdict) in enumerate(zip(record.clients, verdicts, strict=True)):
                rows[site] = {
                    "round": record.round,
                    "examples": record.num_examples[i],
                    "weight": record.weight[i],
                    "fedavg_weight": record.base_weight[i],
                    "trust": trust[i] if trust else math.nan,
                    "verdict": verdict.kind,
                    "since_round": verdict.since if verdict.is_in_doubt else pd.NA,
                    "reason": reason_in_words(verdict.reason) if verdict.reason else "",
                }
        took_part = [site for site in self.sites if site in rows]
        index = pd.Index(took_part, name="site")
        table = pd.DataFrame([rows[site] for site in took_part], index)
        return table.astype({"since_round": "Int64"})

    def explain(
        self,
        site: int | str | None = None,
        round: int | None = None,  # noqa: A002
        *,
        number: int | None = None,
    ) -> str:
        """Return why sites got their weights in a round, in words.

        By default it is of all sites in the last round, or the last in which the site took part.
        ``number`` is the earlier name of ``round``.
        """
        said = {"round": round, "number": number}
        given = {name: value for name, value in said.items() if value is not None}
        asked = current_names(given, {"number": "round"}, "explain").get("round")
        if asked is not None and not is_number(asked):
            raise FedcrfError(f"round {asked!r}: give its number, or none for the last")
        found = Course(self.description.title, self.records, self.description.known_rule)
        cut = site is not None and CUT in str(site)  # a name as the table of a round shows it
        client = site if cut or site is None else self._site(site)
        lines, tables = in_words(found, find_round(found, asked, client), client)
        text = io.StringIO()
        console = Console(file=text, width=WIDTH, highlight=False)
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
        for table in tables:
            console.print()
            console.print(table.for_terminal())
            if table.note:
                console.print(table.note, markup=False)
        return text.getvalue()

    def report(self, path: str | Path = "report.html") -> Path:
        """Write what happened, who was trusted and why as one HTML page, and return its path.

        It needs the extra ``report``.
        """
        check_installed("jinja2", "a report: ")
        check_path("the report's path", path)
        from fedcrf.report.page import read_report, write_page

        with tempfile.TemporaryDirectory() as folder:
            run = RecordedRun(Path(folder) / "simulation")
            run.path.mkdir()
            run.describe(self.description, datetime.now(UTC))
            for record in self.records:
                run.append(record)
            try:
                write_page(read_report([run.path]), Path(path))
            except OSError as error:
                said = error.strerror or error
                raise FedcrfError(f"report {path}: {said}: name another file") from None
        return Path(path)

    def __repr__(self) -> str:
        last = self.records[-1]
        of = "test" if math.isfinite(last.test.loss) else "validation"
        found = getattr(last, of)
        said = f", {of} accuracy {found.accuracy:.3f}" if math.isfinite(found.accuracy) else ""
        sites = f"{len(self.sites)} site{'' if len(self.sites) == 1 else 's'}"
        rounds = f"{last.round} round{'' if last.round == 1 else 's'}"
        loss = f"{of} loss {found.loss:.4g}"
        return f"<{self.description.title}, {sites}, {rounds}: {loss}{said}>"

    @property
    def _rounds(self) -> pd.Index:
        return pd.Index([record.round for record in self.records], name="round")

    def _by_site(self, values: Callable[[RoundRecord], Sequence[float]]) -> pd.DataFrame:
        rows = [dict(zip(record.clients, values(record), strict=False)) for record in self.records]
        return pd.DataFrame(rows, index=self._rounds, columns=list(self.sites), dtype=float)

    def _site(self, site: int | str) -> int | str:
        by_name, name = {str(each): each for each in self.sites}, str(site)
        if name in by_name:
            return by_name[name]
        raise unknown_name("site", name, by_name)

"""Names of earlier versions: accepted, with a notice for who wrote them."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedcrf import FedcrfError, RobustCRF
from fedcrf.attacks import ATTACKS, RENAMED, Adaptive
from fedcrf.crf.evidence import NormEvidence
from fedcrf.errors import EarlierNameWarning
from fedcrf.experiments.recorded import RecordedRun, rule_settings
from fedcrf.experiments.spec import cell_of, check_used, resolve
from fedcrf.experiments.store import Store
from fedcrf.experiments.study import Study, parse_axis
from fedcrf.rules import CRFRobust
from fedcrf.rules.crf import CRFRobustEvidence

EARLIER: Mapping[str, Any] = {
    "methods": ["crf-robust"],
    "seeds": [0],
    "rules": {"crf-robust": {"inclination": 1.0}},
    "attack": {"name": "false-answer"},
    "attacks": {"false-answer": {"answer": 0.5}},
}
NOW: Mapping[str, Any] = {
    "methods": ["crf-robust"],
    "seeds": [0],
    "rules": {"crf-robust": {"prior_log_odds": 1.0}},
    "attack": {"name": "false-response"},
    "attacks": {"false-response": {"faked_response": 0.5}},
}


@contextmanager
def silence() -> Iterator[None]:
    """Fail where there is a notice."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", EarlierNameWarning)
        yield


def earlier(described: Any) -> Any:
    """Return plain values with today's names of `EARLIER` as they were."""
    text = json.dumps(described).replace("prior_log_odds", "inclination")
    text = text.replace("faked_response", "answer")
    return json.loads(text.replace("false-response", "false-answer"))


def test_earlier_names_stand_for_what_there_is_today() -> None:
    for kind in (RobustCRF, CRFRobust, CRFRobustEvidence, Adaptive, *map(ATTACKS.get, ATTACKS)):
        assert kind is not None
        fields: set[str] = set(kind.__dataclass_fields__)
        assert set(kind.renamed.values()) <= fields
        assert not kind.renamed.keys() & fields
    assert set(RENAMED.values()) <= ATTACKS.keys()
    assert not RENAMED.keys() & ATTACKS.keys()


def test_keywords() -> None:
    with pytest.warns(EarlierNameWarning, match="RobustCRF: inclination is now called prior_log"):
        assert RobustCRF(inclination=1.0) == RobustCRF(prior_log_odds=1.0)  # type: ignore[call-arg]
    with pytest.raises(FedcrfError, match="earlier name of prior_log_odds: leave inclination out"):
        RobustCRF(inclination=1.0, prior_log_odds=1.0)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unknown setting of NormEvidence 'inclination'"):
        NormEvidence(inclination=1.0)  # type: ignore[call-arg]


def test_run_files_and_what_is_said_on_the_command_line() -> None:
    with pytest.warns(EarlierNameWarning) as noticed:
        spec = resolve(EARLIER)
    assert [str(each.message) for each in noticed] == [
        "rules.crf-robust: inclination is now called prior_log_odds",
        "attacks: false-answer is now called false-response",
        "attacks.false-response: answer is now called faked_response",
        "attack: false-answer is now called false-response",
    ]
    with silence():
        assert spec.cells() == resolve(NOW).cells()
        assert spec.describe() == resolve(NOW).describe()
    with pytest.warns(EarlierNameWarning):
        check_used([EARLIER], [spec])
    with pytest.warns(EarlierNameWarning), pytest.raises(FedcrfError, match="no attack is 'sleep"):
        check_used([{"attacks": {"flatterer": {"until": 3}}}], [spec])


def test_a_later_layer_wins_by_either_name() -> None:
    for other in ({"inclination": 3.0}, {"prior_log_odds": 3.0}):
        with pytest.warns(EarlierNameWarning):
            spec = resolve(EARLIER, {"rules": {"crf-robust": other}})
        assert spec.things["rules"]["crf-robust"].prior_log_odds == 3.0
    both = {"rules": {"crf-robust": {"inclination": 1.0, "prior_log_odds": 1.0}}}
    with pytest.raises(FedcrfError, match=r"rules\.crf-robust: inclination is the earlier name of"):
        resolve(both)


def test_what_is_stored_is_read_in_silence(tmp_path: Path) -> None:
    with silence():
        spec = resolve(NOW)
        (cell,) = spec.cells()
        described = earlier(cell.describe())
        assert described != cell.describe()
        assert cell_of(described) == cell
        store = Store(tmp_path)
        store.path.mkdir(exist_ok=True)
        store.write(spec)
        file = tmp_path / "run.toml"
        text = file.read_text()
        for now, then in (
            ("prior_log_odds", "inclination"),
            ("faked_response", "answer"),
            ("false-response", "false-answer"),
        ):
            assert now in text
            text = text.replace(now, then)
        file.write_text(text)
        assert store.read().cells() == [cell]
        assert store.check(spec).cells() == [cell], "and is gone on with"


def test_a_folder_with_settings_that_are_gone_is_read_and_not_gone_on_with(tmp_path: Path) -> None:
    spec, store = resolve(NOW), Store(tmp_path / "run")
    store.path.mkdir()
    store.write(spec)
    file = store.path / "run.toml"
    section = "[rules.crf-robust]\n"
    file.write_text(file.read_text().replace(section, section + "norm_strength = 3.0\n"))
    assert store.read().cells() == spec.cells()
    with pytest.raises(
        FedcrfError, match=r"earlier version, with rules\.crf-robust\.norm_strength"
    ):
        store.check(spec)


def test_a_method_that_is_gone_is_said_to_be_another() -> None:
    with pytest.raises(FedcrfError, match="method crf-windowed is crf-robust now"):
        resolve({"methods": ["crf-windowed"], "seeds": [0]})


def test_recorded_runs(tmp_path: Path) -> None:
    rule = CRFRobust(prior_log_odds=1.0, sketch_seed=0)
    machine = dict.fromkeys(
        ("fedcrf", "commit", "python", "torch", "numpy", "system", "processor", "device"), ""
    )
    (tmp_path / "description.json").write_text(
        json.dumps(
            {
                "framework": "flower",
                "strategy": "RuleStrategy",
                "rule": rule.name,
                "settings": earlier(rule_settings(rule)),
                "provenance": {**machine, "cores": 1},
            }
        )
    )
    with silence():
        assert RecordedRun(tmp_path).description().known_rule == rule


def test_an_axis_keeps_the_name_and_the_folders_that_it_was_given(tmp_path: Path) -> None:
    def sweep(key: str, *settings: Mapping[str, Any]) -> Study:
        return Study((NOW,), (parse_axis(f"rules.crf-robust.{key}=1.0,4.0"),), settings)

    study = sweep("inclination")
    with pytest.warns(EarlierNameWarning):
        cells = [spec.cells() for spec, _ in study.runs(tmp_path)]
    assert [store.path.name for _, store in study.runs(tmp_path)] == [
        "inclination=1.0",
        "inclination=4.0",
    ]
    assert study.default_values() == (1.0,)
    assert cells == [spec.cells() for spec, _ in sweep("prior_log_odds").runs(tmp_path)]
    fixed = {"rules": {"crf-robust": {"prior_log_odds": 2.0}}}
    with pytest.raises(FedcrfError, match="varies what --set fixes"):
        sweep("inclination", fixed).points  # noqa: B018

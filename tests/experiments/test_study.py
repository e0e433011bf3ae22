"""Studies: what varies, where the runs go, and how settings are compared with the default."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from experiments.runs import Log, snapshot
from fedcrf import FedcrfError
from fedcrf.experiments.analysis.conditions import sweep_table, write_sweep
from fedcrf.experiments.analysis.tables import UNDER_ATTACK
from fedcrf.experiments.grid import Workplace, run_grids
from fedcrf.experiments.results import table
from fedcrf.experiments.study import Axis, Study, parse_axis, setting_folder, value_text
from fedcrf.rules import Adam

SMALL = {
    "methods": ["crf-fedavg"],
    "seeds": [0, 1],
    "partition": {"num_clients": 4},
    "model": {"name": "mlp", "hidden": [4]},
    "rounds": {"maximum": 2},
}


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("rules.crf.bandwidth=0.1,0.5", (0.1, 0.5)),
        ("rules.crf.labels=[0,1],[0,0.25,1]", ((0, 1), (0, 0.25, 1))),
        ("partition.scheme=iid,label-skew", ("iid", "label-skew")),
        ("rules.crf.reliability_gate=true,false", (True, False)),
        ("rules.crf.bandwidth=1,true,1", (1, True)),
    ],
)
def test_an_axis_is_read_as_toml(text: str, values: tuple[Any, ...]) -> None:
    assert parse_axis(text) == Axis.of_setting(text.partition("=")[0], values)


@pytest.mark.parametrize(
    "text",
    ["bandwidth=1,2", "rules.crf.bandwidth", "rules.crf.bandwidth=", "rules.crf={bandwidth=1}"],
)
def test_what_is_no_axis(text: str) -> None:
    with pytest.raises(FedcrfError, match=r"write --over section\.key=value,value"):
        parse_axis(text)


def test_a_number_is_one_value_however_it_is_written() -> None:
    values = [value for value, _ in parse_axis("rules.crf.bandwidth=1,1.0,0.1,0.10").layers]
    assert values == [1, 0.1]
    assert [value_text(each) for each in (0.1, 0.100000001)] == ["0.1", "0.100000001"]


def test_a_path_on_an_axis_leads_out_of_no_folder() -> None:
    paths = ("./mine.py:Mine", "../../mine.py:Mine", "/tmp/mine.py:Mine")
    folders = [Path(setting_folder({"attack.name": path})) for path in paths]
    assert [len(folder.parts) for folder in folders] == [1, 1, 1]
    assert len({*folders}) == 3
    assert all(folder.name.startswith("name=") for folder in folders)


def test_two_values_of_one_folder_are_refused(tmp_path: Path) -> None:
    sweep = Study(({"methods": ["fedavg"]},), (parse_axis('data.label_column="a/b","a-b"'),))
    with pytest.raises(
        FedcrfError, match="two values of --over make one folder, 'label_column=a-b'"
    ):
        sweep.runs(tmp_path)


def test_settings_of_one_name_have_columns_and_folders_of_their_own(tmp_path: Path) -> None:
    axes = (parse_axis("training.learning_rate=0.1"), parse_axis("server.learning_rate=1.0"))
    sweep = Study(({**SMALL, "methods": ["fedavg+adam"]},), axes)
    header = sweep_table(sweep, table(tmp_path, sweep)).header
    assert header[:2] == ("training.learning_rate", "server.learning_rate")
    ((_, store),) = sweep.runs(tmp_path)
    assert store.path.name == "training.learning_rate=0.1,server.learning_rate=1.0"
    published = {"rules.crf.pairwise_strength": 0, "rules.crf.bandwidth": 0.5}
    assert setting_folder(published) == "pairwise_strength=0,bandwidth=0.5"
    assert setting_folder({"condition": "label-flip", "model.name": "mlp"}) == "label-flip,name=mlp"


def test_a_key_that_does_not_exist_is_named(tmp_path: Path) -> None:
    sweep = Study((SMALL,), (parse_axis("rules.crf.bandwith=1"),))
    with pytest.raises(FedcrfError, match="did you mean 'bandwidth'"):
        _ = sweep.points


def test_what_a_rule_is_told_is_its_default(tmp_path: Path) -> None:
    attack = {"methods": ["krum"], "attack": {"name": "ipm", "attackers": 1}}
    axis = parse_axis("rules.krum.num_byzantine=0,1")
    assert Study((SMALL, {"methods": ["krum"]}), (axis,)).default_values() == (0,)
    sweep = Study((SMALL, attack), (axis,))
    assert sweep.default_values() == (1,)
    run_grids(sweep.runs(tmp_path), Workplace(device="cpu"), Log())
    shown = sweep_table(sweep, table(tmp_path, sweep))
    assert [row[-1] == "default" for row in shown.rows] == [False, True]
    assert shown.note == UNDER_ATTACK


def test_a_server_optimizer_s_settings_vary_where_a_method_has_it(tmp_path: Path) -> None:
    axis = parse_axis("server_optimizers.adam.learning_rate=0.01,0.1")
    with pytest.raises(FedcrfError, match="none of the methods uses 'adam'"):
        _ = Study((SMALL,), (axis,)).points
    sweep = Study((SMALL, {"server": {"optimizer": "adam"}}), (axis,))
    cells = [spec.cell("crf-fedavg+adam", 0) for _, spec in sweep.points]
    assert [cell.server_optimizer for cell in cells] == [Adam(0.01), Adam(0.1)]
    assert sweep.default_values() == (0.01,)


@pytest.mark.parametrize(
    ("over", "fixed", "message"),
    [
        (("crf.bandwidth=0.1", "crf.bandwidth=0.2"), {}, "is said twice"),
        (("crf.bandwidth=0.1",), {"rules": {"crf": {"bandwidth": 7}}}, "varies what --set fixes"),
        (("crf.bandwidth=0.1,true",), {}, "bandwidth is True: give a valid number"),
        (("crf.bandwidth=0.1,x",), {}, "bandwidth is 'x': give a valid number"),
    ],
)
def test_a_setting_has_one_axis_and_no_other_value(
    over: tuple[str, ...], fixed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    axes = tuple(parse_axis(f"rules.{text}") for text in over)
    with pytest.raises(FedcrfError, match=message):
        _ = Study((SMALL,), axes, (fixed,)).points


@pytest.mark.usefixtures("quick_children")
def test_a_sweep_of_two_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    axes = (parse_axis("rules.crf.pairwise_strength=0,0.5"), parse_axis("rules.crf.iterations=1,5"))
    sweep = Study((SMALL,), axes)
    points = sweep.points
    runs = sweep.runs(tmp_path)
    assert [tuple(at.values()) for at, _ in points] == [(0, 1), (0, 5), (0.5, 1), (0.5, 5)]
    assert sweep.default_values() == (0.5, 5)
    log = Log()
    assert run_grids(runs, Workplace(device="cpu", jobs=2), log) == []

    rows = {row[:2]: row[2:] for row in sweep_table(sweep, table(tmp_path, sweep)).rows}
    assert set(rows) == {("0", "1"), ("0", "5"), ("0.5", "1"), ("0.5", "5")}
    assert rows["0.5", "5"][2] == "default"
    # Without coupling the iterations change nothing, so two points are alike to the bit.
    assert rows["0", "1"] == rows["0", "5"]
    names = {path.name for path in write_sweep(sweep, table(tmp_path, sweep), tmp_path)}
    assert names == {
        "sweep.md", "sweep.csv", "heat-map-crf-fedavg.svg", "heat-map-crf-fedavg.png",
    }  # fmt: skip

    before = snapshot(tmp_path)
    fewer = Study((SMALL,), (axes[0], parse_axis("rules.crf.iterations=1")))
    with pytest.raises(FedcrfError, match=r"sweep\.md is kept as it is"):
        write_sweep(fewer, table(tmp_path, fewer), tmp_path)
    assert snapshot(tmp_path) == before

    again = Log()
    assert run_grids(runs, Workplace(device="cpu"), again) == []
    assert not [event for event in again.events if type(event).__name__ == "RoundFinished"]

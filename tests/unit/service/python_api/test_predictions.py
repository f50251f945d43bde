"""`shardtune.predict`, `memory`, `explain_config` and `plan`: the values and the errors of the command line."""

import json
import math

import numpy as np
import pytest

import shardtune as st
from shardtune.service.cli.commands.app import app as cli
from shardtune.service.cli.errors import InputError


def printed(capsys, *words):
    cli([*words, "--json"], standalone_mode=False)
    return json.loads(capsys.readouterr().out)


def test_a_prediction_is_that_of_the_command(capsys):
    command = printed(capsys, "predict", "gpt2", "--cluster", "2xh100", "--seq-len", "256", "--global-batch", "32")
    values = st.predict("gpt2", "2xh100", sequence_length=256, global_batch=32).values
    assert json.loads(values.model_dump_json()) == command


def test_a_study_file_gives_workload_cluster_and_limits(capsys, tmp_path):
    study = {
        "model": "gpt2",
        "workload": {"sequence_length": 256, "global_batch": 32},
        "cluster": "2xh100",
        "space": {"backends": ["ddp"]},
    }
    path = tmp_path / "study.json"
    path.write_text(json.dumps(study))
    command = printed(capsys, "predict", str(path))
    for model in (path, study):
        assert json.loads(st.predict(model).values.model_dump_json()) == command
    assert st.predict(path, "4xh100", global_batch=64).values.global_batch == 64


def test_a_plan_is_that_of_the_command(capsys):
    words = ("gpt2", "--tokens", "1e9", "--gpus", "h100,h200", "--counts", "8,16", "--price", "h100=2")
    command = printed(capsys, "plan", *words, "--start", "2098-12-01", "--deadline", "2099-01-01")
    made = st.plan(
        "gpt2",
        tokens=1e9,
        gpus=["h100", "h200"],
        counts=[8, 16],
        prices={"h100": 2},
        start="2098-12-01",
        deadline="2099-01-01",
    )
    assert json.loads(made.values.model_dump_json()) == command
    assert {row["gpus"] for row in made.records()} == {8, 16} and len(made.records()) == 4


def test_a_row_projected_from_measurements_says_so():
    measured = {"gpu": "h100", "gpus": 8, "config": {"strategy": {"kind": "ddp"}}, "tokens_per_s_per_gpu": 90_000.0}
    made = st.plan("gpt2", tokens=1e9, gpus="h100", counts=[8, 16], measurements=[measured])
    assert {row["speed_basis"] for row in made.records()} == {"projected"}
    assert "projected" in made._repr_html_()


def test_the_memory_of_each_strategy_has_its_band():
    of_memory = st.memory("llama-3.1-8b", "8xh100", micro_batch=2)
    (table,) = of_memory.tables
    assert table.name == "strategies" and len(of_memory.records()) == len(of_memory.values.predictions)
    assert all(row["memory_low"] < row["memory"] < row["memory_high"] for row in of_memory.records())


def test_a_configuration_is_explained_by_terms_and_compared_with_the_fastest(tmp_path):
    config = {"strategy": {"kind": "fsdp2", "dp_shard": 8}, "micro_batch": 1, "activation_checkpointing": "full"}
    explained = st.explain_config("llama-3.1-8b", "8xh100", config)
    total = sum(row["memory"] for row in explained.records("memory"))
    assert math.isclose(total, explained.records()[0]["memory"], rel_tol=0.01)
    knobs = {row["knob"] for row in explained.records("differences")}
    assert "activation_checkpointing" in knobs and explained.values.expected_speedup.value > 1
    path = tmp_path / "ds_config.json"
    path.write_text(
        '{"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}'
    )
    other = st.explain_config("gpt2", "2xh100", path, sequence_length=256, global_batch=8)
    assert other.records()[0]["config.backend"] == "zero"
    with pytest.raises(st.InputError, match=r"config \(a file of another program\) is checked against sequence_length"):
        st.explain_config("gpt2", "2xh100", path)


WRONG = {
    "unknown model": ("gpt-2", "2xh100", {}, (), r"model \('gpt-2'\) is not a preset; did you mean gpt2"),
    "unknown cluster": ("gpt2", "2xh10", {}, (), r"cluster \('h10'\) can be any of"),
    "negative batch": (
        "gpt2",
        "2xh100",
        {"global_batch": -4},
        (),
        r"global_batch \(-4\): must be at least",
    ),
    "negative micro batch": ("gpt2", "2xh100", {"micro_batch": -1}, (), r"micro_batch \(-1\): must be at least"),
    "unknown precision": ("gpt2", "2xh100", {"precision": "bf61"}, ("--precision", "bf61"), r"precision \('bf61'\)"),
    "unknown optimizer": ("gpt2", "2xh100", {"optimizer": "adamx"}, ("--optimizer", "adamx"), "optimizer"),
    "unmeasured machine": ("gpt2", None, {}, (), r"cluster \('local'\): this machine has not been measured"),
}


@pytest.mark.parametrize("reason", WRONG)
def test_a_wrong_value_is_an_exception_with_the_line_of_the_command(reason, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, cluster, values, options, message = WRONG[reason]
    with pytest.raises(st.InputError, match=message) as rejected:
        st.predict(model, cluster, **values)
    assert isinstance(rejected.value, st.ShardtuneError)
    if options or not values:
        words = ["predict", model, *(("--cluster", cluster) if cluster else ()), *options]
        with pytest.raises(InputError) as of_command:
            cli(words, standalone_mode=False)
        assert [line.removeprefix("--") for line in of_command.value.lines] == rejected.value.lines


def test_a_misspelt_field_is_named_with_the_right_one():
    with pytest.raises(st.InputError, match=r"sequence_len: unknown field; did you mean sequence_length\?"):
        st.predict("gpt2", "2xh100", sequence_len=256)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"tokens": -1}, r"tokens \(-1\)"),
        ({"counts": [0]}, r"counts \(0\) must be between"),
        ({"gpus": "h1000"}, "h1000"),
        ({"deadline": "soon"}, r"deadline \('soon'\) must be a day"),
    ],
)
def test_a_wrong_plan_is_an_exception(values, message):
    with pytest.raises(st.InputError, match=message):
        st.plan("gpt2", **{"tokens": 1e9, "gpus": "h100", "counts": 8} | values)


@pytest.mark.parametrize("cluster", ["", 0])
def test_an_empty_cluster_is_not_the_local_one(cluster):
    with pytest.raises(InputError, match="is empty; give one such as 8xh100"):
        st.predict("llama-3.1-8b", cluster)


@pytest.mark.parametrize(
    ("cluster", "data", "message"),
    [
        (None, None, r"cluster \(None\) must be a text such as 8xh100"),
        (8, None, r"cluster \(8\) must be a text such as 8xh100"),
        ("8xh100", {"lengths": list(range(2, 20_002))}, "the parameters are too long for an address"),
    ],
)
def test_a_job_that_cannot_be_asked_for_is_an_error(cluster, data, message):
    job = {"sequence_length": 32_768, "global_batch": 64, "data": data}
    with pytest.raises(InputError, match=message):
        st.best("llama-3.1-8b", cluster, service="http://127.0.0.1:9", **job)


@pytest.mark.parametrize("study_id", ["", 3])
def test_an_id_that_is_no_text_is_an_error(study_id):
    with pytest.raises(InputError, match="must be the id of a study as text"):
        st.Study(study_id)


def test_a_plan_takes_integers_of_numpy_and_names_money_and_basis():
    options = {"tokens": 1e9, "gpus": "h100", "prices": {"h100": 2.0}}
    plans = [st.plan("llama-3.1-8b", counts=counts, **options) for counts in (np.int64(8), np.array([8]))]
    for made in plans:
        assert (
            "money in the currency of the prices" in made.summary and "predicted" in made.summary.partition("cost")[2]
        )

"""Traces that mean harm: each ends with a diagnosis or a named error, in bounded memory and time."""

import gzip
import io
import json
import os
import tracemalloc
from pathlib import Path
from random import Random

import pytest

from shardtune.traces import folder, kineto
from shardtune.traces.diagnose import diagnosis
from shardtune.traces.json_pieces import UnreadableTrace
from tests.support.values import synthetic_traces
from tests.support.values.mutated_json import mutate

CORPUS = sorted((Path(__file__).parent / "hostile").glob("*.json"))
MIB = 1 << 20


def ends_well(content: bytes) -> None:
    """A diagnosis that can be sent, or an error with a reason that a terminal can show."""
    try:
        diagnosis([kineto.read(io.BytesIO(content), "rank_0.json")]).model_dump_json()
    except UnreadableTrace as error:
        text = str(error)
        assert text.startswith(("trace (", "the traces")) and text.isprintable() and len(text) < 2000, text


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_a_kept_hostile_trace_ends_with_a_diagnosis_or_a_named_error_in_little_memory(path):
    tracemalloc.start()
    try:
        ends_well(path.read_bytes())
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("trace", [synthetic_traces.on_cpu, synthetic_traces.on_gpu])
def test_a_trace_with_any_values_ends_with_a_diagnosis_or_a_named_error(trace, seed):
    random = Random(seed)
    for _ in range(int(os.environ.get("SHARDTUNE_FUZZ_INPUTS", "60"))):
        ends_well(json.dumps(mutate(trace(), random, random.randrange(1, 5))).encode())


@pytest.mark.parametrize("seed", range(4))
def test_a_trace_with_any_bytes_ends_with_a_diagnosis_or_a_named_error(seed):
    random, text = Random(seed), bytearray(json.dumps(synthetic_traces.on_gpu()).encode())
    for _ in range(60):
        changed = bytearray(text)
        for _ in range(random.randrange(1, 6)):
            changed[random.randrange(len(changed))] = random.choice(b'{}[]",:0129-eEN\\\x00\xff ')
        ends_well(bytes(changed[: random.choice([len(changed), random.randrange(len(changed))])]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"a": ' * 50_000, "nested too deeply"),
        ('{"traceEvents": [' + "9" * 5000 + "]}", "is cut|is no JSON|no events"),
        ('{"x": "' + "y" * (9 * MIB) + '"}', "more than 8 MiB"),
    ],
)
def test_json_that_only_a_machine_writes_is_named(text, says):
    with pytest.raises(UnreadableTrace, match=says):
        kineto.read(io.BytesIO(text.encode()), "rank_0.json")


def test_a_claimed_number_of_ranks_costs_nothing():
    trace = synthetic_traces.on_cpu() | {"distributedInfo": {"rank": 0, "world_size": 1 << 20}}
    tracemalloc.start()
    try:
        notes = diagnosis([kineto.read(io.BytesIO(json.dumps(trace).encode()), "rank_0.json")]).notes
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()
    assert "1 of 1048576 ranks: what the others did (rank 1, 2, 3, …) is not known" in notes


def test_collectives_of_ever_new_sizes_do_not_multiply_the_work():
    kernels = [synthetic_traces.nccl(n, n + 1, n, [0, 1]) for n in range(5000)]
    for number, kernel in enumerate(kernels):
        kernel["args"]["Group size"] = number + 2
    text = json.dumps(synthetic_traces.trace(0, 2, kernels)).encode()
    with pytest.raises(UnreadableTrace, match="more than are analysed; record shorter steps"):
        diagnosis([kineto.read(io.BytesIO(text), "rank_0.json")])


def test_more_steps_than_a_recording_has_are_rejected():
    steps = [synthetic_traces.step(number, 0, 100) for number in range(300)]
    with pytest.raises(UnreadableTrace, match="more than 256 steps"):
        kineto.read(io.BytesIO(json.dumps(synthetic_traces.trace(0, 2, steps)).encode()), "rank_0.json")


def test_all_ranks_together_have_a_limit_of_events(tmp_path, monkeypatch):
    monkeypatch.setattr(folder, "_MOST_EVENTS", 9)
    traces = [synthetic_traces.on_cpu() | {"distributedInfo": {"rank": rank, "world_size": 2}} for rank in range(2)]
    synthetic_traces.write(tmp_path, traces)
    with pytest.raises(UnreadableTrace, match=r"trace \(rank_1.json.gz\) has more than 3 events"):
        folder.diagnose_folder(tmp_path)


def test_a_small_file_that_unpacks_to_a_large_one_takes_little_memory(tmp_path):
    (tmp_path / "rank_0.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * (64 * MIB)))
    tracemalloc.start()
    try:
        with pytest.raises(UnreadableTrace, match="is cut"):
            folder.diagnose_folder(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 16 * MIB
    finally:
        tracemalloc.stop()


def test_what_is_no_file_is_not_opened(tmp_path):
    os.mkfifo(tmp_path / "rank_0.json")
    with pytest.raises(UnreadableTrace, match=r"trace \(rank_0.json\) is no file"):
        folder.diagnose_folder(tmp_path)


def test_a_name_that_commands_a_terminal_is_shown_as_text(tmp_path):
    (tmp_path / "\x1b]0;owned\x07rank_0.json").write_text("PK")
    with pytest.raises(UnreadableTrace) as error:
        folder.diagnose_folder(tmp_path)
    assert str(error.value).isprintable() and "\\x1b]0;owned\\x07rank_0.json" in str(error.value)

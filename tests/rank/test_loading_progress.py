"""What a rank does before its first step, and what its profiler does after the last one, is noted as progress."""

import contextlib
import faulthandler
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from shardtune.api_schemas.trials.progress import Progress
from shardtune.workers.launchers import silent_work
from shardtune.workers.rank import device, main, trial_dir
from shardtune.workers.rank.measure import speed_check
from shardtune.workers.rank.training import trace, user_script, wrap
from shardtune.workers.rank.training.batches import MicroBatches
from shardtune.workers.rank.training.step_loop import StepLoop
from tests.support.ranks.progress_notes import NotedInTime, end_after_notes
from tests.support.ranks.tiny_tasks import tiny_task


def loop_of(folder: Path, make_batch: Any, rank: int = 0) -> StepLoop:
    """Loop of one rank over a task's steps, whose batches are made by this function."""
    context = SimpleNamespace(device="cpu", world_size=1)
    setting = SimpleNamespace(task=tiny_task({"kind": "ddp"}, ranks=1), context=context, accumulation=2, data_rank=0)
    step = SimpleNamespace(make_batch=make_batch)
    return StepLoop(lambda: (None, None), setting, step, trial_dir.ProgressFile(folder, rank))  # type: ignore[arg-type]


def progress_in(folder: Path) -> Progress:
    return Progress.model_validate_json((folder / "progress.json").read_text())


def test_the_first_batch_may_take_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry point that tokenizes its data at the first batch was ended for lack of progress."""
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    loop = loop_of(tmp_path, lambda *_: end_after_notes(tmp_path))
    with pytest.raises(NotedInTime):
        loop._micro_batches.of_step(0)
    assert progress_in(tmp_path).phase == "building"


def test_another_rank_may_load_for_longer_than_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 waits for it in the first step, and the run was ended for lack of progress."""
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    trial_dir.ProgressFile(tmp_path, 0).write(Progress(phase="warming_up"))
    loop = loop_of(tmp_path, lambda *_: end_after_notes(tmp_path), rank=1)
    with pytest.raises(NotedInTime):
        loop._micro_batches.of_step(0)
    assert progress_in(tmp_path).phase == "warming_up", "only rank 0 says what the ranks do"


def test_a_script_s_loading_ends_with_its_first_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first report that waited for a peer, and kept a core busy, still passed for loading."""

    def wait_for_peers(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(user_script, "_require_group", wait_for_peers)
    monkeypatch.setattr(faulthandler, "dump_traceback_later", lambda _: None)
    recorder: Any = object.__new__(user_script.ScriptRecorder)
    recorder.complete, recorder.reports, recorder._inputs = False, 0, None
    recorder._place, recorder._folder = SimpleNamespace(), tmp_path
    recorder._progress, recorder._start_up = trial_dir.ProgressFile(tmp_path, 0), contextlib.ExitStack()
    with recorder.starting_up(), pytest.raises(TimeoutError):
        assert progress_in(tmp_path).phase == "building"
        recorder.report(torch.zeros(()), None)
    assert progress_in(tmp_path).phase == "warming_up"


@pytest.mark.parametrize("is_script", [False, True])
def test_the_speed_check_is_no_loading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_script: bool) -> None:
    """A GPU that hung in it kept a core busy, and the run lived to its deadline."""

    def hang(_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr("shardtune.workers.rank.mesh.join", lambda *_: None)
    monkeypatch.setattr(speed_check, "seconds", hang)
    attempt = main.RankAttempt(tmp_path, 0, wrap.make_trainer, device.of_kind)
    task = tiny_task({"kind": "ddp"}, ranks=1)
    with pytest.raises(TimeoutError):
        if is_script:
            attempt._run_script(task, SimpleNamespace())  # type: ignore[arg-type]
        else:
            attempt.run(task)
    assert progress_in(tmp_path).phase not in silent_work._PHASES


def test_loading_ends_with_the_first_batches_and_is_no_time_of_a_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that seems to take minutes would let a run that hangs later live ten times as long."""
    loop = loop_of(tmp_path, lambda *_: "batch")
    loop._reported_at_s -= 300
    assert loop._micro_batches.of_step(0) == ["batch", "batch"]
    assert progress_in(tmp_path).phase == "warming_up"
    loop._step = 1
    loop._report_progress("warming_up")
    assert (progress_in(tmp_path).step_s or 0) < 60
    (tmp_path / "progress.json").unlink()
    loop._micro_batches.of_step(1)
    assert not (tmp_path / "progress.json").exists(), "only the first batches are loading"


def test_batches_of_a_script_are_no_end_of_its_loading(tmp_path: Path) -> None:
    def fail() -> Any:
        raise AssertionError("the script still loads")

    assert MicroBatches(SimpleNamespace(accumulation=2), None, fail).of_step(0) == []  # type: ignore[arg-type]


def test_the_profiler_may_take_long_to_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial_dir, "_TICK_S", 0.01)
    profiler = SimpleNamespace(start=lambda: None, stop=lambda: end_after_notes(tmp_path))
    monkeypatch.setattr(trace, "profile", lambda **_: profiler)
    loop: Any = SimpleNamespace(record=lambda _: iter(()), is_traced=True)
    trainer: Any = SimpleNamespace()
    place: Any = SimpleNamespace(is_cuda=False)
    with pytest.raises(NotedInTime):
        trace._profiled(loop, 1, trainer, place, trial_dir.ProgressFile(tmp_path, 0))
    assert progress_in(tmp_path).phase == "finishing"

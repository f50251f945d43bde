"""Private names of libraries: the installed versions have them, and a version that lacks one is named with the remedy."""

import importlib
from importlib.metadata import version

import pytest
import torch

from shardtune.api_schemas.trials.failures import FailureKind
from shardtune.workers.rank import classify, private_names

ALLOCATOR = "torch._C._accelerator_setAllocatorSettings"
BACKWARD = "torch.distributed.pipelining._backward.stage_backward"


@pytest.mark.parametrize("name", [name for names in private_names.NAMES.values() for name in names])
def test_the_installed_version_has_each_name(name: str) -> None:
    assert private_names.is_there(name)


def _import_error(module: str, name: str) -> ImportError:
    return ImportError(f"cannot import name '{name}' from '{module}' (/site-packages/{module}.py)", name=module)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (_import_error("torch.distributed.pipelining._backward", "stage_backward"), BACKWARD),
        (ModuleNotFoundError("No module named …", name="torch.distributed.pipelining._backward"), BACKWARD),
        (AttributeError("module 'torch._C' has no attribute '_accelerator_setAllocatorSettings'"), ALLOCATOR),
        (AttributeError(name="_accelerator_setAllocatorSettings"), ALLOCATOR),
    ],
)
def test_the_sentence_has_name_versions_and_remedy(error: Exception, name: str) -> None:
    text = private_names.explanation(error, is_there=lambda _: False)
    assert text is not None and text.startswith(f"torch ({version('torch')}) has no `{name}`, ")
    assert "2.11.0, 2.12.1, 2.13.0, 2.14.1, 2.15.0: install torch==2.13.0" in text


@pytest.mark.parametrize(
    "error",
    [
        ModuleNotFoundError("No module named 'deepspeed'", name="deepspeed"),
        _import_error("their.code", "stage_backward"),
        AttributeError("'set' object has no attribute 'add'", name="add"),
        ValueError("has no attribute '_accelerator_setAllocatorSettings'"),
    ],
)
def test_other_errors_are_no_question_of_a_version(error: Exception) -> None:
    assert private_names.explanation(error, is_there=lambda _: False) is None


def test_a_name_that_is_there_is_somebody_else_s_attribute() -> None:
    error = AttributeError("'Model' object has no attribute '_world'", name="_world")
    assert private_names.explanation(error) is None
    assert classify.failure_of(error, "training", 0).kind is FailureKind.CRASH


def test_an_import_that_fails_for_another_reason_keeps_its_error() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"), private_names.explained():
        importlib.import_module("shardtune.no_such_module")


def test_a_rank_that_lacks_a_name_could_not_be_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C, "_accelerator_setAllocatorSettings")
    with pytest.raises(AttributeError) as error:
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")
    failure = classify.failure_of(error.value, "starting", 0)
    assert failure.kind is FailureKind.SETUP and failure.message.startswith("torch (")
    assert ALLOCATOR in failure.message

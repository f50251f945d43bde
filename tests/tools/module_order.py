"""Order of test modules: one of pytest-xdist's workers begins with the slowest, the others with the quickest.

A module stays on one worker, so that what its tests share (a fork server, a browser, a study) is made once; those of
`tests/hosts` all stay on one, because one laboratory is load enough, and so do those that read the built documentation.
At the slow end are training ranks, browsers and whole services, which take both cores by turns and wait in between;
beside them run modules of one process. Where the two ends meet, modules are neither long nor short, so nobody waits
long for the other.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

SECONDS = Path(__file__).with_name("durations.json")
"""Seconds of each module, as `make durations` measured last. Nothing but the order depends on it."""

_ON_ONE_WORKER = ("tests/hosts/", "tests/docs/test_site")
"""Beginnings of the paths of modules that share what takes longest to make."""


class FromBothEnds(LoadScopeScheduling):
    """Gives whole modules out: the first worker gets the next one, the others the last one."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        # Else those with the most tests come first.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return next((scope for scope in _ON_ONE_WORKER if nodeid.startswith(scope)), nodeid.partition("::")[0])

    def _assign_work_unit(self, node: WorkerController) -> None:
        if node is not self.nodes[0]:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FromBothEnds:
    return FromBothEnds(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Slowest modules first, before them those that were never measured."""
    if hasattr(config, "workerinput"):
        recorded_seconds: dict[str, float] = json.loads(SECONDS.read_text())
        items.sort(key=lambda item: -recorded_seconds.get(item.nodeid.partition("::")[0], float("inf")))

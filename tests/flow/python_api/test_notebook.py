"""The notebook of examples/ runs, and shows each figure with its basis."""

import threading
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.service.simulated_worker import SimulatedWorker, quietly

NOTEBOOK = Path(__file__).parents[3] / "examples" / "tuning.ipynb"


@pytest.fixture
def working(http):
    """A worker that takes whatever the notebook creates."""
    stop = threading.Event()
    worker = SimulatedWorker(http, behave=quietly).register()

    def work():
        while not stop.is_set():
            worker.work()
            stop.wait(0.1)

    thread = threading.Thread(target=work)
    thread.start()
    yield worker
    stop.set()
    thread.join()


def test_the_notebook_runs_from_its_first_cell_to_its_last(working, tmp_path):
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "committed without outputs: they would grow old"
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = {output.output_type for cell in notebook.cells for output in cell.get("outputs", ())}
    assert kinds == {"execute_result", "stream"}
    shown = [
        output.data["text/html"]
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    predictions, frame, explained, plan, status, trials, best = shown
    assert all(">predicted</span>" in html for html in (predictions, explained, plan, trials))
    assert "<table" in frame and ">measured</span>" in best and ">measured</span>" in trials
    assert "complete: trials" in status and "confirmed" in best
    assert not any("<script" in html for html in shown)
    texts = [output for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output]
    assert [output.text.startswith("model ('llama-3.1-8') is not a preset") for output in texts] == [True]

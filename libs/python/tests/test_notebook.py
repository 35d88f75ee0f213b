"""The notebook runs from top to bottom and draws its figure."""

import nbclient
import nbformat
import pytest
from places import ROOT


@pytest.mark.filterwarnings("ignore")
def test_the_slowdown_notebook_runs():
    notebook = nbformat.read(ROOT / "libs" / "python" / "notebooks" / "slowdown.ipynb", as_version=4)
    for cell in notebook.cells:
        assert not cell.get("outputs"), "the repository has the notebook without outputs"
    nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert "image/png" in kinds and "text/html" in kinds

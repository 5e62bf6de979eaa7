"""Notebooks run from the first to the last cell."""

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("xarray")
pytest.importorskip("zarr")
FOLDER = Path(__file__).parent.parent / "notebooks"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebook(path, tmp_path):
    book = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    assert all(cell.get("outputs") is None or not any(one.output_type == "error" for one in cell.outputs) for cell in book.cells)


def test_there_are_notebooks():
    assert len(list(FOLDER.glob("*.ipynb"))) == 3

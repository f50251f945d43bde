"""The documentation site, built once for all tests that look at it."""

import importlib.util
from pathlib import Path

import pytest

from docs.generate.assemble import assemble
from docs.generate.site import generate
from tests.support.requirements import missing


@pytest.fixture(scope="session")
def built_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("zensical") is None:
        missing("zensical")
    folder = tmp_path_factory.mktemp("docs")
    assemble(folder / "pages")
    generate(folder / "pages", folder / "site")
    return folder / "site"

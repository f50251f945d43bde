"""Pages of the documentation as an installed package has them: all, some or none."""

from pathlib import Path

import pytest

from shardtune.service.mcp import documents
from shardtune.service.mcp.errors import ToolRejected


def test_links_without_their_pages_are_left_out(tmp_path):
    (tmp_path / "how-to").symlink_to(tmp_path / "not-copied")
    (tmp_path / "reference").mkdir()
    (tmp_path / "reference/gone.md").symlink_to(tmp_path / "gone.md")
    (tmp_path / "reference/here.md").write_text("# Here\n")
    assert [(page.uri, page.title) for page in documents.documents(tmp_path).values()] == [
        ("shardtune://docs/reference/here", "Here")
    ]
    for name in ("how-to/deploy", "reference/gone"):
        with pytest.raises(ToolRejected, match="no page of the documentation; list the resources"):
            documents.read(f"shardtune://docs/{name}", tmp_path)


def test_a_package_without_pages_lists_none(tmp_path):
    assert not documents.documents(tmp_path / "pages")


def test_each_folder_of_pages_is_one_that_images_copy():
    repository = Path(__file__).resolve().parents[4]
    copied = (repository / "deploy/containers/service.Containerfile").read_text()
    links = [link for link in documents._FOLDER.iterdir() if link.is_symlink()]
    assert len(links) == 4
    for link in links:
        assert link.resolve() == repository / "docs" / link.name
        assert f"COPY docs/{link.name} /source/docs/{link.name}\n" in copied

"""The built site: its pages load nothing from another host, and its links lead somewhere."""

import re
from urllib.parse import unquote, urlsplit

import pytest

from docs.generate.site import SiteError, generate, replace

LOADS = re.compile(
    r"<(?:script|img|source|iframe|video|audio|embed|object|link)\b[^>]*?\b(?:src|srcset|href|data)=\"([^\"]+)\""
)
LINK = re.compile(r"<a\b[^>]*?\bhref=\"([^\"]+)\"")
ID = re.compile(r"\bid=\"([^\"]+)\"")


def test_no_page_loads_anything_from_another_host(built_site):
    loads = {
        f"{page.relative_to(built_site)}: {address}"
        for page in built_site.rglob("*.html")
        for address in LOADS.findall(page.read_text())
        if urlsplit(address).netloc
    }
    assert loads == set()


def test_no_style_sheet_loads_anything_from_another_host(built_site):
    styles = "".join(file.read_text() for file in built_site.rglob("*.css"))
    addresses = re.findall(r"url\(\s*[\"']?([^)\"']+)|@import\s+[\"']([^\"']+)", styles)
    # Pictures within the style sheet name their XML dialect by an address, and load nothing from it.
    assert [address for pair in addresses for address in pair if address and not address.startswith("data:")] == []


def test_no_page_has_a_script_or_a_style_of_its_own(built_site):
    for page in built_site.rglob("*.html"):
        text = page.read_text()
        assert "<script>" not in text and "<style" not in text, page
        assert (
            re.findall(r"<[a-z]+\b[^>]*\s(?:style|onclick|onload)=", re.sub(r"<code.*?</code>", "", text, flags=re.S))
            == []
        ), page


def test_every_link_leads_to_a_page_and_every_anchor_to_a_place_in_it(built_site):
    ids = {page: set(ID.findall(page.read_text())) for page in built_site.rglob("*.html")}
    dead = set()
    for page in ids:
        for address in LINK.findall(page.read_text()):
            parts = urlsplit(address)
            # The page for unknown addresses has links from the root of the host.
            if parts.scheme or parts.netloc or page.name == "404.html":
                continue
            target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (parts.fragment and target in ids and unquote(parts.fragment) not in ids[target]):
                dead.add(f"{page.relative_to(built_site)}: {address}")
    assert dead == set()


def test_nothing_is_left_of_a_marker(built_site):
    assert not any("generated:" in page.read_text() for page in (built_site / "reference").glob("*.html"))


def test_a_folder_with_other_files_is_not_replaced_by_a_site(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(
        SiteError, match=r"is no documentation site and would be deleted; name a new or an empty folder"
    ):
        generate(tmp_path / "pages", tmp_path)
    assert (tmp_path / "thesis.tex").exists()


def test_a_site_replaces_an_earlier_one_and_leaves_nothing_beside_it(tmp_path):
    site, built = tmp_path / "site", tmp_path / "built"
    for folder, text in ((site, "earlier"), (built, "new")):
        folder.mkdir()
        (folder / "index.html").write_text(text)
    replace(site, built)
    assert (site / "index.html").read_text() == "new" and list(tmp_path.iterdir()) == [site]

"""What the pages say of the REST API is there: each method and address that they name."""

import re
from pathlib import Path

import pytest
from django.urls import Resolver404, resolve

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "examples" / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "docs" / "agents" / "white-box.md",
]
API = "/api/v1/"
METHOD = "GET|POST|PUT|PATCH|DELETE"
# "`GET`, `POST datasets`", "`PATCH /api/v1/keys/<id>/limits`", "curl -X PUT "http://127.0.0.1:8000/api/v1/split"".
SAID = re.compile(rf'(?:`({METHOD})`, `)?({METHOD}) (?:… )?(?:"?https?://[^/\s]+)?(/?[a-z][^\s`"?,]*)')
PLACE = re.compile(r"\{[^}]*\}|<[^>]*>|\$\w+|[a-z]+_…")


def find_said(page: Path) -> set[tuple[str, str]]:
    """Return the methods and whole addresses that a page names, model calls (`/v1/…`) left out."""
    said = set()
    for also, method, named in SAID.findall(page.read_text()):
        address = named if named.startswith(("/api/", "/v1/")) else API + named.removeprefix("/")
        if address.startswith(API):
            said |= {(each, PLACE.sub("1", address)) for each in (also, method) if each}
    return said


def takes(method: str, address: str) -> bool:
    """Whether the REST API has this address, and this method there."""
    try:
        view = resolve(address).func
    except Resolver404:
        return False
    return hasattr(getattr(view, "view_class", None), method.lower())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_method_and_address_that_a_page_names_is_there(page: Path) -> None:
    assert [said for said in sorted(find_said(page)) if not takes(*said)] == []


def test_the_pages_name_what_is_looked_for() -> None:
    said = set().union(*map(find_said, PAGES))
    assert len(said) > 40
    assert said >= {
        ("PUT", "/api/v1/split"),
        ("GET", "/api/v1/score-schemas"),
        ("POST", "/api/v1/score-schemas"),
        ("POST", "/api/v1/engines/1/check"),
        ("POST", "/api/v1/graders/1/versions/1/dry-runs"),
    }
    assert not takes("PUT", "/api/v1/aliases/candidate")

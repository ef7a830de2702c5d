"""Decisions are cited by number, so each has one of its own, and its heading says the same as its name."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "decisions"


def test_each_decision_has_a_number_of_its_own() -> None:
    files = sorted(FOLDER.glob("*.md"))
    assert [int(file.name[:4]) for file in files] == list(range(1, len(files) + 1))


def test_headings_say_the_number() -> None:
    for file in FOLDER.glob("*.md"):
        assert file.read_text().startswith(f"# {int(file.name[:4])}. "), file.name

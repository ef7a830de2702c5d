"""Reading the Procfile."""

from pathlib import Path

import pytest

from apps.core.contracts.tasks import ROUTES
from worker.host.errors import HostError
from worker.host.programs import read_procfile

ROOT = Path(__file__).resolve().parents[3]


def write(folder: Path, text: str) -> Path:
    path = folder / "Procfile"
    path.write_text(text)
    return path


def test_variables_are_filled_in_after_the_words_are_split(tmp_path: Path) -> None:
    path = write(tmp_path, "# what runs\n\nweb: serve --dir ${DIR} --port ${PORT}\n")
    (web,) = read_procfile(path, variables={"DIR": "/a folder/x", "PORT": "8000"})
    assert web.name == "web"
    assert web.command == ("serve", "--dir", "/a folder/x", "--port", "8000")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("web serve", "line 1: expected `name: command`"),
        ("web:", "line 1: expected `name: command`"),
        ("we b: serve", "line 1: expected `name: command`"),
        ("web: serve ${NOWHERE}", "line 1: the variable 'NOWHERE' is not known"),
        ("web: serve $", "line 1: Invalid placeholder"),
        ("web: serve 'open", "line 1: No closing quotation"),
    ],
)
def test_a_line_that_cannot_be_understood_is_said(tmp_path: Path, line: str, words: str) -> None:
    with pytest.raises(HostError, match=words):
        read_procfile(write(tmp_path, line), variables={})


def test_the_houses_own_procfile_is_understood() -> None:
    names = (
        "HOST",
        "PORT",
        "ENGINE_PORT",
        "ENGINE_DTYPE",
        "MAX_LORA_RANK",
        "MEDIA_DOMAINS",
        "ML_PYTHON",
        "MODEL",
        "SERVED_NAME",
    )
    programs = read_procfile(ROOT / "Procfile", variables={f"CLAW_{name}": name for name in names})
    workers = {program.name for program in programs if "-Q" in program.command}
    assert workers == {"cpu", "grade", "train", "refresh", "reconcile"} == set(ROUTES.values())
    assert {program.name for program in programs} - workers == {"web", "recorder", "recorder_2", "beat", "engine"}

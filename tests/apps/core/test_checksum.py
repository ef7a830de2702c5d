"""The checksum of a folder changes with names, bytes and where one file ends."""

from pathlib import Path

from apps.core.contracts.checksum import hash_folder


def folder(root: Path, name: str, files: dict[str, str]) -> Path:
    made = root / name
    made.mkdir()
    for file, content in files.items():
        (made / file).write_text(content)
    return made


def test_equal_folders_have_equal_checksums(tmp_path: Path) -> None:
    one = folder(tmp_path, "one", {"a": "1", "b": "2"})
    other = folder(tmp_path, "other", {"b": "2", "a": "1"})
    assert hash_folder(one) == hash_folder(other)


def test_every_difference_shows(tmp_path: Path) -> None:
    contents = [{"a": "1", "b": "2"}, {"a": "12", "b": ""}, {"a": "1", "c": "2"}, {"a": "1"}, {"a": "1", "b": "3"}, {}]
    sums = {hash_folder(folder(tmp_path, str(number), files)) for number, files in enumerate(contents)}
    assert len(sums) == len(contents)

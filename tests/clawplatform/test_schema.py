"""The OpenAPI description of the REST API."""

from pathlib import Path

from django.core.management import call_command


def test_it_is_valid_and_leaves_nothing_to_guess(tmp_path: Path) -> None:
    target = tmp_path / "schema.yml"
    call_command("spectacular", "--validate", "--fail-on-warn", "--file", str(target))
    text = target.read_text()
    for path in ("/api/v1/runs:", "/api/v1/trajectories:", "/api/v1/versions:", "/api/v1/aliases/{name}:"):
        assert path in text
    assert "$defs" not in text
    for setting in ("trajectories_per_step:", "min_reward:"):
        assert text.count(setting) >= 2  # asked and answered
    for tag in ("runs", "trajectories", "versions", "agents"):
        assert f"tags:\n      - {tag}\n" in text

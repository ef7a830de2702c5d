"""Commands and configurations for copying."""

import shlex

from apps.console.snippets import curl


def test_a_shell_takes_an_address_with_a_question_mark_as_it_stands() -> None:
    command = curl("GET", "/api/v1/trajectories?q=reward%3E0&limit=2")
    assert "curl -s 'http://" in command  # zsh would look for files that match, and & ends a command
    assert shlex.split(command)[2].endswith("/api/v1/trajectories?q=reward%3E0&limit=2")
    assert curl("POST", "/api/v1/runs", {}).startswith("curl -s -X POST http://")

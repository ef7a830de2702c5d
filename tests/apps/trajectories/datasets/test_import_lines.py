"""Bad lines of an import: each by its number, and the rest comes in."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.trie import load_steps
from tests.apps.trajectories.datasets.import_rows import (
    CHAT,
    HUMAN,
    MESSAGES,
    NESTED,
    SHAREGPT,
    TOKENS,
    USER,
    bad,
    claw_r1,
    spell_chat,
)
from tests.apps.trajectories.datasets.importer import ImportRows, as_lines, import_file, problems_of
from tests.factories.registry import PolicyFactory
from tests.factories.trajectories import TOOL

pytestmark = pytest.mark.django_db


def said(**members: Any) -> dict[str, Any]:
    """A line in which the assistant says this."""
    return {"messages": [USER, {"role": "assistant", "content": "Which one?", **members}]}


def calls_function(value: str) -> dict[str, Any]:
    """A line of ShareGPT's in which a call is spelled so."""
    return bad(SHAREGPT, conversations=[HUMAN, {"from": "function_call", "value": value}])


class TestBadLines:
    @pytest.mark.parametrize(
        ("row", "words"),
        [
            (b"{", "not JSON"),
            (b"\xff\xfe", "not JSON"),
            (b"[1]", "no object"),
            ({"text": "hello"}, "no known kind"),
            (bad(TOKENS, logprobs=[-0.5]), "1 log-probs for 2 completion ids"),
            (bad(TOKENS, mask=[1]), "1 entries for 2"),
            (bad(TOKENS, logprobs=[-0.5, 0.5]), "logprobs.1"),
            (bad(TOKENS, prompt_ids=[]), "prompt_ids"),
            (bad(TOKENS, prompt_ids=[1, "2"]), "prompt_ids.1: a whole number is needed"),
            (bad(TOKENS, prompt_ids=[2**31]), "prompt_ids.0"),
            (bad(TOKENS, reward=5), "scale it first"),
            (bad(TOKENS, trajectory_reward=5), "trajectory_reward: a reward is a number from -1 to 1"),
            (bad(CHAT, messages=CHAT["messages"][:1]), "messages: there must be at least 2; here are 1"),
            (bad(TOKENS, rewrd=1), "rewrd: nothing of this name is known"),
            (bad(TOKENS, format="claw.tokens.v9"), "format"),
            (bad(TOKENS, n_rows=2), "has 2 rows; here are 1"),
            (bad(TOKENS, title="\x00"), "cannot be stored"),
            (bad(TOKENS, title="t" * 201), "200 characters"),
            (bad(TOKENS, format="claw.messages.v1"), "messages"),
            (bad(TOKENS, metadata={"a": "x" * 20_000}), "16384 bytes"),
            (bad(TOKENS, metadata={"a": [math.inf]}), "no numbers of JSON"),
            (bad(CHAT, metadata={"a": math.nan}), "no numbers of JSON"),
            (claw_r1(1, rollout_log_probs=[-1, -1]), "2 log-probs for 1 response ids"),
            (claw_r1(0), "unfinished"),
            (claw_r1(1, multi_modal_data={"image": "x"}), "pictures"),
            (bad(CHAT, messages=CHAT["messages"][:4]), "nothing answers it"),
            (bad(CHAT, messages=CHAT["messages"][2:]), "cannot come first"),
            (bad(CHAT, messages=[{"role": "robot", "content": "x"}] * 2), "messages.0.role"),
            (bad(CHAT, messages=[{"role": "user", "content": ""}] * 2), "says nothing"),
            (bad(CHAT, messages=[{"role": "user", "content": 5}] * 2), "messages.0.content"),
            (bad(CHAT, messages=[5, CHAT["messages"][2]]), "messages.0: it is an object"),
            (said(content=[5]), "messages.1.content.0: a part is an object"),
            (said(content=[{"type": "text", "text": 5}]), "messages.1.content.0.text: it is a text"),
            (said(weight=0.5), "messages.1.weight: it is 0 or 1; this is 0.5"),
            (said(name=5), "messages.1.name: it is a text"),
            (said(tool_calls="look"), "messages.1.tool_calls: it is a list of calls"),
            (said(tool_calls=[5]), "messages.1.tool_calls.0: it is an object"),
            (said(tool_calls=[{"type": "custom"}]), "messages.1.tool_calls.0.type: it is function; this is 'custom'"),
            (
                said(tool_calls=[{"function": "look"}]),
                "messages.1.tool_calls.0.function: it is an object with a `name`",
            ),
            (said(tool_calls=[{"function": {"name": 5}}]), "messages.1.tool_calls.0.function: it is an object with"),
            (said(tool_calls=[{"id": 5, "function": {"name": "look"}}]), "messages.1.tool_calls.0.id: it is a text"),
            (
                said(tool_calls=[{"function": {"name": "look", "arguments": [1]}}]),
                "messages.1.tool_calls.0.function.arguments: they are an object, or a text that spells one",
            ),
            (said(function_call=5), "messages.1.function_call: it is an object with a `name`"),
            (said(function_call={"name": "look", "arguments": 5}), "messages.1.function_call.arguments: they are"),
            (bad(CHAT, tools=[5]), "tools.0: it is an object"),
            (bad(CHAT, tools=[TOOL, {"name": "look"}]), "tools.1.function: it is an object with a `name`"),
            (bad(CHAT, tools=[{"type": "web_search"}]), "tools.0.type: it is function; this is 'web_search'"),
            (bad(CHAT, tools={"name": "look"}), "tools"),
            (bad(MESSAGES, tools=[5]), "tools.0: it is an object"),
            (bad(MESSAGES, messages=[5, MESSAGES["messages"][1]]), "messages.0: it is an object"),
            (bad(SHAREGPT, tools="[5]"), "tools.0: it is an object"),
            (bad(SHAREGPT, tools='[{"name": 5}]'), "tools.0.function: it is an object with a `name`"),
            (calls_function('{"name": 5}'), "conversations.1.value: the name of a call is a text"),
            (calls_function('{"name": "look", "arguments": null}'), "conversations.1.value.arguments: they are"),
            (bad(SHAREGPT, conversations=[{"from": "robot", "value": "x"}] * 2), "conversations.0.from"),
            (bad(SHAREGPT, conversations=[{"from": "gpt"}] * 2), "conversations.0.value"),
            (bad(SHAREGPT, conversations=[{"from": "function_call", "value": "x"}] * 2), "a call is JSON"),
            (bad(SHAREGPT, tools="{"), "tools"),
            (bad(SHAREGPT, tools="[" * 100_000), "tools: this is nested"),
            (bad(SHAREGPT, tools=NESTED), "tools: this is nested"),
            (bad(SHAREGPT, conversations=[HUMAN, {"from": "function_call", "value": "[" * 100_000}]), "a call is JSON"),
            (bad(CHAT, messages=[bad(USER, x=math.nan), CHAT["messages"][2]]), "no numbers of JSON"),
            (spell_chat('"x": 1e999'), "no numbers of JSON"),
            (spell_chat(f'"x": {"1" * 400}.5'), "no numbers of JSON"),
            (spell_chat(r'"x": "\ud83d and no more"'), "half a surrogate pair"),
            (bad(CHAT, tools=[math.inf]), "no numbers of JSON"),
            (bad(CHAT, messages=[bad(USER, content=json.loads(NESTED)), CHAT["messages"][2]]), "levels deep"),
            (bad(TOKENS, answer={"role": "assistant", "content": json.loads(NESTED)}), "levels deep"),
            (bad(TOKENS, answer={"role": "assistant", "content": math.nan}), "no numbers of JSON"),
            (bad(TOKENS, started_at="2026-13-01"), "started_at: a date and time is needed"),
            (bad(TOKENS, started_at="0001-01-01T00:00:00+14:00"), "the year 1"),
            (bad(TOKENS, trajectory_started_at="9999-12-31T23:59:59-14:00"), "the year 9999"),
            (bad(TOKENS, version="ver_\x00"), "cannot be stored"),
            (bad(TOKENS, version="v" * 101), "version"),
            (bad(TOKENS, temperature=-1), "temperature"),
            (bad(TOKENS, top_p=1.5), "top_p: it must be 1 or less"),
            ("é".encode("latin-1"), "not UTF-8"),
        ],
    )
    def test_it_is_told_by_its_number_and_the_rest_is_imported(
        self, import_rows: ImportRows, row: Any, words: str
    ) -> None:
        source = import_rows(CHAT, row, b"", SHAREGPT)
        ((line, reason),) = problems_of(source)
        assert line == 2
        assert words in reason
        assert (source.state, source.n_lines, source.n_imported, source.n_refused) == ("done", 4, 2, 1)
        assert Trajectory.objects.count() == 2

    @pytest.mark.parametrize(
        "row",
        [
            said(content=None, tool_calls=[{"id": None, "function": {"name": "look", "arguments": {"at": "sky"}}}]),
            said(tool_calls=None, function_call=None, name=None, weight=1.0),
            said(content="", tool_calls=[], function_call={"name": "look", "arguments": "not JSON"}),
            said(content=[{"type": "text", "text": "so"}, {"type": "image_url", "image_url": {"url": "x"}}]),
            calls_function('{"name": "look"}'),
        ],
    )
    def test_what_other_makers_write_too_is_taken(self, import_rows: ImportRows, row: Any) -> None:
        source = import_rows(row)
        assert (problems_of(source), source.n_imported) == ([], 1)

    def test_all_are_refused_if_that_was_asked(self, import_rows: ImportRows) -> None:
        source = import_rows(CHAT, b"{", bad(TOKENS, logprobs=[-0.5]), is_all_or_none=True)
        assert (source.state, source.n_imported, source.n_refused) == ("failed", 0, 2)
        assert "nothing was imported" in source.error
        assert [line for line, _ in problems_of(source)] == [2, 3]
        assert not Trajectory.objects.exists()

    def test_all_are_imported_if_all_are_good(self, import_rows: ImportRows) -> None:
        source = import_rows(CHAT, SHAREGPT, is_all_or_none=True)
        assert (source.state, source.n_imported) == ("done", 2)

    def test_a_bad_reward_is_named_as_the_file_names_it(self, import_rows: ImportRows) -> None:
        ((_, reason),) = problems_of(import_rows(bad(CHAT, reward=5)))
        assert reason == "reward: a reward is a number from -1 to 1; this is 5.0: scale it first"

    def test_a_trajectory_with_a_bad_line_is_left_out_whole(self, import_rows: ImportRows) -> None:
        source = import_rows(claw_r1(0), CHAT, claw_r1(1, rollout_log_probs=[]))
        ((line, reason),) = problems_of(source)
        assert line == 3
        assert "lines 1 to 3" in reason
        assert Trajectory.objects.get().title == "Where is my parcel?"

    def test_ids_that_the_projects_model_does_not_have_are_told(
        self, import_rows: ImportRows, project: Project, tmp_path: Path
    ) -> None:
        (tmp_path / "config.json").write_text('{"vocab_size": 9}')
        PolicyFactory.create(project=project, base_model_dir=str(tmp_path))
        source = import_rows(claw_r1(0, response_ids=[8], is_last=True), claw_r1(0, uid="u2", is_last=True))
        ((line, reason),) = problems_of(source)
        assert (line, reason) == (2, "completion ids: the model's end at 8; 9 is none of them")
        assert source.n_imported == 1

    @pytest.mark.parametrize(
        ("steps", "line", "words"),
        [
            ([claw_r1(0), claw_r1(2, is_last=True)], 2, "has no step 1; this is step 2"),
            ([claw_r1(2, is_last=True), claw_r1(1, is_last=False)], 2, "has no step 0; this is step 1"),
            ([claw_r1(0), claw_r1(1), claw_r1(1)], 3, "has two steps 1"),
            (
                [claw_r1(0), claw_r1(1, is_last=False), claw_r1(None, is_last=True)],
                3,
                "other steps of the trajectory u1 have one",
            ),
        ],
    )
    def test_a_step_of_claw_r1_that_is_missing_or_there_twice_is_told(
        self, import_rows: ImportRows, steps: list[dict[str, Any]], line: int, words: str
    ) -> None:
        source = import_rows(*steps, CHAT)
        ((at, reason),) = problems_of(source)
        assert at == line
        assert words in reason
        assert Trajectory.objects.get().title == "Where is my parcel?"

    def test_steps_of_claw_r1_without_any_index_are_in_the_order_of_their_lines(self, import_rows: ImportRows) -> None:
        source = import_rows(*(claw_r1(step) | {"step_index": None} for step in (0, 1)))
        assert (source.n_imported, source.n_refused) == (1, 0)
        assert [step.row.metadata["turn"] for step in load_steps(Trajectory.objects.get())] == [0, 1]

    def test_a_line_that_is_nested_too_deep_is_told_in_words(self, agent: Agent, caller: Caller) -> None:
        source = import_file(b"[" * 50_000 + b"]" * 50_000 + b"\n", agent=agent, caller=caller)
        assert "levels deep" in problems_of(source)[0][1]

    def test_lines_after_one_without_end_keep_their_numbers(
        self, import_rows: ImportRows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("apps.trajectories.datasets.import_file.MAX_LINE_BYTES", 1000)
        source = import_rows(CHAT, b"x" * 3500, b"{", SHAREGPT)
        assert [line for line, _ in problems_of(source)] == [2, 3]
        assert (source.n_lines, source.n_imported) == (4, 2)
        padded = json.dumps(bad(CHAT, title="late")).encode() + b" " * 1000  # it could be read
        ((line, reason),) = problems_of(import_rows(padded))
        assert (line, "a line may have" in reason) == (1, True)

    def test_line_ends_and_marks_of_other_systems_change_nothing(self, agent: Agent, caller: Caller) -> None:
        lines = as_lines([CHAT, SHAREGPT, b"{"]).replace(b"\n", b"\r\n")
        source = import_file(b"\xef\xbb\xbf" + lines, agent=agent, caller=caller)
        assert ([line for line, _ in problems_of(source)], source.n_imported) == ([3], 2)

    def test_a_time_without_a_zone_is_utc(self, import_rows: ImportRows) -> None:
        import_rows(bad(TOKENS, started_at="2026-01-02T03:04:05", ended_at="2026-01-02T05:04:05+01:00"))
        step = Step.objects.get()
        assert step.started_at == datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
        assert step.ended_at == datetime(2026, 1, 2, 4, 4, 5, tzinfo=UTC)

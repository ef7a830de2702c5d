"""Imports: every format, every bad line by its number, the same content once, and what a killed worker leaves."""

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import time_machine
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, Project, User
from apps.core.errors import Conflict, Forbidden, InvalidInput, NotFound
from apps.feedback.importing import reward_imported
from apps.feedback.models import Label
from apps.trajectories.datasets import import_job, import_writing, importing, storage
from apps.trajectories.datasets.chat_lines import read_openai
from apps.trajectories.datasets.import_writing import write_trajectories
from apps.trajectories.datasets.importing import ImportSettings
from apps.trajectories.datasets.incoming import tell_incoming
from apps.trajectories.datasets.models import AddedBy, Dataset, DatasetMember, Import, ImportedTrajectory
from apps.trajectories.models import Step, Trajectory, TrajectoryState
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_matching
from apps.trajectories.trie import load_steps, load_tools
from tests.apps.trajectories.datasets.importer import ImportRows, as_lines, import_file, problems_of
from tests.factories.accounts import AgentFactory
from tests.factories.datasets import DatasetFactory
from tests.factories.registry import PolicyFactory
from tests.factories.trajectories import TOOL

pytestmark = pytest.mark.django_db

CHAT: dict[str, Any] = {
    "messages": [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "Where is my parcel?"},
        {"role": "assistant", "content": "Which one?"},
        {"role": "user", "content": "The red one."},
        {"role": "assistant", "content": "On its way."},
    ],
    "tools": [TOOL],
    "reward": 0.5,
    "source": "helpdesk",
}
SHAREGPT: dict[str, Any] = {
    "id": "s1",
    "system": "Be short.",
    "conversations": [
        {"from": "human", "value": "Weather?"},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"at": "sky"}}'},
        {"from": "observation", "value": "blue"},
        {"from": "gpt", "value": "Fine."},
    ],
    "tools": '[{"name": "look", "parameters": {}}]',
}
TOKENS = {
    "format": "claw.tokens.v1",
    "trajectory": "t1",
    "n_rows": 1,
    "index": 0,
    "prompt_ids": [1, 2],
    "completion_ids": [3, 4],
    "logprobs": [-0.5, -0.25],
    "is_exact": True,
}


NESTED = "[" * 300 + "]" * 300
USER = CHAT["messages"][1]
HUMAN = SHAREGPT["conversations"][0]


def spell_chat(member: str) -> bytes:
    """Return a conversation in which the user's message has a member that is spelled so."""
    messages = f'[{{"role": "user", "content": "Hello", {member}}}, {json.dumps(CHAT["messages"][2])}]'
    return f'{{"messages": {messages}}}'.encode()


def claw_r1(step: int | None, *, uid: str = "u1", **more: Any) -> dict[str, Any]:
    row = {
        "prompt_ids": [1, 2, *[9] * (step or 0)],
        "response_ids": [9],
        "rollout_log_probs": [-0.5],
        "trajectory_uid": uid,
        "prompt_uid": "p7",
        "step_index": step,
        "policy_version": 3,
        "is_last": step == 1,
        "reward": None,
        "metadata": {"turn": step},
    }
    return {**row, **more}


@pytest.fixture
def import_rows(agent: Agent, caller: Caller) -> ImportRows:
    """Return a function that imports rows as lines of JSON."""

    def call(*rows: Any, **more: Any) -> Import:
        return import_file(as_lines(rows), **{"agent": agent, "caller": caller, **more})

    return call


class TestFormats:
    def test_openai_chat(self, import_rows: ImportRows, agent: Agent) -> None:
        source = import_rows(CHAT)
        assert (source.state, source.n_lines, source.n_imported, source.n_refused) == ("done", 1, 1, 0)
        row = Trajectory.objects.get()
        assert (row.agent, row.state, row.reward, row.n_steps) == (agent, TrajectoryState.COMPLETE, 0.5, 2)
        assert (row.title, row.metadata, row.channel) == ("Where is my parcel?", {"source": "helpdesk"}, "train")
        first, second = load_steps(row)
        assert (first.messages, first.answer) == (CHAT["messages"][:2], CHAT["messages"][2])
        assert (second.messages, second.answer) == (CHAT["messages"][:4], CHAT["messages"][4])
        assert (second.row.parent_id, second.row.shared_messages) == (first.row.pk, 3)
        assert (first.row.is_exact, first.prompt_ids) == (False, [])
        assert load_tools(project_id=agent.project_id, digest=first.row.tools_digest) == [TOOL]

    def test_a_message_of_weight_zero_is_kept_out_of_training(self, import_rows: ImportRows) -> None:
        messages = [dict(message) for message in CHAT["messages"]]
        messages[2]["weight"] = 0
        import_rows({"messages": messages})
        assert list(Step.objects.order_by("index").values_list("is_excluded", flat=True)) == [True, False]
        assert "weight" not in load_steps(Trajectory.objects.get())[0].answer

    def test_sharegpt(self, import_rows: ImportRows, agent: Agent) -> None:
        import_rows(SHAREGPT)
        row = Trajectory.objects.get()
        first, second = load_steps(row)
        call = first.answer["tool_calls"][0]
        assert call["function"] == {"name": "look", "arguments": '{"at": "sky"}'}
        assert second.messages[-1] == {"role": "tool", "tool_call_id": call["id"], "content": "blue"}
        assert (second.answer["content"], row.metadata) == ("Fine.", {"id": "s1"})
        tools = load_tools(project_id=agent.project_id, digest=first.row.tools_digest)
        assert tools == [{"type": "function", "function": {"name": "look", "parameters": {}}}]

    def test_claw_r1_steps_wherever_they_stand(self, import_rows: ImportRows) -> None:
        source = import_rows(claw_r1(1, reward=1), claw_r1(0, uid="u2"), claw_r1(0), claw_r1(1, uid="u2"))
        assert (source.n_total, source.n_imported) == (2, 2)
        row = Trajectory.objects.order_by("id").first()
        assert row is not None
        assert (row.group, row.reward, row.n_prompt_tokens, row.n_completion_tokens) == ("p7", 1.0, 5, 2)
        first, second = load_steps(row)
        assert (first.prompt_ids, first.completion_ids, first.logprobs) == ([1, 2], [9], [-0.5])
        assert (second.prompt_ids, second.row.parent_id) == ([1, 2, 9], first.row.pk)
        assert (second.row.shared_tokens, second.row.is_exact) == (3, True)
        assert first.row.metadata == {"turn": 0, "policy_version": 3}
        assert (first.row.reward, second.row.reward) == (None, 1.0)

    def test_tokens_as_exported(self, import_rows: ImportRows) -> None:
        import_rows(
            {**TOKENS, "trajectory_reward": 0.25, "reward": -1, "version": "ver_elsewhere", "side_call": "title"}
        )
        (view,) = load_steps(Trajectory.objects.get())
        assert (view.prompt_ids, view.completion_ids, view.logprobs) == ([1, 2], [3, 4], [-0.5, -0.25])
        assert (view.row.reward, Trajectory.objects.get().reward, view.row.side_call) == (-1.0, 0.25, "title")
        assert view.row.metadata == {"imported_version": "ver_elsewhere"}

    def test_parquet_by_rows(self, agent: Agent, caller: Caller, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        chat = {"messages": [CHAT["messages"], [{"role": "robot"}] * 2]}
        pq.write_table(pa.table({"messages": [str(rows).replace("'", '"') for rows in chat["messages"]]}), path)
        source = import_file(path.read_bytes(), agent=agent, caller=caller)
        assert (source.state, source.n_lines, source.n_imported) == ("done", 2, 1)
        assert problems_of(source)[0][0] == 2

    def test_the_format_and_channel_that_were_named(self, import_rows: ImportRows) -> None:
        source = import_rows(CHAT, row_format="sharegpt", channel="val")
        assert "conversations" in problems_of(source)[0][1]
        import_rows(CHAT, channel="val")
        assert Trajectory.objects.get().channel == "val"

    def test_what_is_imported_is_found_by_its_words_and_in_its_dataset(
        self, import_rows: ImportRows, dataset: Dataset, agent: Agent
    ) -> None:
        import_rows(CHAT, dataset=dataset)
        member = DatasetMember.objects.get()
        assert (member.dataset, member.added_how) == (dataset, AddedBy.IMPORT)
        found = find_matching(project=agent.project, query=parse_query('"red one"'))
        assert list(found) == [Trajectory.objects.get()]


def bad(line: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {**line, **changes}


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
            (bad(TOKENS, prompt_ids=[1, "2"]), "prompt_ids.1"),
            (bad(TOKENS, prompt_ids=[2**31]), "prompt_ids.0"),
            (bad(TOKENS, reward=5), "scale it first"),
            (bad(TOKENS, trajectory_reward=5), "trajectory_reward: a reward is a number from -1 to 1"),
            (bad(CHAT, messages=CHAT["messages"][:1]), "messages: there must be at least 2; here are 1"),
            (bad(TOKENS, rewrd=1), "rewrd"),
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
            (bad(TOKENS, started_at="2026-13-01"), "started_at"),
            (bad(TOKENS, started_at="0001-01-01T00:00:00+14:00"), "the year 1"),
            (bad(TOKENS, trajectory_started_at="9999-12-31T23:59:59-14:00"), "the year 9999"),
            (bad(TOKENS, version="ver_\x00"), "cannot be stored"),
            (bad(TOKENS, version="v" * 101), "version"),
            (bad(TOKENS, temperature=-1), "temperature"),
            (bad(TOKENS, top_p=1.5), "top_p"),
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


class TestLists:
    """A file that is one list of JSON, as data sets of ShareGPT's kind are."""

    @pytest.mark.parametrize("indent", [None, 1])
    @pytest.mark.parametrize("chunk", [3, 1 << 20])
    def test_its_items_are_lines(
        self, agent: Agent, caller: Caller, monkeypatch: pytest.MonkeyPatch, indent: int | None, chunk: int
    ) -> None:
        monkeypatch.setattr("apps.trajectories.datasets.json_lists._CHUNK", chunk)
        odd = {
            "conversations": [{"from": "human", "value": 'a "]},{[" \\ line\nbreak é'}, {"from": "gpt", "value": "x"}]
        }
        content = json.dumps([CHAT, {"no": "kind"}, odd, SHAREGPT], indent=indent, ensure_ascii=False).encode()
        source = import_file(b"\xef\xbb\xbf \n" + content + b"\n ", agent=agent, caller=caller)
        assert ([line for line, _ in problems_of(source)], source.n_lines, source.n_imported) == ([2], 4, 3)
        said = [view.messages[0]["content"] for row in Trajectory.objects.all() for view in load_steps(row)]
        assert odd["conversations"][0]["value"] in said

    @pytest.mark.parametrize(
        ("rest", "words"),
        [
            (b", {]", "this item is not JSON"),
            (b", {}", "',' is missing"),
            (b" {}]", "',' should stand here, not '{}]'"),
            (b", \xff]", "not UTF-8"),
            (b"]\n[]", "more stands behind"),
            (b", " + b"[" * 100_000, "this item is not JSON"),
        ],
    )
    def test_where_it_breaks_off_is_told_and_what_stands_before_is_imported(
        self, agent: Agent, caller: Caller, monkeypatch: pytest.MonkeyPatch, rest: bytes, words: str
    ) -> None:
        monkeypatch.setattr("apps.trajectories.datasets.json_lists._CHUNK", 100)
        source = import_file(b"[" + json.dumps(CHAT).encode() + rest, agent=agent, caller=caller)
        line, reason = problems_of(source)[-1]
        assert (source.n_imported, line, words in reason) == (1, source.n_lines, True), reason

    def test_an_empty_one_holds_nothing(self, agent: Agent, caller: Caller) -> None:
        source = import_file(b"[]", agent=agent, caller=caller)
        assert (source.state, source.n_lines, source.n_imported) == ("done", 0, 0)


class TestParquet:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda _data: b"PAR1 and no more",
            lambda data: data[: len(data) // 2],
            lambda data: data[:-60] + bytes(60),
            lambda data: data[:40] + bytes(byte ^ 255 for byte in data[40:200]) + data[200:],
            lambda data: data[:-200] + b"\xff" * 100 + data[-100:],
        ],
    )
    def test_a_broken_file_is_told(
        self, agent: Agent, caller: Caller, tmp_path: Path, damage: Callable[[bytes], bytes]
    ) -> None:
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table({name: [value] * 20 for name, value in TOKENS.items()}), path)
        source = import_file(damage(path.read_bytes()), agent=agent, caller=caller)
        assert (source.state, "no whole Parquet file" in source.error) == ("failed", True)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"reward": [math.nan]}, "no numbers of JSON"),
            ({"logprobs": [[math.nan, -1.0]]}, "no numbers of JSON"),
            ({"prompt_ids": [[1.0, 2.5]]}, "prompt_ids"),
            ({"prompt_ids": ["1, 2"]}, "prompt_ids"),
            ({"answer": [b"x"]}, "JSON has no bytes"),
            ({"answer": ["[" * 100_000]}, "answer"),
            ({"reward": [timedelta(days=1)]}, "JSON has no timedelta"),
            ({"started_at": pa.array([1], type=pa.timestamp("ns"))}, "this row cannot be read"),
            ({"title": pa.array([b"\xff"]).cast(pa.string(), safe=False)}, "this row cannot be read"),
        ],
    )
    def test_a_cell_of_another_kind_is_told_by_its_row(
        self, agent: Agent, caller: Caller, tmp_path: Path, changes: dict[str, Any], words: str
    ) -> None:
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table({**{name: [value] for name, value in TOKENS.items()}, **changes}), path)
        source = import_file(path.read_bytes(), agent=agent, caller=caller)
        ((line, reason),) = problems_of(source)
        assert (source.state, line, words in reason) == ("done", 1, True), reason

    def test_a_cell_without_end_is_its_rows_fault(
        self, agent: Agent, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("apps.trajectories.datasets.import_file.MAX_LINE_BYTES", 5000)
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table({"messages": ["x" * 10_000, json.dumps(CHAT["messages"])]}), path)
        source = import_file(path.read_bytes(), agent=agent, caller=caller)
        ((line, reason),) = problems_of(source)
        assert (line, "a row may have" in reason, source.n_imported) == (1, True, 1)

    def test_times_and_decimals_are_what_json_says_of_them(self, agent: Agent, caller: Caller, tmp_path: Path) -> None:
        path = tmp_path / "rows.parquet"
        moment = datetime(2026, 1, 2, 3, tzinfo=UTC)
        odd = {
            "started_at": moment,
            "ended_at": date(2026, 1, 3),
            "reward": Decimal("0.5"),
        }
        pq.write_table(pa.table({name: [value] for name, value in {**TOKENS, **odd}.items()}), path)
        import_file(path.read_bytes(), agent=agent, caller=caller)
        step = Step.objects.get()
        assert (step.started_at, step.ended_at.day, step.reward) == (moment, 3, 0.5)

    def test_a_small_parquet_file_that_holds_very_much(
        self, agent: Agent, caller: Caller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("apps.trajectories.datasets.import_file.MAX_LINES_BYTES", 100_000)
        path = tmp_path / "rows.parquet"
        pq.write_table(pa.table({"messages": ["x" * 10_000] * 100}), path, compression="zstd")
        assert path.stat().st_size < 5000
        source = import_file(path.read_bytes(), agent=agent, caller=caller)
        assert (source.state, "send it in several" in source.error) == ("failed", True)


class TestOnce:
    def test_the_same_content_is_known(self, import_rows: ImportRows) -> None:
        import_rows(CHAT, SHAREGPT)
        source = import_rows(SHAREGPT, CHAT, {**CHAT, "reward": 0.25})
        assert (source.n_imported, source.n_known) == (1, 2)
        assert Trajectory.objects.count() == 3

    def test_it_is_taken_again_if_asked(self, import_rows: ImportRows) -> None:
        import_rows(CHAT)
        assert import_rows(CHAT, is_again=True).n_imported == 1
        assert Trajectory.objects.count() == 2

    def test_twice_in_one_file_is_two(self, import_rows: ImportRows) -> None:
        assert import_rows(CHAT, CHAT).n_imported == 2
        assert import_rows(CHAT, CHAT).n_known == 2

    def test_what_was_deleted_comes_back(self, import_rows: ImportRows) -> None:
        import_rows(CHAT)
        Trajectory.objects.update(deleted_at=timezone.now())
        assert import_rows(CHAT).n_imported == 1

    def test_another_project_does_not_know_it(self, import_rows: ImportRows, stranger: User) -> None:
        import_rows(CHAT)
        elsewhere = AgentFactory.create(project__team=stranger.memberships.get().team)
        assert import_rows(CHAT, agent=elsewhere, caller=Caller(user=stranger)).n_imported == 1


class TestJob:
    @pytest.mark.parametrize("is_again", [False, True])
    def test_a_killed_worker_is_followed_by_one_that_goes_on(
        self, agent: Agent, caller: Caller, monkeypatch: pytest.MonkeyPatch, is_again: bool
    ) -> None:
        made: list[Any] = []
        write = write_trajectories
        monkeypatch.setattr(import_job, "PIECE", 1)

        def write_and_die(*args: Any) -> Any:
            if len(made) == 2:
                raise KeyboardInterrupt
            made.append(None)
            return write(*args)

        content = as_lines([CHAT, SHAREGPT, claw_r1(0, is_last=True)])
        with monkeypatch.context() as patch:
            patch.setattr(import_job, "write_trajectories", write_and_die)
            with pytest.raises(KeyboardInterrupt):
                import_file(content, agent=agent, caller=caller, is_again=is_again)
        assert Trajectory.objects.count() == 2
        source = Import.objects.get()
        with time_machine.travel(timezone.now() + timedelta(minutes=2), tick=False):
            assert importing.resend_imports() == 1
            import_job.run_import(source.pk, reward=reward_imported)
        source.refresh_from_db()
        assert (source.state, source.n_imported, source.n_known) == ("done", 3, 0)
        assert Trajectory.objects.count() == 3

    def test_others_have_their_turn(self, import_rows: ImportRows, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(import_job, "PIECE", 1)
        source = import_rows(CHAT, b"{", bad(TOKENS, mask=[]), CHAT, SHAREGPT, slice_s=-1)
        assert (source.state, source.cursor, Trajectory.objects.count()) == ("queued", 1, 1)
        for _ in range(3):
            import_job.run_import(source.pk, reward=reward_imported, slice_s=-1)
        import_job.run_import(source.pk, reward=reward_imported)
        source.refresh_from_db()
        assert (source.state, source.n_imported, source.n_refused) == ("done", 3, 2)
        assert [line for line, _ in problems_of(source)] == [2, 3]

    def test_rewards_are_labels(self, import_rows: ImportRows) -> None:
        import_rows(claw_r1(0, reward=0.0), claw_r1(1, reward=1.0), CHAT)
        steps = Label.objects.filter(step__isnull=False)
        assert set(steps.values_list("value", flat=True)) == {0.0, 1.0}
        whole = Label.objects.get(step=None)  # the steps' mean says it of the other
        assert (whole.value, whole.source, "rows.jsonl" in whole.text) == (0.5, "environment", True)
        assert set(Trajectory.objects.values_list("reward", flat=True)) == {0.5}

    def test_its_file_is_gone_afterwards(self, import_rows: ImportRows, data_dir: Path) -> None:
        import_rows(CHAT)
        assert not list((data_dir / "imports").iterdir())

    def test_what_a_killed_worker_left_of_an_ended_one_goes(self, import_rows: ImportRows, data_dir: Path) -> None:
        source = import_rows(CHAT)
        for name in (source.id, "impt_being_made"):
            storage.job_folder(name, kind="imports")
        importing.resend_imports()
        assert [folder.name for folder in (data_dir / "imports").iterdir()] == ["impt_being_made"]

    def test_it_is_cancelled(self, agent: Agent, caller: Caller) -> None:
        content = as_lines([CHAT])
        start = partial(importing.start_import, agent=agent, caller=caller, settings=ImportSettings())
        source = start(chunks=[content], file_name="a", n_bytes=len(content))
        importing.cancel_import(source=source, caller=caller)
        import_job.run_import(source.pk, reward=reward_imported)
        assert not Trajectory.objects.exists()
        with pytest.raises(Conflict):
            importing.cancel_import(source=source, caller=caller)


class TestStart:
    def test_a_reviewer_imports_nothing(self, agent: Agent, mate: User) -> None:
        with pytest.raises(Forbidden):
            import_file(as_lines([CHAT]), agent=agent, caller=Caller(user=mate))

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            (b"", "empty"),
            (b"\x1f\x8b\x08", "unpack"),
            (b"PK\x03\x04", "unpack"),
            ("{}".encode("utf-16"), "not UTF-8"),
            (b"{\x00}\x00", "not UTF-8"),
            (b"x" * 100, "several"),
        ],
    )
    def test_a_file_that_is_none(
        self, agent: Agent, caller: Caller, data_dir: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, words: str
    ) -> None:
        monkeypatch.setattr("apps.trajectories.datasets.import_file.MAX_BYTES", 50)
        with pytest.raises(Exception, match=words):
            import_file(content, agent=agent, caller=caller)
        assert not Import.objects.exists()
        assert not list((data_dir / "imports").iterdir())

    @pytest.mark.parametrize("wrong", [{"row_format": "odd"}, {"channel": "odd"}])
    def test_bad_settings(self, agent: Agent, caller: Caller, wrong: dict[str, Any]) -> None:
        with pytest.raises(InvalidInput):
            import_file(as_lines([CHAT]), agent=agent, caller=caller, **wrong)

    def test_another_projects_dataset(self, agent: Agent, caller: Caller) -> None:
        with pytest.raises(NotFound):
            import_file(as_lines([CHAT]), agent=agent, caller=caller, dataset=DatasetFactory.create())

    def test_a_disk_without_room(self, agent: Agent, caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(storage, "RESERVE_BYTES", 2**60)
        with pytest.raises(storage.DiskFull, match="make room"):
            import_file(as_lines([CHAT]), agent=agent, caller=caller)
        assert not ImportedTrajectory.objects.exists()


def talk(n_turns: int) -> dict[str, Any]:
    """Return a conversation of so many answers."""
    turns = [{"user": f"Question {turn}?", "assistant": f"Answer {turn}."} for turn in range(n_turns)]
    return {"messages": [{"role": role, "content": text} for turn in turns for role, text in turn.items()]}


class TestLongConversations:
    def test_each_message_is_told_once(self) -> None:
        few, many = (len(tell_incoming(read_openai([(1, talk(n))]))) for n in (50, 100))
        assert many < 2.1 * few

    def test_each_message_is_spelled_when_it_is_new(
        self, import_rows: ImportRows, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spell, spelled = import_writing._Writer._spell, list[Any]()

        def count(self: import_writing._Writer, value: Any) -> str:
            spelled.append(value)
            return spell(self, value)

        monkeypatch.setattr(import_writing._Writer, "_spell", count)
        import_rows(talk(100))
        assert (
            len(spelled) == 4 * 100 - 1
        )  # a question, and an answer as what is said, kept and, but for the last, heard
        views = load_steps(Trajectory.objects.get())
        assert [view.row.shared_messages for view in views] == list(range(0, 200, 2))
        assert views[-1].messages == talk(100)["messages"][:-1]

    def test_what_was_said_early_makes_another_conversation(self, import_rows: ImportRows) -> None:
        import_rows(talk(3))
        other = talk(3)
        other["messages"][0] = {"role": "user", "content": "Another question?"}
        assert (import_rows(other, talk(3)).n_imported, Trajectory.objects.count()) == (1, 2)

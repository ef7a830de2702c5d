"""Imports: every format, and the same content once."""

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from django.utils import timezone

from apps.accounts.access import Caller
from apps.accounts.models import Agent, User
from apps.trajectories.datasets import import_writing
from apps.trajectories.datasets.chat_lines import read_openai
from apps.trajectories.datasets.incoming import tell_incoming
from apps.trajectories.datasets.models import AddedBy, Dataset, DatasetMember
from apps.trajectories.models import Step, Trajectory, TrajectoryState
from apps.trajectories.search.language import parse_query
from apps.trajectories.search.services import find_matching
from apps.trajectories.trie import load_steps, load_tools
from tests.apps.trajectories.datasets.import_rows import (
    CHAT,
    SHAREGPT,
    TOKENS,
    claw_r1,
)
from tests.apps.trajectories.datasets.importer import ImportRows, import_file, problems_of
from tests.factories.accounts import AgentFactory
from tests.factories.trajectories import TOOL

pytestmark = pytest.mark.django_db


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


@pytest.mark.parametrize("shape", ["preference", "sft", "hints"])
def test_exported_judgements_are_told_to_be_no_trajectories(import_rows: ImportRows, shape: str) -> None:
    row = {"format": f"claw.{shape}.v1", "trajectory": "traj_x", "prompt": [], "chosen": [], "rejected": []}
    source = import_rows(row)
    assert (source.state, source.n_imported, source.n_refused) == ("done", 0, 1)
    assert "imports take claw.messages.v1 and claw.tokens.v1" in source.problems.get().reason

"""import(export(x)) = x, in both of the pool's shapes and both files, over conversations of any form."""

import json
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from apps.accounts.access import Caller
from apps.accounts.models import Agent
from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.feedback.exports import SHAPES
from apps.feedback.importing import reward_imported
from apps.trajectories.datasets.incoming import Rewarded
from apps.trajectories.datasets.models import FileFormat, ImportedTrajectory, Shape
from apps.trajectories.datasets.row_files import write_rows
from apps.trajectories.datasets.rows import Source
from apps.trajectories.datasets.shapes import POOL_SHAPES
from apps.trajectories.models import Step, Trajectory
from apps.trajectories.trie import split_tokens
from tests.apps.trajectories.datasets.importer import import_file
from tests.factories.trajectories import StepFactory, TrajectoryFactory

pytestmark = pytest.mark.django_db

IDS = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6)
TEXT = st.text(max_size=8)
REWARD = st.none() | st.floats(-1, 1)
CONTENT = TEXT | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXT}), max_size=2)
MESSAGE = st.fixed_dictionaries({"role": st.sampled_from(["user", "tool", "system"]), "content": CONTENT})
STEP = st.fixed_dictionaries(
    {
        "parent": st.integers(0, 9),  # of the steps so far; beyond them: none
        "cut": st.integers(0, 4),  # how much of the parent's end the client took back
        "new_ids": IDS,
        "completion": IDS,
        "logprobs": st.booleans(),
        "new_messages": st.lists(MESSAGE, min_size=1, max_size=2),
        "answer": TEXT,
        "is_respelled": st.booleans(),  # the client leaves out what the engine said nothing in
        "reward": REWARD,
        "side_call": st.sampled_from(["", "", "title", "subagent"]),
        "is_excluded": st.booleans(),
        "constraints": st.sampled_from(["", "min_p, tool_choice"]),
        "finish_reason": st.sampled_from(["stop", "length", ""]),
    }
)
CONVERSATION = st.fixed_dictionaries(
    {"steps": st.lists(STEP, min_size=1, max_size=6), "reward": REWARD, "group": st.sampled_from(["", "g"])}
)


def build(agent: Agent, told: dict[str, Any]) -> Trajectory:
    """Make a trajectory as the recorder would: each step shares with its parent what it can."""
    row = TrajectoryFactory.create(agent=agent, group=told["group"], state="complete", title="t", metadata={"a": [1]})
    made: list[tuple[Step, list[int], list[Any], list[Any]]] = []
    for index, said in enumerate(told["steps"]):
        parent, ids, messages, heard = made[said["parent"]] if said["parent"] < len(made) else (None, [], [], [])
        prompt = ids[: max(0, len(ids) - said["cut"])] + said["new_ids"]
        prompt_messages = heard[: max(0, len(heard) - said["cut"])] + said["new_messages"]
        shared, tail = split_tokens(pack_ids(ids), pack_ids(prompt))
        pairs = zip(messages, prompt_messages, strict=False)
        shared_messages = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        tail_messages = json.dumps(prompt_messages[shared_messages:]).encode()
        logprobs = [-0.1] * len(said["completion"]) if said["logprobs"] else []
        echo = {"role": "assistant", "content": said["answer"]}
        answer = {**echo, "refusal": None} if said["is_respelled"] else echo
        step = StepFactory.create(
            trajectory=row,
            index=index,
            parent=parent,
            shared_tokens=shared,
            tail_token_ids=tail,
            completion_token_ids=pack_ids(said["completion"]),
            logprobs=pack_logprobs(logprobs),
            is_exact=bool(logprobs),
            shared_messages=shared_messages,
            tail_messages=tail_messages,
            answer=json.dumps(answer).encode(),
            n_prompt_tokens=len(prompt),
            n_completion_tokens=len(said["completion"]),
            side_call=said["side_call"],
            is_excluded=said["is_excluded"],
            finish_reason=said["finish_reason"],
            constraints=said["constraints"],
        )
        both = [*prompt_messages, answer], [*prompt_messages, echo]
        made.append((step, prompt + said["completion"], *both))
    rewards = {step.pk: said["reward"] for (step, *_), said in zip(made, told["steps"], strict=True)}
    given_rewards = {step_id: reward for step_id, reward in rewards.items() if reward is not None}
    reward_imported([Rewarded(trajectory=row, reward=told["reward"], step_rewards=given_rewards)], note="")
    row.refresh_from_db()
    return row


def tell(trajectory: Trajectory, shape: str) -> list[dict[str, Any]]:
    """Return the rows without what names the copy."""
    rows = list(
        SHAPES[shape].render(Source(trajectory=Trajectory.objects.select_related("agent").get(pk=trajectory.pk)))
    )
    return [{name: value for name, value in row.items() if name != "trajectory"} for row in rows]


@pytest.mark.parametrize("file_format", FileFormat.values)
@pytest.mark.parametrize("shape", [shape.name for shape in POOL_SHAPES])
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(conversations=st.lists(CONVERSATION, min_size=1, max_size=3))
def test_what_comes_back_is_what_went_out(
    agent: Agent,
    caller: Caller,
    tmp_path: Path,
    shape: str,
    file_format: str,
    conversations: list[dict[str, Any]],
) -> None:
    with transaction.atomic():
        made = [build(agent, told) for told in conversations]
        path = tmp_path / f"rows.{file_format}"
        rows = (row for trajectory in made for row in SHAPES[shape].render(Source(trajectory=trajectory)))
        write_rows(path, rows, shape=shape, file_format=file_format)
        content = path.read_bytes()

        known = import_file(content, agent=agent, caller=caller)
        assert (known.state, known.n_imported, known.n_known) == ("done", 0, len(made))

        source = import_file(content, agent=agent, caller=caller, is_again=True)
        assert (source.state, source.n_imported, source.n_refused) == ("done", len(made), 0)
        copies = ImportedTrajectory.objects.filter(source=source).order_by("pk")
        assert [tell(copy.trajectory, shape) for copy in copies] == [tell(row, shape) for row in made]

        again = import_file(content, agent=agent, caller=caller)
        assert (again.n_imported, again.n_known) == (0, len(made))
        transaction.set_rollback(True)


def test_an_answer_that_its_client_spells_in_its_own_way_cuts_no_conversation(agent: Agent) -> None:
    said: dict[str, Any] = {
        "parent": 0, "cut": 0, "new_ids": [1], "completion": [2], "logprobs": True, "answer": "Hello", "reward": None,
        "side_call": "", "is_excluded": False, "constraints": "", "finish_reason": "stop", "is_respelled": True,
        "new_messages": [{"role": "user", "content": "Hi"}],
    }  # fmt: skip
    row = build(agent, {"steps": [said, said], "reward": None, "group": ""})
    (told,) = tell(row, Shape.MESSAGES)
    echo = {"role": "assistant", "content": "Hello"}
    assert told["messages"] == [said["new_messages"][0], echo, said["new_messages"][0], {**echo, "refusal": None}]
    assert [(turn["at"], turn.get("answer")) for turn in told["turns"]] == [(1, {**echo, "refusal": None}), (3, None)]

"""Why a prompt does not go on where its parent ended, told from the words and the counts of tokens."""

from typing import Any

import pytest

from apps.accounts.models import ApiKey
from apps.trajectories.models import PrefixBreak, Step
from apps.trajectories.prefix_breaks import Joint, classify_break
from apps.trajectories.recorder import fold_pending
from apps.trajectories.search.fields import BREAKS
from apps.trajectories.search.services import search
from tests.factories.trajectories import TOOL, ExchangeFactory

PASSING = "<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>now<<<END_OPENCLAW_INTERNAL_CONTEXT>>>"
BILLING = "x-anthropic-billing-header: cch={}\nYou help."


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def classify(before: list[Any], after: list[Any], *, n_shared: int = 50, **more: Any) -> PrefixBreak:
    """The parent has 100 tokens of prompt and 20 of completion."""
    return classify_break(
        Joint(
            n_shared=n_shared,
            n_parent_prompt=100,
            n_parent=120,
            n_parent_messages=len(before),
            parent_messages=before,
            messages=after,
            **more,
        )
    )


SAME = [user("a"), assistant("b")]


@pytest.mark.parametrize(
    ("before", "after", "n_shared", "cause"),
    [
        (SAME, [*SAME, user("c")], 120, PrefixBreak.NONE),
        ([user("a"), user(PASSING), assistant("b")], [*SAME, user("c")], 50, PrefixBreak.TRANSIENT),
        ([system(BILLING.format(1)), *SAME], [system(BILLING.format(2)), *SAME], 5, PrefixBreak.TRANSIENT),
        (SAME, [*SAME, user("c")], 50, PrefixBreak.TEMPLATE),
        ([user("a"), assistant("b", reasoning_content="hm")], [*SAME, user("c")], 100, PrefixBreak.TEMPLATE),
        ([user("a"), assistant("<think>hm</think>b")], [user("a"), assistant("<think>hm</think>b")], 101, "template"),
        (SAME, [*SAME, user("c")], 110, PrefixBreak.RETOKENISED),
        (SAME, [user("A"), assistant("b"), user("c")], 50, PrefixBreak.EDIT),
        (SAME, [user("a"), assistant("B"), user("c")], 100, PrefixBreak.EDIT),
        ([user("a"), *SAME, *SAME], [user("summary"), user("c")], 10, PrefixBreak.COMPACTION),
    ],
)
def test_each_break_has_its_cause(before: list[Any], after: list[Any], n_shared: int, cause: str) -> None:
    assert classify(before, after, n_shared=n_shared) == cause


def test_other_tools_are_the_clients_edit() -> None:
    assert classify(SAME, SAME, has_same_tools=False) == PrefixBreak.EDIT


def test_a_client_that_counts_its_compactions_is_believed() -> None:
    assert classify(SAME, [user("A")], has_new_epoch=True) == PrefixBreak.COMPACTION


def test_without_tokens_nothing_is_said() -> None:
    joint = Joint(
        n_shared=0, n_parent_prompt=0, n_parent=0, n_parent_messages=2, parent_messages=SAME, messages=[user("A")]
    )
    assert classify_break(joint) == PrefixBreak.NONE


@pytest.mark.django_db
def test_the_recorder_notes_the_cause_and_lists_find_it(key: ApiKey) -> None:
    ExchangeFactory.create(
        key=key, messages=[user("a"), user(PASSING)], prompt_ids=[1, 2, 9, 9], completions=[[3]], session_key="s"
    )
    ExchangeFactory.create(key=key, messages=[user("a"), assistant("hi"), user("b")], prompt_ids=[1, 2, 3, 4])
    ExchangeFactory.create(
        key=key,
        messages=[user("a"), assistant("hi"), user("b"), assistant("hi"), user("c")],
        body={"tools": [TOOL]},
        prompt_ids=[7, 1, 2, 3],
    )
    fold_pending()
    unnamed = Step.objects.exclude(trajectory__session_key="s").order_by("index")
    assert [step.prefix_break for step in unnamed] == ["", PrefixBreak.EDIT]
    found = {
        cause: search(project=key.agent.project, q=f"break:{cause}", before=None, limit=5).items for cause in BREAKS
    }
    assert {cause: rows for cause, rows in found.items() if rows} == {PrefixBreak.EDIT: [unnamed[0].trajectory]}

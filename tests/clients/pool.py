"""What landed in the pool, folded and compared with what the engine sampled."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from apps.registry.models import Version
from apps.trajectories.models import Exchange, ExchangeStatus, SideCall, Trajectory
from apps.trajectories.recorder import fold_pending
from apps.trajectories.trie import StepView, load_steps
from tests.clients.engine import CALLS_A_TURN, TOOL_OUTPUT, ToolUsingEngine
from tests.fakes.engine import EngineCall


@dataclass(frozen=True, kw_only=True)
class Session:
    """One trajectory with its steps."""

    row: Trajectory
    steps: list[StepView]

    @property
    def main(self) -> list[StepView]:
        """The steps that are no side calls."""
        return [step for step in self.steps if step.row.side_call == SideCall.NONE]

    @property
    def chains(self) -> set[str]:
        """The pairs of system text and tools that the main steps had."""
        return {step.row.chain for step in self.main}

    @property
    def side_calls(self) -> list[str]:
        return [step.row.side_call for step in self.steps if step.row.side_call != SideCall.NONE]


def read_pool(engine: ToolUsingEngine, *, version: Version) -> list[Session]:
    """Fold every exchange; check that each call of the engine is one step, token for token; return the sessions."""
    fold_pending()
    assert not Exchange.objects.set_aside().exists()
    assert not Exchange.objects.unfolded().exists()
    sessions = [Session(row=row, steps=load_steps(row)) for row in Trajectory.objects.order_by("id")]
    check_tokens([step for session in sessions for step in session.steps], engine.calls, version=version)
    return sessions


def check_tokens(steps: Sequence[StepView], calls: Sequence[EngineCall], *, version: Version) -> None:
    """Check ids, log-probs, version and status of every step against the call that it came from."""
    sampled = {tuple(call.choices[0].token_ids): call for call in calls}
    assert len(steps) == len(calls) == len(sampled)
    for step in steps:
        call = sampled.pop(tuple(step.completion_ids))
        assert step.prompt_ids == call.prompt_token_ids
        assert step.logprobs == pytest.approx(call.choices[0].logprobs, abs=1e-6)
        assert step.row.is_exact
        assert not step.row.token_check
        assert step.row.version == version
        assert step.row.status == ExchangeStatus.COMPLETE


def check_conversation(session: Session, *, n_turns: int = len(CALLS_A_TURN), n_chains: int = 1) -> None:
    """Check that each main step goes on from the one before, that there are enough, and what a tool said."""
    rows = [step.row for step in session.main]
    assert len(rows) == sum(CALLS_A_TURN[:n_turns])
    assert [row.parent_id for row in rows] == [None, *(row.id for row in rows[:-1])]
    assert len(session.chains) == n_chains
    finishes = [finish for n_calls in CALLS_A_TURN[:n_turns] for finish in ("tool_calls", "stop")[-n_calls:]]
    assert [row.finish_reason for row in rows] == finishes
    assert said_by_tools(session.main[1].messages)
    assert not session.row.has_error


def said_by_tools(messages: Sequence[dict[str, object]]) -> bool:
    """Say whether what a tool said is among the messages: our command's word, or the sum of the small tool."""
    results = [str(message.get("content")) for message in messages if message["role"] == "tool"]
    return any(TOOL_OUTPUT in text or text.strip() == "5" for text in results)

"""Compares what clients have with what the pool has: each answer once, word for word, token for token, in its place."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.trajectories.models import Exchange, Step, Trajectory
from apps.trajectories.trie import iterate_steps
from tests.chaos.clients import Answer, Failure
from tests.fakes.engine import END_TOKEN
from tests.fakes.word_engine import logprobs_of, read_ids, spell_prompt

N_SHOWN = 5
_SERVICE_STATUSES = frozenset({0, 200, 503})  # no connection; a stream that broke off; not now


@dataclass(kw_only=True)
class Tally:
    """What a drill came to. `problems` says all that is not as it should be."""

    n_faults: int = 0
    n_answered: int = 0
    n_in_pool: int = 0
    n_doubled: int = 0
    n_failures: int = 0  # calls that came to nothing for their client
    slowest_s: float = 0.0
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    @property
    def n_lost(self) -> int:
        return self.n_answered - self.n_in_pool

    def note(self, problem: str, what: object) -> None:
        self.problems[problem].append(str(what))

    def forgive(self, *problems: str) -> None:
        """Leave out what follows from the harm itself."""
        for problem in problems:
            self.problems.pop(problem, None)

    def describe(self) -> str:
        """Return the problems in words, the first few of each kind."""
        return "\n".join(
            f"{len(found)} times {problem}: {'; '.join(found[:N_SHOWN])}" for problem, found in self.problems.items()
        )


def count(answers: Sequence[Answer], failures: Sequence[Failure], *, key_ids: Iterable[str]) -> Tally:
    """Count what the pool has of the answers. Call it when all is quiet."""
    tally = Tally(n_answered=len(answers), n_failures=len(failures))
    tally.slowest_s = max((answer.seconds for answer in answers), default=0.0)
    rows = {row.id: row for row in Exchange.objects.filter(key_id__in=list(key_ids))}
    steps: dict[str, list[Step]] = defaultdict(list)
    for step in Step.objects.filter(exchange_id__in=rows).select_related("parent"):
        steps[step.exchange_id].append(step)
    _count_rows(rows, tally)
    for answer in answers:
        row = rows.get(answer.exchange_id)
        if row is None:
            tally.note("lost", f"{answer.exchange_id} ({answer.dialect.name})")
            continue
        tally.n_in_pool += 1
        _compare(answer, row, tally)
        _place(answer, steps[answer.exchange_id], tally)
    _check_lines(answers, steps, tally)
    for failure in failures:
        if failure.status not in _SERVICE_STATUSES:
            tally.note("refused as if it were the agent's fault", f"{failure.status} {failure.why}")
    return tally


def _count_rows(rows: dict[str, Exchange], tally: Tally) -> None:
    """No answer stands in the ledger twice, under whatever ids: no two were sampled alike."""
    sampled = Counter(bytes(row.completion_token_ids[0]) for row in rows.values() if row.completion_token_ids)
    doubled = [ids for ids, n in sampled.items() if n > 1 and ids]
    response_ids = Counter(row.response_id for row in rows.values() if row.response_id)
    tally.n_doubled = len(doubled) + sum(n > 1 for n in response_ids.values())
    if tally.n_doubled:
        tally.note("doubled", tally.n_doubled)
    for row in rows.values():
        if row.fold_error:
            tally.note("set aside", f"{row.id}: {row.fold_error}")


def _compare(answer: Answer, row: Exchange, tally: Tally) -> None:
    ids = [*read_ids(answer.said.text), END_TOKEN]
    if answer.dialect.tells_tokens and answer.said.token_ids != ids:
        tally.note("the client's ids are not its text's", answer.exchange_id)
    if row.status != "complete" or not row.is_exact or row.token_check:
        tally.note("not whole and exact", f"{row.id}: {row.status} {row.error} {row.token_check}")
    if row.response_id != answer.said.response_id:
        tally.note("another response id", f"{row.id}: {row.response_id}")
    if [bytes(kept) for kept in row.completion_token_ids] != [pack_ids(ids)]:
        tally.note("other tokens", row.id)
    if [bytes(kept) for kept in row.completion_logprobs] != [pack_logprobs(logprobs_of(ids))]:
        tally.note("other log-probs", row.id)
    if bytes(row.prompt_token_ids or b"") != pack_ids(spell_prompt(answer.messages)):
        tally.note("another prompt", row.id)


def _place(answer: Answer, steps: Sequence[Step], tally: Tally) -> None:
    """Each answer is one step, behind that of the turn before."""
    if len(steps) != 1:
        tally.note("not one step", f"{answer.exchange_id}: {len(steps)}")
        return
    parent = steps[0].parent.exchange_id if steps[0].parent else ""
    if parent != answer.before:
        tally.note("another parent", f"{answer.exchange_id} ({answer.dialect.name}): {parent}, not {answer.before}")


def _check_lines(answers: Sequence[Answer], steps: dict[str, list[Step]], tally: Tally) -> None:
    """Each conversation is one trajectory, each trajectory one conversation, and what its trie holds is what was."""
    talks: dict[str, set[str]] = defaultdict(set)
    by_exchange = {answer.exchange_id: answer for answer in answers}
    for answer in answers:
        talks[answer.conversation] |= {step.trajectory_id for step in steps[answer.exchange_id]}
    for conversation, found in talks.items():
        if len(found) > 1:
            tally.note("a conversation in pieces", f"{conversation}: {sorted(found)}")
    owners = Counter(trajectory_id for found in talks.values() for trajectory_id in found)
    for trajectory in Trajectory.objects.filter(pk__in=owners):
        if owners[trajectory.pk] > 1:
            tally.note("conversations joined", trajectory.pk)
        views = list(iterate_steps(trajectory))
        if trajectory.n_steps != len(views):
            tally.note("miscounted", f"{trajectory.pk}: {trajectory.n_steps}, not {len(views)}")
        for view in views:
            heard = by_exchange.get(view.row.exchange_id)
            if heard and (view.prompt_ids, view.completion_ids) != _tokens_of(heard):
                tally.note("the trie gives other tokens", view.row.id)


def _tokens_of(answer: Answer) -> tuple[list[int], list[int]]:
    return spell_prompt(answer.messages), [*read_ids(answer.said.text), END_TOKEN]

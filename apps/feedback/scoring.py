"""Reward = a documented function of the labels. Pure: the same labels give the same reward, whenever it is computed.

- Only current labels (not superseded, not taken back) count, each with what its field makes of it, from -1 to 1.
- For one field of one target, the tiers of trust are asked in turn, and the first in which anybody spoke decides:
  within it, each source is the mean of its labels, and the sources are weighed. By default each source is a tier of
  its own: human, end user, environment, judge, next state, rule.
- A target's reward is the mean of its fields' rewards, weighed as the schema says.
- A step without labels of its own has the mean of its spans' rewards. A trajectory's reward comes from labels on the
  trajectory itself; if it has none, it is the mean over its steps that have a reward. What only graders say of a whole
  yields to more trusted people, or the environment, who spoke of its parts. No label is no reward (None), never zero.

docs/rewards.md tells it with examples.
"""

from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

from apps.feedback.score_schema import DEFAULT_TRUST, GRADERS, REWARD_FIELD

Trust = Sequence[Mapping[str, float]]
Span = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A current label as scoring sees it. `step_id` is None for the trajectory as a whole; `value` is -1 to 1."""

    source: str
    value: float
    field: str = REWARD_FIELD
    step_id: str | None = None
    span: Span | None = None


@dataclass(frozen=True, kw_only=True)
class SourceTerm:
    """What the labels of one source say of one field."""

    source: str
    reward: float
    weight: float
    values: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class FieldTerm:
    """What one field adds to a reward."""

    field: str
    reward: float
    weight: float
    sources: tuple[SourceTerm, ...]
    n_outranked: int
    """Labels of less trusted sources, which do not count."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What the labels of one target add up to, and from what."""

    reward: float
    fields: tuple[FieldTerm, ...]
    n_spans: int = 0
    """Spans whose mean this is; 0: it comes from labels on the target itself."""
    tier: int = 0
    """The place, in the order of trust, of the most trusted source in it."""
    known_tier: int | None = None
    """The place of the most trusted people, or the environment, in it; None: only graders are."""
    outranked: float | None = None
    """What graders say of the target itself is worth so much and does not count."""

    def yields_to(self, parts: "Iterable[Verdict]") -> bool:
        """Whether only graders say this, and more trusted people, or the environment, spoke of parts of it."""
        known = (part.known_tier for part in parts)
        return self.known_tier is None and any(tier is not None and tier < self.tier for tier in known)


@dataclass(frozen=True, kw_only=True)
class Score:
    """Rewards of a trajectory and its steps. `verdict` is None when the reward comes from the steps or from nothing;
    `outranked` is what graders say of the whole then, if they do, which does not count.
    """

    reward: float | None
    step_verdicts: Mapping[str, Verdict]
    verdict: Verdict | None
    outranked: float | None = None

    @property
    def step_rewards(self) -> dict[str, float]:
        return {step_id: verdict.reward for step_id, verdict in self.step_verdicts.items()}


@dataclass(frozen=True, kw_only=True)
class Weighing:
    """How a project weighs: the weight of each field that counts, and the tiers of trust."""

    fields: Mapping[str, float]
    trust: Trust = DEFAULT_TRUST


PLAIN = Weighing(fields={REWARD_FIELD: 1.0})


def score_trajectory(judgements: Iterable[Judgement], weighing: Weighing = PLAIN) -> Score:
    """Return what the judgements add up to."""
    by_target: dict[tuple[str | None, Span | None], list[Judgement]] = {}
    for judgement in judgements:
        by_target.setdefault((judgement.step_id, judgement.span), []).append(judgement)
    own: dict[str | None, Verdict] = {}
    spans: dict[str, list[Verdict]] = {}
    for (step_id, span), group in by_target.items():
        verdict = _decide(group, weighing)
        if verdict is None:
            continue
        if span is None:
            own[step_id] = verdict
        elif step_id is not None:
            spans.setdefault(step_id, []).append(verdict)
    verdict = own.pop(None, None)
    steps = {step_id: found for step_id, found in own.items() if step_id is not None}
    for step_id, parts in spans.items():
        steps[step_id] = _join_spans(parts, own=steps.get(step_id))
    if verdict is not None and not verdict.yields_to(steps.values()):
        return Score(reward=verdict.reward, step_verdicts=steps, verdict=verdict)
    reward = _mean([found.reward for found in steps.values()]) if steps else None
    return Score(
        reward=reward, step_verdicts=steps, verdict=None, outranked=None if verdict is None else verdict.reward
    )


def _join_spans(spans: Sequence[Verdict], *, own: Verdict | None) -> Verdict:
    """Return what a step is worth of whose spans that was said, and of itself maybe `own`."""
    if own is not None and not own.yields_to(spans):
        return own
    known = [span.known_tier for span in spans if span.known_tier is not None]
    return Verdict(
        reward=_mean([span.reward for span in spans]),
        fields=(),
        n_spans=len(spans),
        tier=min(span.tier for span in spans),
        known_tier=min(known, default=None),
        outranked=None if own is None else own.reward,
    )


def _decide(judgements: Sequence[Judgement], weighing: Weighing) -> Verdict | None:
    by_field: dict[str, list[Judgement]] = {}
    for judgement in judgements:
        by_field.setdefault(judgement.field, []).append(judgement)
    counting = [name for name, weight in weighing.fields.items() if weight > 0 and name in by_field]
    terms = [_decide_field(name, by_field[name], weighing) for name in counting]
    fields = tuple(term for term in terms if term is not None)
    if not fields:
        return None
    heard = {source.source for term in fields for source in term.sources}
    known = heard - GRADERS
    return Verdict(
        reward=_weigh([(term.reward, term.weight) for term in fields]),
        fields=fields,
        tier=_find_tier(heard, weighing.trust),
        known_tier=_find_tier(known, weighing.trust) if known else None,
    )


def _find_tier(sources: AbstractSet[str], trust: Trust) -> int:
    """Return the place, in the order of trust, of the most trusted of the sources."""
    return next(place for place, tier in enumerate(trust) if not sources.isdisjoint(tier))


def _decide_field(name: str, judgements: Sequence[Judgement], weighing: Weighing) -> FieldTerm | None:
    for tier in weighing.trust:
        by_source = {
            source: tuple(judgement.value for judgement in judgements if judgement.source == source) for source in tier
        }
        sources = tuple(
            SourceTerm(source=source, reward=_mean(values), weight=tier[source], values=values)
            for source, values in by_source.items()
            if values
        )
        if sources:
            return FieldTerm(
                field=name,
                reward=_weigh([(term.reward, term.weight) for term in sources]),
                weight=weighing.fields[name],
                sources=sources,
                n_outranked=len(judgements) - sum(len(term.values) for term in sources),
            )
    return None


def _weigh(parts: Sequence[tuple[float, float]]) -> float:
    if len(parts) == 1:  # not by way of a product that rounds
        return parts[0][0]
    return sum(value * weight for value, weight in parts) / sum(weight for _, weight in parts)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def show_score(score: Score) -> dict[str, Any]:
    """Return the score as data: `reward`, where it comes `from`, its terms, and `words` for a person."""
    return {
        "reward": score.reward,
        "from": _origin(score),
        "fields": [asdict(term) for term in score.verdict.fields] if score.verdict else [],
        "words": explain(score),
    }


def show_step_score(score: Score, step_id: str) -> dict[str, Any]:
    """Return the same of one step."""
    verdict = score.step_verdicts.get(step_id)
    if verdict is None:
        return {"reward": None, "from": None, "fields": [], "words": "no reward yet: nobody has judged this"}
    return {
        "reward": verdict.reward,
        "from": "spans" if verdict.n_spans else "labels",
        "fields": [asdict(term) for term in verdict.fields],
        "words": explain_verdict(verdict),
    }


def _origin(score: Score) -> str | None:
    if score.reward is None:
        return None
    return "labels" if score.verdict else "steps"


def explain(score: Score, *, words: Mapping[str, str] | None = None) -> str:
    """Return the score in words for a person: "0.5 = mean of 2 human labels (1, 0); 1 label …". `words`: what fields
    are called there, where that is not their name."""
    if score.reward is None:
        return "no reward yet: nobody has judged this"
    if score.verdict is None:
        n_steps = len(score.step_verdicts)
        mean = f"{_figure(score.reward)} = mean of the rewards of {n_steps} {_plural('step', n_steps)}"
        return mean + _explain_outranked(score.outranked, parts="steps")
    return explain_verdict(score.verdict, words=words) + _explain_steps_left_out(score)


def _explain_steps_left_out(score: Score) -> str:
    n_steps = len(score.step_verdicts)
    if not n_steps:
        return ""
    steps = "a step (worth " + _figure(*score.step_rewards.values()) + ")" if n_steps == 1 else f"{n_steps} steps"
    return f"; what was said of {steps} does not count here: labels of the whole go before its steps'"


def _explain_outranked(worth: float | None, *, parts: str) -> str:
    if worth is None:
        return ""
    left_out = f"; what graders say of the whole (worth {_figure(worth)}) does not count"
    return f"{left_out}: people or the environment spoke of its {parts}"


def explain_verdict(verdict: Verdict, *, words: Mapping[str, str] | None = None) -> str:
    """Return one target's verdict in words, likewise."""
    if verdict.n_spans:
        mean = (
            f"{_figure(verdict.reward)} = mean of the rewards of {verdict.n_spans} {_plural('span', verdict.n_spans)}"
        )
        return mean + _explain_outranked(verdict.outranked, parts="words")
    if len(verdict.fields) == 1:
        return _explain_field(verdict.fields[0])
    named = [((words or {}).get(term.field, term.field), term) for term in verdict.fields]
    parts = [f"{name} {_times(term.reward, term.weight)}" for name, term in named]
    total = sum(term.weight for term in verdict.fields)
    each = "; ".join(f"{name}: {_explain_field(term)}" for name, term in named)
    return f"{_figure(verdict.reward)} = {_over(parts, total)}; {each}"


def _explain_field(term: FieldTerm) -> str:
    words = _explain_one(term.sources[0]) if len(term.sources) == 1 else _explain_several(term)
    if term.n_outranked:
        n = term.n_outranked
        words += f"; {n} {_plural('label', n)} of less trusted sources {'does' if n == 1 else 'do'} not count"
    return words


def _explain_one(term: SourceTerm) -> str:
    source = term.source.replace("_", " ")
    if len(term.values) == 1:
        return f"{_figure(term.reward)}, from one {source} label"
    listed = ", ".join(_figure(value) for value in term.values[:5]) + (", …" if len(term.values) > 5 else "")
    return f"{_figure(term.reward)} = mean of {len(term.values)} {source} labels ({listed})"


def _explain_several(term: FieldTerm) -> str:
    parts = [f"{_name_source(part)} {_times(part.reward, part.weight)}" for part in term.sources]
    return f"{_figure(term.reward)} = {_over(parts, sum(part.weight for part in term.sources))}"


def _name_source(term: SourceTerm) -> str:
    n = len(term.values)
    if term.source == "human":
        return f"{n} {'person' if n == 1 else 'people'}"
    source = term.source.replace("_", " ")
    return source if n == 1 else f"{n} {_plural(source, n)}"


def _times(value: float, weight: float) -> str:
    return _figure(value) if weight == 1 else f"{_figure(value)} \N{MULTIPLICATION SIGN} {_figure(weight)}"


def _over(parts: Sequence[str], total: float) -> str:
    return f"({' + '.join(parts)}) / {_figure(total)}"


def _figure(value: float) -> str:
    return f"{value:.3g}"


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"

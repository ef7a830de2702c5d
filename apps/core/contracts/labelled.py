"""What labels say of answers, as the trainer is told it: no tokenizer stands on the web side, so answers whose tokens
no engine of ours made travel as what was said, and the trainer renders them.

This is what the losses on labels learn from, whatever made the label: a reward, a correction, a comparison.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Conversation:
    """What was said, in chat shape, each as JSON: a list of messages, a list of tools, and the assistant's answer.

    Text, since only the model's chat template knows what they mean.
    """

    messages: str
    tools: str
    answer: str


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One answer in its context: the engine's own tokens, or what was said where there are none.

    `answer_id` is the step's id, with the preference's behind it where nobody sampled the answer, as in a correction;
    of such an answer the prompt may be in tokens and the answer in words.
    """

    answer_id: str
    prompt_ids: tuple[int, ...] = ()
    completion_ids: tuple[int, ...] = ()
    conversation: Conversation | None = None


@dataclass(frozen=True, kw_only=True)
class Judged:
    """Answers of one trajectory that a label judges together: good or bad, as they are, or in a pair.

    The two of a comparison, one good and one bad, share the name `pair`; "" where nothing was compared.
    """

    trajectory_id: str
    answers: tuple[Answer, ...]
    is_good: bool
    pair: str = ""

"""What lines of imported files may hold, checked strictly: a field of the wrong kind is named, never bent.

Knows the shapes of four formats and nothing of what they become.
"""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from apps.core.fault_words import tell_fault
from apps.trajectories.datasets.incoming import BadLine
from apps.trajectories.datasets.strict_json import TOO_DEEP, is_too_deep
from apps.trajectories.models import ExchangeStatus, SideCall

YEARS = range(1970, 3000)  # a list draws its times on one line
Json = TypeVar("Json", bound="dict[str, Any] | list[Any]")


def _to_utc(moment: datetime) -> datetime:
    """Return it in UTC, which is meant where no zone is said. Raises ValueError for what lies outside `YEARS`."""
    if moment.year not in YEARS:
        raise ValueError(f"no call was made in the year {moment.year}")
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def _check_depth(value: Json) -> Json:
    if is_too_deep(value):
        raise ValueError(TOO_DEEP)
    return value


TokenIds = list[Annotated[int, Field(strict=True, ge=0, lt=2**31)]]
LogProbs = list[Annotated[float, Field(ge=-3.0e38, le=0, allow_inf_nan=False)]]
Number = Annotated[float, Field(allow_inf_nan=False)]
Moment = Annotated[datetime, AfterValidator(_to_utc)]
Object = Annotated[dict[str, Any], AfterValidator(_check_depth)]
Objects = Annotated[list[dict[str, Any]], AfterValidator(_check_depth)]
Values = Annotated[list[Any], AfterValidator(_check_depth)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class _Head(_Line):
    """What an exported row says of its trajectory."""

    format: str
    trajectory: str = Field(max_length=100)
    n_rows: int = Field(ge=1)
    agent: str = ""
    channel: Literal["train", "val"] = "train"
    group: str = ""
    title: str = ""
    trajectory_metadata: Object = {}
    trajectory_reward: Number | None = None
    trajectory_is_excluded: bool = False
    trajectory_has_error: bool = False
    trajectory_started_at: Moment | None = Field(default=None, strict=False)


class StepLine(_Line):
    """What an exported row or turn says of its step."""

    index: int = Field(ge=0, lt=2**31)
    reward: Number | None = None
    version: str | None = Field(default=None, max_length=100)
    finish_reason: str = Field(default="", max_length=30)
    status: ExchangeStatus = Field(default=ExchangeStatus.COMPLETE, strict=False)
    side_call: SideCall = Field(default=SideCall.NONE, strict=False)
    is_excluded: bool = False
    temperature: Annotated[Number, Field(ge=0, le=100)] = 1.0
    top_p: Annotated[Number, Field(ge=0, le=1)] = 1.0
    top_k: int = Field(default=-1, ge=-1, lt=2**31)
    client_step_id: str = Field(default="", max_length=100)
    metadata: Object = {}
    started_at: Moment | None = Field(default=None, strict=False)
    ended_at: Moment | None = Field(default=None, strict=False)


class TokensLine(_Head, StepLine):
    """One step in tokens, as exported."""

    is_exact: bool = False
    token_check: str = ""
    constraints: str = Field(default="", max_length=200)
    prompt_ids: TokenIds = Field(min_length=1)
    completion_ids: TokenIds = Field(min_length=1)
    mask: list[Literal[0, 1]] | None = None
    logprobs: LogProbs | None = None
    answer: Object = {}


class TurnLine(StepLine):
    """One step of an exported conversation: its answer stands at `at` of the messages, or here where the client spelled
    it otherwise there."""

    at: int = Field(ge=1)
    answer: Object | None = None


class ConversationLine(_Head):
    """One conversation, as exported."""

    messages: Objects = Field(min_length=2)  # what a client said in them may be odd
    tools: Objects = []
    turns: list[TurnLine] = Field(min_length=1)


class OpenAILine(BaseModel):
    """A conversation in OpenAI's chat form. What else stands in the line is kept as metadata."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    messages: list[Object] = Field(min_length=2)
    tools: Objects | None = None
    reward: Number | None = None
    group: str = ""
    channel: Literal["train", "val", ""] = ""
    metadata: Object | None = None


class ShareGptLine(BaseModel):
    """A conversation in ShareGPT's form. What else stands in the line is kept as metadata."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    conversations: list[Object] = Field(min_length=2)
    system: str | None = None
    tools: str | Values | None = None


class ClawR1Line(_Line):
    """One step of Claw-R1's data pool."""

    prompt_ids: TokenIds = Field(min_length=1)
    response_ids: TokenIds = Field(min_length=1)
    reward: Number | None = None
    rollout_log_probs: LogProbs | None = None
    trajectory_uid: str | int
    prompt_uid: str | int | None = None
    step_index: int | None = Field(default=None, ge=0, lt=2**31)
    policy_version: int | str | None = None
    is_last: bool | None = None
    metadata: Object | None = None
    routed_experts: Any = None
    multi_modal_data: Any = None


L = TypeVar("L", bound=BaseModel)


def read_line(shape: type[L], line: int, data: Object) -> L:
    """Return the checked line. Raises BadLine that names the field."""
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        said = _say(first)
        raise BadLine(line, f"{where}: {said}{more}" if where else said) from error


def _say(error: ErrorDetails) -> str:
    """Return what is wrong in words; of a line's object nobody needs to hear of braces."""
    return "it is an object" if error["type"] == "dict_type" else tell_fault(error)

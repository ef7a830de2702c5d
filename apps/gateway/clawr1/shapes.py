"""Bodies of Claw-R1's clients. What they leave out has their defaults; what cannot be honoured is refused by name."""

from typing import Annotated, Any, Literal, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError

from apps.core.contracts.arrays import pack_ids, pack_logprobs
from apps.core.errors import InvalidInput
from apps.core.texts import find_fault
from apps.trajectories.submitting import MAX_STEPS, StepDraft

ChannelName = Literal["train", "val"]
TokenIds = Annotated[list[Annotated[StrictInt, Field(ge=0, lt=2**31)]], Field(min_length=1)]
LogProb = Annotated[StrictFloat | StrictInt, Field(ge=-3.0e38, le=0, allow_inf_nan=False)]
Uid = Annotated[str, Field(min_length=1, max_length=200)]
Metadata = dict[str, Any]


class _Body(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RegisterBody(_Body):
    """`trajectory_uid` stands in the body of older clients, in the address of newer ones."""

    trajectory_uid: str = ""
    channel: ChannelName | None = None
    metadata: Metadata | None = None


class CompleteBody(_Body):
    reward: Annotated[float, Field(ge=-1, le=1)] | None = None
    channel: ChannelName | None = None


class StepBody(_Body):
    """`policy_version` 0 says nothing: it is what clients send that know no version."""

    prompt_ids: TokenIds
    response_ids: TokenIds
    rollout_log_probs: list[LogProb] | None = None
    reward: Annotated[float, Field(ge=-1, le=1)] | None = None
    trajectory_uid: Uid
    prompt_uid: str = Field(default="", max_length=100)
    step_index: Annotated[int, Field(ge=0)] = 0
    policy_version: Annotated[int, Field(ge=0)] = 0
    is_last: bool = False
    metadata: Metadata | None = None
    multi_modal_data: None = None
    routed_experts: None = None

    def draft(self) -> StepDraft:
        """Return the step as the pool takes it; its place in its trajectory is its name."""
        logprobs = self.rollout_log_probs
        return StepDraft(
            prompt_ids=pack_ids(self.prompt_ids),
            completion_ids=pack_ids(self.response_ids),
            logprobs=None if logprobs is None else pack_logprobs(logprobs),
            version=f"v{self.policy_version}" if self.policy_version else "",
            client_step_id=f"step-{self.step_index}",
            metadata=self.metadata or {},
        )


class SubmitBody(_Body):
    steps: Annotated[list[StepBody], Field(min_length=1, max_length=MAX_STEPS)]


class RewardBody(BaseModel):
    """Of a verifier's question: the tokens, and what is known of the task. What else stands there is not looked at."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt_ids: TokenIds
    response_ids: TokenIds
    data_source: str = ""
    reward_model: Metadata = Field(default_factory=dict)
    dataset_fields: Metadata = Field(default_factory=dict)

    @property
    def source(self) -> str:
        """The name of the data set that the task is from."""
        return self.data_source or str(self.dataset_fields.get("data_source") or "")

    @property
    def facts(self) -> Metadata:
        """What rules may look up: the data set's fields; the right answer as `answer` and as `ground_truth`."""
        named = self.reward_model or self.dataset_fields.get("reward_model") or {}
        truth = named.get("ground_truth") if isinstance(named, dict) else None
        return self.dataset_fields | ({} if truth is None else {"answer": truth, "ground_truth": truth})


B = TypeVar("B", bound=BaseModel)


def read_body_as(shape: type[B], raw: bytes) -> B:
    """Return the checked body; an empty one is `{}`. Raises InvalidInput that names the field."""
    try:
        data = orjson.loads(raw or b"{}")
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"the body is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise InvalidInput("the body must be a JSON object")
    if fault := find_fault(data):
        raise InvalidInput(fault)
    try:
        return shape.model_validate(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{field}: {first['msg']}" if field else first["msg"], field=field) from error

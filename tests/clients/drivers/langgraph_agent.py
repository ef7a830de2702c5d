"""An agent of LangGraph with LangChain's `ChatOpenAI`; its own memory keeps the thread."""

import os
import sys

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


model = ChatOpenAI(
    model=os.environ["CLAW_AGENT_MODEL"],
    base_url=os.environ["CLAW_URL"] + "/v1",
    api_key=os.environ["CLAW_API_KEY"],
)
agent = create_agent(model, [add], system_prompt="You add numbers.", checkpointer=InMemorySaver())


def main(turns: list[str]) -> None:
    for turn in turns:
        state = agent.invoke({"messages": [("user", turn)]}, {"configurable": {"thread_id": "otters"}})
        sys.stdout.write(state["messages"][-1].content + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])

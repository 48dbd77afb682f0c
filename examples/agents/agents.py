"""A calculator with tools as the agents of several libraries; none of them knows of training.

    dora train examples/agents/recipe.yaml

`--set episode.options.agent=examples/agents/agents.py:NAME` has another one.
Each gets a row and the URL and key of an endpoint, and returns its last answer, which `solved` judges.
Install what you use: openai, openai-agents, langgraph with langchain-openai, pydantic-ai, smolagents.
"""

import json
from typing import Any

from dora_rl.envs.tasks.tools import add, mul, sub

TOOLS = (add, sub, mul)
MOST_CALLS = 4


def solved(row: Any, result: str | None) -> float:
    """1 for the right value, else 0."""
    return float((result or "").strip() == row.columns["solution"])


def openai_agent(row: Any, base_url: str, api_key: str) -> str:
    """The client alone, with a loop of its own."""
    from openai import OpenAI

    from dora_rl.envs.chat.tool_schema import tool_schema

    functions = {tool.__name__: tool for tool in TOOLS}
    messages: list[Any] = [{"role": "user", "content": row.prompt}]
    with OpenAI(base_url=base_url, api_key=api_key) as client:
        for _ in range(MOST_CALLS):
            answer = client.chat.completions.create(
                model="policy", messages=messages, tools=[tool_schema(tool) for tool in TOOLS]
            )
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            for call in message.tool_calls:
                try:
                    result = str(functions[call.function.name](**json.loads(call.function.arguments)))
                except Exception as error:
                    result = f"error: {error}"
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


async def agents_sdk_agent(row: Any, base_url: str, api_key: str, *, is_streamed: bool = False) -> str:
    """OpenAI's Agents SDK, with the responses that it asks for by default."""
    from agents import (
        Agent,
        MaxTurnsExceeded,
        ModelBehaviorError,
        OpenAIResponsesModel,
        RunConfig,
        Runner,
        function_tool,
    )
    from openai import AsyncOpenAI

    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        agent = Agent(
            name="calculator",
            tools=[function_tool(tool) for tool in TOOLS],
            model=OpenAIResponsesModel(model="policy", openai_client=client),
        )
        config = RunConfig(tracing_disabled=True)
        try:
            if not is_streamed:
                ended = await Runner.run(agent, row.prompt, max_turns=MOST_CALLS, run_config=config)
                return str(ended.final_output)
            streamed = Runner.run_streamed(agent, row.prompt, max_turns=MOST_CALLS, run_config=config)
            async for _ in streamed.stream_events():
                pass
            return str(streamed.final_output)
        except (MaxTurnsExceeded, ModelBehaviorError):
            return ""  # It called on and on, or a tool that there is not.


async def agents_sdk_streamed(row: Any, base_url: str, api_key: str) -> str:
    """The same, streamed."""
    return await agents_sdk_agent(row, base_url, api_key, is_streamed=True)


def langgraph_agent(row: Any, base_url: str, api_key: str) -> str:
    """LangGraph's agent that thinks and acts in turn."""
    from langchain_openai import ChatOpenAI
    from langgraph.errors import GraphRecursionError
    from langgraph.prebuilt import create_react_agent

    graph = create_react_agent(ChatOpenAI(model="policy", base_url=base_url, api_key=api_key), list(TOOLS))
    try:
        said = graph.invoke({"messages": [("user", row.prompt)]}, {"recursion_limit": 2 * MOST_CALLS})
    except GraphRecursionError:
        return ""
    return str(said["messages"][-1].content)


async def pydantic_agent(row: Any, base_url: str, api_key: str) -> str:
    """Pydantic AI's agent."""
    from pydantic_ai import Agent, UnexpectedModelBehavior, UsageLimitExceeded
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.usage import UsageLimits

    model = OpenAIChatModel("policy", provider=OpenAIProvider(base_url=base_url, api_key=api_key))
    agent = Agent(model, tools=list(TOOLS))
    try:
        return (await agent.run(row.prompt, usage_limits=UsageLimits(request_limit=MOST_CALLS))).output
    except (UnexpectedModelBehavior, UsageLimitExceeded):
        return ""


def smolagents_agent(row: Any, base_url: str, api_key: str) -> str:
    """Hugging Face's agent that calls tools."""
    from smolagents import OpenAIServerModel, ToolCallingAgent, tool

    @tool
    def plus(a: int, b: int) -> int:
        """Adds.

        Args:
            a: One number.
            b: Another one.
        """
        return a + b

    model = OpenAIServerModel("policy", api_base=base_url, api_key=api_key)
    agent = ToolCallingAgent(tools=[plus], model=model, max_steps=MOST_CALLS, verbosity_level=0)
    return str(agent.run(row.prompt))

"""A small MCP server over standard input and output: a counter with a goal."""

import os
import sys

try:
    from mcp.server.fastmcp import FastMCP as Server
except ImportError:  # its name from version 2 on
    from mcp.server.mcpserver import MCPServer as Server

server = Server("counter")
state = {"total": 0, "goal": 0}


@server.tool()
def begin(goal: int = 3) -> str:
    """Begin anew."""
    state.update(total=0, goal=goal)
    return f"Reach {goal}."


@server.tool()
def add(n: int) -> str:
    """Add to the total."""
    if n > 100:
        raise ValueError("too much")
    if n < 0:
        os._exit(3)
    state["total"] += n
    return f"total {state['total']}, process {os.getpid()}"


@server.tool()
def score() -> str:
    """Whether the goal is reached."""
    return str(float(state["total"] == state["goal"]))


if __name__ == "__main__":
    print("counter", file=sys.stderr)
    server.run("stdio")

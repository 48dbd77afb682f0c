"""An agent that tests run as a program: it knows HTTP and JSON, and nothing of training."""

import json
import os
import sys
import urllib.request


def ask(messages: list[dict[str, str]], **fields: object) -> list[dict[str, str]]:
    """The answers to a conversation."""
    body = json.dumps({"model": "any", "messages": messages, **fields}).encode()
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        body,
        {"Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return [choice["message"] for choice in json.load(response)["choices"]]


def user(said: str) -> dict[str, str]:
    """A message by the user."""
    return {"role": "user", "content": said}


def main() -> None:
    """Four turns: two of a conversation, two answers to a third question; then the reward."""
    row = json.load(sys.stdin)
    talk = [user(f"say {row['row']}")]
    talk += ask(talk, temperature=0)
    talk += [user("again"), *ask([*talk, user("again")], stop=["x"])]
    both = ask([*talk, user("and")], n=2)
    print(json.dumps({"reward": (len(talk[1]["content"]) + len(both[1]["content"])) / 32}))


if __name__ == "__main__":
    main()

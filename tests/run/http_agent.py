"""An agent that knows OpenAI's interface and of Python its own library only: two turns, and a reward.

Whether the second answer is longer is its reward. What it says depends on what it was answered, as an agent's
words do.
"""

import json
import os
import sys
import time
import urllib.error
import urllib.request


def completed(messages: list[dict[str, str]]) -> str:
    """The answer to some messages."""
    request = urllib.request.Request(
        f"{os.environ['OPENAI_BASE_URL']}/chat/completions",
        data=json.dumps({"model": "policy", "messages": messages}).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['OPENAI_API_KEY']}",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=120) as answer:
        text: str = json.load(answer)["choices"][0]["message"]["content"]
    return text


def main() -> None:
    """Talk, and print the reward."""
    row = json.load(sys.stdin)
    messages = [{"role": "user", "content": f"say {row['prompt']}"}]
    first = completed(messages)
    time.sleep(0.2)  # An agent that is killed is in the middle of something.
    messages += [
        {"role": "assistant", "content": first},
        {"role": "user", "content": f"again, more than {len(first)}"},
    ]
    second = completed(messages)
    print(json.dumps(float(len(second) > len(first))))


if __name__ == "__main__":
    main()

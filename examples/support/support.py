"""A shop's help desk, two-sided in the manner of tau-bench: the policy serves, a role plays the customer.

The customer knows what he wants and not what the shop's rules allow; the policy knows the rules, and changes
orders with tools. The reward is whether the orders are as they should be at the end, whoever said what.
"""

import random
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from dora_rl import Chat
from dora_rl.envs.data.rows import Row

RULES = """You are the help desk of a shop. Look an order up before you change it.
An order that is `processing` may be cancelled, or get another address. One that is `shipped` can neither be
cancelled nor changed. One that is `delivered` may be returned, nothing else. Whatever the rules forbid you
refuse politely. Do nothing that the customer did not ask for."""
CUSTOMER = """You are a customer of a shop and chat with its help desk. {wish}
Give the number of your order only when you are asked for it or when you say what you want. Be brief. When
your wish is fulfilled or refused for good, say goodbye and end with DONE."""
GREETING = "Hello, how can I help you?"
MOST_REPLIES, MOST_CALLS = 6, 4

Orders = dict[str, dict[str, str]]


def rows(seed: int, rows: int = 256) -> Iterator[dict[str, Any]]:
    """Orders, what the customer wants, and the orders as they should be in the end."""
    for number in range(rows):
        rng = random.Random(f"support {seed} {number}")
        orders = {
            str(rng.randint(10_000, 99_999)): {
                "item": rng.choice(("lamp", "kettle", "chair", "radio")),
                "status": rng.choice(("processing", "shipped", "delivered")),
                "address": f"{rng.randint(1, 99)} {rng.choice(('Elm', 'Oak', 'Pine'))} Street",
            }
            for _ in range(3)
        }
        order = rng.choice(list(orders))
        address = f"{rng.randint(100, 199)} Birch Road"
        wish, change, allowed = rng.choice(
            (
                (f"You want to cancel order {order}.", {"status": "cancelled"}, "processing"),
                (f"You want order {order} sent to {address} instead.", {"address": address}, "processing"),
                (f"You want to return order {order}: it is broken.", {"status": "returned"}, "delivered"),
            )
        )
        goal = deepcopy(orders)
        if orders[order]["status"] == allowed:
            goal[order] |= change
        yield {"orders": orders, "wish": wish, "goal": goal}


def desk(orders: Orders) -> list[Callable[..., object]]:
    """The tools of the help desk, over the orders of one episode."""

    def find_order(order: str) -> dict[str, str]:
        """Look an order up.

        Args:
            order: The number of the order.
        """
        return orders[order]

    def cancel_order(order: str) -> str:
        """Cancel an order.

        Args:
            order: The number of the order.
        """
        orders[order]["status"] = "cancelled"
        return "cancelled"

    def change_address(order: str, address: str) -> str:
        """Send an order to another address.

        Args:
            order: The number of the order.
            address: The new address.
        """
        orders[order]["address"] = address
        return "changed"

    def return_order(order: str) -> str:
        """Take an order back.

        Args:
            order: The number of the order.
        """
        orders[order]["status"] = "returned"
        return "returned"

    return [find_order, cancel_order, change_address, return_order]


async def support(chat: Chat, row: Row) -> float:
    """A conversation between the customer, who is played, and the policy: 1 if all orders are right."""
    orders: Orders = deepcopy(row.columns["orders"])
    customer = chat.role("user", {"role": "system", "content": CUSTOMER.format(wish=row.columns["wish"])})
    said = (await customer.turn(GREETING)).text
    opening = [
        {"role": "system", "content": RULES},
        {"role": "assistant", "content": GREETING},
        {"role": "user", "content": said},
    ]
    turn = await chat.turn(opening, tools=desk(orders))
    for reply in range(MOST_REPLIES):
        for _ in range(MOST_CALLS):
            if turn.tool_calls:
                turn = await chat.turn(await chat.use_tools(turn))
        said = (await customer.turn(turn.text or "...")).text
        if "DONE" in said or reply + 1 == MOST_REPLIES:
            break
        turn = await chat.turn(said)
    chat.log_metric("refused wishes", float(row.columns["goal"] == row.columns["orders"]))
    return float(orders == row.columns["goal"])

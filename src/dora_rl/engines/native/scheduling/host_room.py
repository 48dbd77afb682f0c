"""Room on the host for KV that had to leave the device, or came from elsewhere."""

from dora_rl.engines.errors import RequestError


class HostRoom:
    """Counts the blocks of host memory that parked KV takes, by ticket."""

    def __init__(self, num_blocks: int) -> None:
        self._capacity = num_blocks
        self._parked: dict[int, int] = {}
        self._next_ticket = 0

    @property
    def num_free(self) -> int:
        """How many blocks may still be parked."""
        return self._capacity - sum(self._parked.values())

    def num_blocks(self, ticket: int) -> int:
        """How many blocks are parked under a ticket."""
        return self._parked[ticket]

    def check_room(self, num_blocks: int) -> None:
        """Refuse KV that does not fit into the host memory that is left."""
        if num_blocks > self.num_free:
            raise RequestError(
                f"no host memory for {num_blocks} blocks of KV; {self.num_free} are free",
                hint="submit it without KV, its tokens as `continued`",
            )

    def new_ticket(self, num_blocks: int) -> int:
        """Set room for parked KV aside, under a new ticket."""
        assert num_blocks <= self.num_free, f"{num_blocks} blocks, {self.num_free} free on the host"
        self._next_ticket += 1
        self._parked[self._next_ticket] = num_blocks
        return self._next_ticket

    def forget(self, ticket: int) -> None:
        """Give the room of a ticket back."""
        del self._parked[ticket]

    def check_integrity(self, tickets: set[int]) -> None:
        """Assert that exactly these tickets are in use, and that they fit."""
        assert tickets == self._parked.keys(), f"tickets {tickets}, parked {self._parked}"
        assert self.num_free >= 0, f"host memory exceeded by {-self.num_free} blocks"

"""What an endpoint refuses, in the shape that OpenAI's clients read."""

from collections.abc import Mapping
from typing import Any

from dora_rl.core.errors import DoraError


class EndpointError(DoraError):
    """A request that is not answered: its HTTP status, a code for programs, and a sentence for people."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str = "invalid_request",
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """`field` is the field of the request that is at fault."""
        super().__init__(message)
        self.status = status
        self.code = code
        self.field = field
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, Any]:
        """The error as OpenAI sends it."""
        kind = _KINDS.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.field, "code": self.code}}


_KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}

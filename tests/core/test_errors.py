"""Errors: one sentence, and a hint that is seen wherever the error is."""

import traceback

from dora_rl.core.errors import ConfigError


def test_a_traceback_shows_the_hint_as_it_last_was():
    error = ConfigError("steps is 0", hint="raise it")
    error.hint = f"{error.hint}; then go on"
    assert traceback.format_exception_only(error)[1:] == ["hint: raise it; then go on\n"]
    assert traceback.format_exception_only(ConfigError("steps is 0"))[1:] == []

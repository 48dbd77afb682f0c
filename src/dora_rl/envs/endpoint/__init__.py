"""An endpoint that speaks OpenAI's HTTP interface, in front of whoever answers turns.

turn_request      what a client asks for, whatever way it asked   answerer   who answers it, as a protocol
chat_completions  OpenAI's two ways of asking: read, answered     fields     fields of a request: used,
responses         whole and in pieces                                        counted, refused
account           one key's requests: limits, retries             server     HTTP itself
endpoint_error    what is refused, in OpenAI's shape

Only `server` imports aiohttp. Nothing here knows an engine, and of episodes only what a turn is.
"""

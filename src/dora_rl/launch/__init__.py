"""Processes: every one of the system is started, spoken to and ended here. Imports core only, never torch.

protocol    Launch, Handle, WorkerSpec, Place: what whoever needs a worker asks for and gets
messages    what any worker is told or says             framing   records as bytes of a stream
channel     the worker's end                            breaking  its failure becomes a message
connection  the owner's end of a socket                 local     processes of this machine
waiting     for whoever speaks first, and for interrupts  temporary  directories that signals do not leave
spares      processes started beforehand              spare       one, until it is a worker
listener    who dials, and the key it must have       dial        TCP, as both ends set it
dialled     the owner's end of a worker that dials    agent       what starts it, beside it on its machine
cluster     processes on the nodes of a Ray cluster   ray_driver  the process that speaks to Ray (ray_words)

    owner                                            worker
    launch.start(spec, replies) -> handle            python -m MODULE ADDRESS
    handle.send, receive, end      <── frames ──>    Channel.connect(ADDRESS, commands)

ADDRESS is `fd:N`, a socket that the worker inherits, or `tcp:HOST:PORT`, where its owner listens.
"""

"""A Python that waits for its code: started ahead, it costs a program nothing to begin.

Given to `python -c` as text, because a box has no file of this package. Standard library only, and as little
of it as can be: all of it is a program's start.
"""

import _socket  # What `socket` is made of, in a third of the time that it takes.
import array
import marshal
import os
import sys

_SHOWN = "<code>"


def received(source: _socket.socket, size: int, descriptors: int) -> tuple[bytes, list[int]]:
    """A message and the descriptors that came with it, none of which a program started from here inherits."""
    # socket.recv_fds does not look at the flags it is given.
    room = _socket.CMSG_SPACE(descriptors * array.array("i").itemsize)
    message, ancillary, _, _ = source.recvmsg(size, room, _socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for _, kind, content in ancillary:
        if kind == _socket.SCM_RIGHTS:
            found.frombytes(content[: len(content) - len(content) % found.itemsize])
    return message, list(found)


def write_files(files: dict[str, bytes]) -> None:
    """Write files by their names below the current directory."""
    for name, content in files.items():
        os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
        with open(name, "wb") as written:
            written.write(content)


def main(descriptor: int) -> None:
    """Wait for a job, then run its code as this process's main module."""
    source = _socket.socket(fileno=descriptor)
    _, given = received(source, 64, 4)
    source.close()
    if not given:
        return  # Whoever had this started is gone.
    for target, each in enumerate(given[1:]):
        os.dup2(each, target)
        os.close(each)
    with open(given[0], "rb") as file:
        job = marshal.loads(file.read())
    write_files(job["files"])
    os.environ.update(job["environment"])
    sys.path.insert(0, os.getcwd())
    sys.argv = [_SHOWN]
    _run(job["code"])


def _run(code: str) -> None:
    module = type(sys)("__main__")
    sys.modules["__main__"] = module
    try:
        exec(compile(code, _SHOWN, "exec"), module.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        _show(error, code)
        sys.exit(1)


def _show(error: BaseException, code: str) -> None:
    """Write what was raised to the errors, with the lines of the code and none of this file."""
    import linecache
    import traceback

    linecache.cache[_SHOWN] = (len(code), None, code.splitlines(keepends=True), _SHOWN)
    trace = error.__traceback__
    traceback.print_exception(error.with_traceback(trace.tb_next if trace else None))


if __name__ == "__main__":
    main(int(sys.argv[1]))

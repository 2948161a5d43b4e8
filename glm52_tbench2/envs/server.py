"""The environment server of a run: OpenEnv with tbench2's actions, one sandbox a session.

    python -m glm52_tbench2.envs.server --run RUN --host HOST --port PORT

A session is a WebSocket connection; GET /health answers once sessions are taken.
"""

import argparse
import os
import resource
import signal
import socket
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ..config.compose import load_run_config
from ..config.errors import UserError
from ..config.paths import label_of, resolve
from ..config.schema import SandboxConfig
from ..tasks.suite import Task, load_suite
from . import providers
from .sandbox import OpenSandbox

MESSAGE_BYTES = 16 * 2**20
"""Longest message a session takes; a longer one ends it."""


def serve(
    suite: Mapping[str, Task],
    config: SandboxConfig,
    open_sandbox: OpenSandbox,
    listener: socket.socket,
) -> None:
    """Serves sessions on `listener` until SIGTERM or SIGINT."""
    # Imported once all that can be wrong is known to be right: OpenEnv takes more than a second.
    import uvicorn

    from .attended import Attended
    from .core import ConcurrencyConfig, create_fastapi_app
    from .environment import TerminalEnvironment
    from .models import Tbench2Action, Tbench2Observation, Tbench2State

    app = create_fastapi_app(
        partial(TerminalEnvironment, suite, config, open_sandbox),
        Tbench2Action,
        Tbench2Observation,
        # No time limit on a session: it would also end one that waits for a long generation.
        concurrency_config=ConcurrencyConfig(max_concurrent_envs=config.max_concurrent),
        env_name="tbench2",
        state_cls=Tbench2State,
        mode="simulation",
    )
    settings = uvicorn.Config(
        Attended(app),
        log_level="warning",
        access_log=False,
        ws_max_size=MESSAGE_BYTES,
        # A client busy for a while must not lose its session, a vanished one must.
        ws_ping_interval=60.0,
        ws_ping_timeout=600.0,
        timeout_graceful_shutdown=1,
    )
    uvicorn.Server(settings).run(sockets=[listener])


def main(argv: list[str] | None = None) -> int:
    """The role's process; its exit code."""
    parser = argparse.ArgumentParser(prog="glm52_tbench2.envs.server")
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    arguments = parser.parse_args(argv)
    # Ignored by this role, but not by what tasks run: a handler is not inherited, to ignore is.
    signal.signal(signal.SIGUSR2, lambda number, frame: None)
    # Raised by uvicorn once it has ended, so that the sandboxes are ended then too.
    signal.signal(signal.SIGTERM, _stop)
    # A sandbox holds about ten files open.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        config = load_run_config(arguments.run)
        suite = load_suite(resolve(config.data.tasks_dir))
        with (
            _listen(arguments.host, arguments.port) as listener,
            providers.opened(config.sandbox, label_of(arguments.run)) as open_sandbox,
        ):
            serve(suite, config.sandbox, open_sandbox, listener)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        pass
    except _Stopped:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    return 0


class _Stopped(BaseException):
    """SIGTERM."""


def _stop(number: int, frame: object) -> None:
    raise _Stopped


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), backlog=512)
    except OSError as error:
        raise UserError(
            f"The environment server cannot listen on {host}:{port} ({error.strerror}); "
            "choose another port, or end what uses it."
        ) from error


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads may still wait for commands; their sandboxes end with this process.
    os._exit(code)

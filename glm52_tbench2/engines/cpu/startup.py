"""A faster and cleaner start of SGLang's processes on a CPU."""

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

_ENGINE = "sglang.srt.entrypoints.engine"
_SERVER = "sglang.srt.entrypoints.http_server"
_LOADS = "sglang.srt.managers.load_snapshot"


def fork_children(result: Any, *args: Any, **kwargs: Any) -> None:
    """After SGLang chose how to start its scheduler and detokenizer: forks them.

    It starts fresh interpreters, for CUDA's sake, and each then takes nine CPU seconds to import
    what the server has imported already.
    """
    multiprocessing.set_start_method("fork", force=True)


def freeze_gc_when_listening(original: Callable[[Any], None], server_args: Any) -> None:
    """Around the request a server sends to itself: without a warm-up it comes before the socket."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        try:
            socket.create_connection((server_args.host, server_args.port), 1).close()
            break
        except OSError:
            time.sleep(0.1)
    original(server_args)


def loads_path(ipc_name: str) -> str:
    """In place of a file in /dev/shm, which a killed server would leave there."""
    return os.path.join(os.environ["TMPDIR"], "loads")


def install() -> None:
    """Registers the hooks."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    # SGLang's tensor dumper, not used here, imports Megatron where it is installed.
    sys.modules["megatron"] = None  # type: ignore[assignment]

    HookRegistry.register(f"{_ENGINE}._set_envs_and_config", fork_children, HookType.AFTER)
    HookRegistry.register(
        f"{_SERVER}._freeze_gc_after_server_warmup", freeze_gc_when_listening, HookType.AROUND
    )
    HookRegistry.register(f"{_LOADS}.shm_path_for", loads_path, HookType.REPLACE)

"""Runs a supervisor over scripted roles: python scripted.py RUN ROLES_JSON GRACE_S [NODE COUNT].

A role is [kind, code] or [kind, code, node]; NODE is this supervisor's among COUNT. Of kind part.0
and part.1 are those of one engine.
Prints "ready" once every gate is passed, then each event, then the outcome.
"""

import json
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from glm52_tbench2.config.signals import Signals
from glm52_tbench2.launch import heart
from glm52_tbench2.launch import peers as peers_module
from glm52_tbench2.launch import roles as roles_module
from glm52_tbench2.launch import supervisor as supervisor_module
from glm52_tbench2.launch.peers import Peers
from glm52_tbench2.launch.roles import Policy, RoleProcess, RoleSpec, State
from glm52_tbench2.launch.run_folder import lock
from glm52_tbench2.launch.supervisor import Ended, Supervisor

SERVER = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *a): pass
http.server.HTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""

# As a part does, it serves once it has met the other; it publishes that, and dies when told to.
PART = """
import os, sys, threading
from glm52_tbench2.config.signals import Signals
host, port, part, generation, meet = sys.argv[1:]
signals, me = Signals.from_env(), part + '/' + generation
if part == '0':
    signals.publish('meet/' + generation, meet)
there = Signals.at(signals.wait('meet/' + generation, 60))
assert there.get(part) is None, 'what an earlier generation left'
there.publish(part, '1')
there.wait(str(1 - int(part)), 60)
def die():
    Signals.from_env().wait('die/' + me, 600)
    os._exit(7)
threading.Thread(target=die, daemon=True).start()
signals.publish('met/' + me, '1')
"""


def python(code: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-c", code, *arguments)


def server(role: str = "env", code: str = SERVER, **more: object) -> RoleSpec:
    command = python(code, "{host}", "{port}")
    return RoleSpec(role, 0, command, Policy.service, health="/health", **more)  # type: ignore[arg-type]


def part(number: int, code: str, node: int) -> RoleSpec:
    command = python(code or PART + SERVER, "{host}", "{port}", str(number), "{generation}")
    command += ("{meet}",) if number == 0 else ("",)
    return RoleSpec(
        *("engine", 0, command, Policy.service, node),
        health="/health",
        numbered=True,
        part=number,
        parts=2,
    )


def worker(code: str, role: str = "driver", **more: object) -> RoleSpec:
    return RoleSpec(role, 0, python(code), Policy.worker, **more)  # type: ignore[arg-type]


def core(code: str, **more: object) -> RoleSpec:
    return RoleSpec("trainer", 0, python(code), Policy.core, **more)  # type: ignore[arg-type]


def helper(code: str) -> RoleSpec:
    return RoleSpec("tracker", 0, python(code), Policy.helper)


class Recorder:
    """A watcher that keeps what it is told."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.all_ready = False

    def event(self, text: str) -> None:
        self.events.append(text)

    def tick(self, roles: Sequence[RoleProcess]) -> None:
        states = {role.state for role in roles}
        self.all_ready |= states <= {State.ready, State.finished}


class Printer(Recorder):
    def tick(self, roles: Sequence[RoleProcess]) -> None:
        before = self.all_ready
        super().tick(roles)
        if self.all_ready and not before:
            print("ready", flush=True)

    def event(self, text: str) -> None:
        print(text, flush=True)


def supervise(run_dir: Path, specs: list[RoleSpec], **more: object) -> tuple[Ended, Recorder]:
    recorder = Recorder()
    options = {"max_restarts": 2, **more}
    ended = Supervisor(run_dir, specs, recorder, **options).run()  # type: ignore[arg-type]
    return ended, recorder


def main() -> None:
    run_dir, roles = Path(sys.argv[1]), json.loads(sys.argv[2])
    roles_module.GRACE_S = supervisor_module.GRACE_S = float(sys.argv[3])
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # whatever the tests were started by, as nohup
    if all(len(role) == 2 and role[0] in ("worker", "core") for role in roles):
        Signals.open = lambda self: None  # nothing asks the store: spare the import of torch
    node, count = map(int, sys.argv[4:] or (0, 1))
    # ["refused", why, node]: what keeps that node's roles from starting.
    refused = "".join(role[1] for role in roles if role[0] == "refused" and role[2] == node)
    specs = [scripted(*role) for role in roles if role[0] != "refused"]
    heart.HEARTBEAT_S, peers_module.SILENT_S, peers_module.FIRST_S = 1.0, 10.0, 30.0
    peers = Peers(run_dir, node, count, "job.0" if count > 1 else "")
    with lock(run_dir) if peers.head else nullcontext() as fd:
        ended = Supervisor(
            run_dir,
            specs,
            Printer(),
            max_restarts=2,
            peers=peers,
            lock_fd=fd,
            warning_s=5.0,
            refused=refused,
        ).run()
    print(ended.text, flush=True)
    sys.exit(ended.code)


def scripted(kind: str, code: str, node: int = 0) -> RoleSpec:
    if kind == "server":
        return server(code=code or SERVER, node=node)
    if kind.startswith("part."):
        return part(int(kind.removeprefix("part.")), code, node)
    return {"worker": worker, "core": core}[kind](code, node=node)


if __name__ == "__main__":
    main()

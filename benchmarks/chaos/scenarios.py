"""The faults, one run each: what is done to it, and what must hold in the end."""

import random
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from glm52_tbench2.analysis.run_files import RunFiles

from .books import Check, checks, lost
from .job import ROLES, Job
from .machine import Controls, Disk
from .proxy import HARMLESS, Proxy, wait_for_faults

Tell = Callable[[str], None]

SMALL = [
    "experiment=smoke",
    "rollout.mode=fully_async",
    "rollout.prompts_per_step=4",
    "rollout.samples_per_prompt=4",
    "rollout.max_concurrent_samples=8",
    "eval.every=0",
    "checkpoint.every=2",
    "tracking.wandb=disabled",
    # Faults are many on purpose.
    "cluster.max_restarts=100",
]
_SHORT_LIMITS = ["sandbox.command_timeout_s=2", "sandbox.verifier_timeout_s=10"]
_NOTED_S = 10.0
"""The supervisor sees the end of a role within a second or so, unless it is busy ending all."""


def kills(folder: Path, seed: int, steps: int, overrides: Sequence[str], tell: Tell) -> list[Check]:
    """kill -9 of every role and of the supervisor, each at random moments."""
    rng = random.Random(f"{seed} kills")
    victims = list(ROLES) * max(1, (steps - 3) // len(ROLES))
    rng.shuffle(victims)
    # Spread over the run, and over before its last steps, so that each one strikes.
    moments = sorted(rng.randint(1, max(1, steps - 3)) for _ in victims)
    with Job(folder, [*SMALL, f"steps={steps}", *overrides]) as job:
        job.wait_until_ready()
        for victim, step in zip(victims, moments, strict=True):
            job.wait_until(lambda step=step: job.steps >= step, f"the batch of step {step}")
            time.sleep(rng.uniform(0, 3))
            kill(job, victim, tell)
        job.wait_until(lambda: job.steps >= steps - 2, "two steps before the end")
        job.kill()
        code = job.ended()
        left = job.left()
        tell(f"killed the supervisor: {'; '.join(left) or 'nothing of the run was left'}")
        job.resume()
        return [
            Check("a killed supervisor leaves nothing", "; ".join(left)),
            *ended(job, job.ended(), tell),
            Check("the killed command did not say that all is well", "" if code else "it did"),
        ]


def kill(job: Job, victim: str, tell: Tell) -> None:
    """kill -9 of a role; of the engine with all its processes."""
    job.wait_until(lambda: job.role(victim) is not None, f"a process of {victim}")
    process, before = job.role(victim), len(job.events)
    if process is None:
        return kill(job, victim, tell)
    with suppress(psutil.NoSuchProcess):
        tree = process.children(recursive=True) if victim == "engine" else []
        for one in [process, *tree]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
    until = time.monotonic() + _NOTED_S
    while not (news := [e[20:] for e in job.events[before:] if " ready " not in e]):
        if time.monotonic() > until:
            break
        time.sleep(0.1)
    tell(f"killed {victim} after {job.steps} batches: {'; '.join(news) or 'nothing is noted'}")


def sandboxes(
    folder: Path, seed: int, steps: int, overrides: Sequence[str], tell: Tell
) -> list[Check]:
    """Sandboxes that vanish, answer late or with garbage, hang, or give no proper verdict."""
    rng = random.Random(f"{seed} sandboxes")
    with Job(folder, [*SMALL, f"steps={steps}", *_SHORT_LIMITS, *overrides]) as job:
        with Proxy(job, rng, share=0.3) as proxy:
            seen = 0
            while job.alive:
                wait_for_faults(proxy, seen + 5, job)
                if proxy.struck.total() > seen:
                    seen = proxy.struck.total()
                    told = ", ".join(f"{n} {kind}" for kind, n in sorted(proxy.struck.items()))
                    tell(f"spoiled {told} in {job.steps} batches")
            code = job.ended()
        found = ended(job, code, tell)
        replaced = lost(RunFiles.open(job.run_dir))
        wanted = sum(n for kind, n in proxy.struck.items() if kind not in HARMLESS)
        counted = replaced["sandbox"] + replaced["verifier"]
        return [
            *found,
            Check("sandboxes were struck", "" if wanted else "none was"),
            Check(
                "each spoiled sample was replaced, and none else",
                "" if counted == wanted else f"{counted} replaced, {wanted} spoiled",
            ),
        ]


def disk(folder: Path, seed: int, steps: int, overrides: Sequence[str], tell: Tell) -> list[Check]:
    """The disk is full at a random moment; the run is resumed once there is space."""
    rng = random.Random(f"{seed} disk")
    found = []
    with (
        Disk(folder / "disk") as small,
        Job(folder, [*SMALL, f"steps={steps}", *overrides], disk=small.folder) as job,
    ):
        job.wait_until_ready()
        step = rng.randint(1, max(1, steps - 3))
        job.wait_until(lambda: job.steps >= step, f"the batch of step {step}")
        time.sleep(rng.uniform(0, 3))
        small.fill()
        tell(f"filled the disk after {job.steps} batches")
        code = job.ended()
        sentence = re.search(r"[^\n]*\bfull\b[^\n]*", job.said)
        tell(f"exit code {code}: {sentence[0] if sentence else job.said[-300:]}")
        found += [
            Check("a full disk ends the run with an error", "" if code == 1 else f"code {code}"),
            Check("a sentence says that it is full", "" if sentence else job.said[-300:]),
            Check("no traceback is shown", job.said[-2000:] if "Traceback" in job.said else ""),
            Check("nothing is left while it waits", "; ".join(job.left())),
        ]
        small.free()
        job.resume()
        return [*found, *ended(job, job.ended(), tell)]


def slow_disk(
    folder: Path, seed: int, steps: int, overrides: Sequence[str], tell: Tell
) -> list[Check]:
    """Each fsync and rename takes up to a second, for some seconds at a time."""
    rng = random.Random(f"{seed} slow_disk")
    folder.mkdir()
    controls = Controls(folder)
    with Job(folder, [*SMALL, f"steps={steps}", *overrides], controls.env) as job:
        job.wait_until_ready()
        seconds = 0.0
        while job.alive:
            seconds = 0.0 if seconds else rng.uniform(0.2, 1.0)
            controls.disk(seconds)
            tell(f"fsync and rename take {seconds:.1f} s more after {job.steps} batches")
            _sleep(job, rng.uniform(5, 15))
        return [
            *ended(job, job.ended(), tell),
            Check("no role had to be restarted", _restarts(job)),
        ]


def clock(folder: Path, seed: int, steps: int, overrides: Sequence[str], tell: Tell) -> list[Check]:
    """The wall clock jumps an hour ahead and back, again and again."""
    rng = random.Random(f"{seed} clock")
    folder.mkdir()
    controls = Controls(folder)
    with Job(folder, [*SMALL, f"steps={steps}", *overrides], controls.env) as job:
        job.wait_until_ready()
        hours = 0
        while job.alive:
            hours += 1 if hours < 0 else -1 if hours > 0 else rng.choice([1, -1])
            controls.clock(hours * 3600)
            tell(f"the clock is {hours:+} h off after {job.steps} batches")
            _sleep(job, rng.uniform(3, 8))
        return [
            *ended(job, job.ended(), tell),
            Check("no role had to be restarted", _restarts(job)),
            Check("no sample was replaced", str(dict(lost(RunFiles.open(job.run_dir))) or "")),
        ]


SCENARIOS = {
    "kills": kills,
    "sandboxes": sandboxes,
    "disk": disk,
    "slow_disk": slow_disk,
    "clock": clock,
}


def ended(job: Job, code: int, tell: Tell) -> list[Check]:
    """What must hold of any run, whatever was done to it."""
    tell(f"the run ended with exit code {code} after {job.steps} steps")
    finished = Check("the run ends with 0", "" if code == 0 else f"{code}: {job.said[-2000:]}")
    left = Check("nothing of the run is left", "; ".join(job.left()))
    return [finished, left, *(checks(job.run_dir) if code == 0 else [])]


def _restarts(job: Job) -> str:
    return "; ".join(e for e in job.events if "restarted," in e or "starts again" in e)


def _sleep(job: Job, seconds: float) -> None:
    until = time.monotonic() + seconds
    while job.alive and time.monotonic() < until:
        time.sleep(0.1)

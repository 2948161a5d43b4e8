"""What a run's page says of its health: what the sentinel said, or what would have been said."""

from dataclasses import dataclass, replace

from ..config.schema import SentinelAction, Sign
from ..config.words import counted
from .run_files import RunFiles
from .sentinel.files import ALARMS_FILE, Alarm, alarms
from .sentinel.watch import Judge


@dataclass(frozen=True)
class Health:
    """Alarms, and in one sentence how they come to be there, or why there are none."""

    alarms: list[Alarm]
    told: str


def health(run: RunFiles, afterwards: list[Alarm], judged: int) -> Health:
    """`afterwards`: what :func:`.sentinel.watch.judge` finds, in `judged` steps.

    To what the run's sentinel said, which may be of older code, it adds signs that it never told.
    """
    said, unwatched = _said(run)
    known = {one.sign for one in said}
    added = [replace(one, action="nothing") for one in afterwards if one.sign not in known]
    if added and not unwatched:
        signs = ", ".join(dict.fromkeys(one.sign for one in added))
        told = (
            "The curves are marked where an alarm opened or would have opened: the run's sentinel "
            f"told nothing of {signs}, found afterwards by its step files."
        )
        return Health(sorted([*said, *added], key=lambda alarm: alarm.step), told)
    if said:
        return Health(said, "The curves are marked where an alarm opened.")
    judge = Judge(run.config)
    ignored = [sign.name for sign in Sign if judge.action(sign) is SentinelAction.ignore]
    if len(ignored) == len(Sign):
        return Health([], "Nothing was judged: the config has the sentinel ignore every sign.")
    if not judged:
        return Health([], f"Nothing was judged: {_unjudged(run)}.")
    steps = counted(judged, "step")
    left_out = f" Not looked for: {', '.join(ignored)}." if ignored else ""
    if not unwatched:
        told = f"The sentinel has seen no sign of an unhealthy run in {steps}."
        return Health([], told + left_out)
    if not added:
        told = f"{unwatched}: afterwards, by its step files, no sign is found in {steps}."
        return Health([], told + left_out)
    told = (
        f"{unwatched}: these alarms were found afterwards, by its step files. The curves are "
        "marked where they would have opened."
    )
    return Health(added, told + left_out)


def _said(run: RunFiles) -> tuple[list[Alarm], str]:
    """What the sentinel said, and why that is not known; "" where it is."""
    if not (run.path / ALARMS_FILE).exists():
        return [], f"The sentinel did not watch this run ({ALARMS_FILE} is not there)"
    try:
        return alarms(run.path, run.warn), ""
    except OSError as error:
        unknown = f"{ALARMS_FILE} is not readable, so what the sentinel said is unknown"
        run.warn(f"{unknown}: {error.strerror}")
        return [], unknown


def _unjudged(run: RunFiles) -> str:
    """Why no step could be judged."""
    if not run.steps("rollouts"):
        return "no batch has been written yet"
    if run.steps("train"):
        return "no step has both a batch and the trainer's scores of it that can be read"
    if run.metrics.get("trainer"):
        return "the trainer's scores (train/) are not there"
    return "no step has been trained yet"

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
    """`afterwards`: what :func:`.sentinel.watch.judge` finds, in `judged` steps."""
    if said := alarms(run.path):
        return Health(said, "The curves are marked where an alarm opened.")
    judge = Judge(run.config)
    ignored = [sign.name for sign in Sign if judge.action(sign) is SentinelAction.ignore]
    if len(ignored) == len(Sign):
        return Health([], "Nothing was judged: the config has the sentinel ignore every sign.")
    if not judged:
        return Health([], f"Nothing was judged: {_unjudged(run)}.")
    steps = counted(judged, "step")
    left_out = f" Not looked for: {', '.join(ignored)}." if ignored else ""
    if (run.path / ALARMS_FILE).exists():
        told = f"The sentinel has seen no sign of an unhealthy run in {steps}."
        return Health([], told + left_out)
    unwatched = f"The sentinel did not watch this run ({ALARMS_FILE} is not there): "
    if not afterwards:
        told = f"{unwatched}afterwards, by its step files, no sign is found in {steps}."
        return Health([], told + left_out)
    told = (
        f"{unwatched}these alarms were found afterwards, by its step files. The curves are marked "
        "where they would have opened."
    )
    return Health([replace(one, action="nothing") for one in afterwards], told + left_out)


def _unjudged(run: RunFiles) -> str:
    """Why no step could be judged."""
    if not run.steps("rollouts"):
        return "no batch has been written yet"
    if run.steps("train"):
        return "no step has both a batch and the trainer's scores of it that can be read"
    if run.metrics.get("trainer"):
        return "the trainer's scores (train/) are not there"
    return "no step has been trained yet"

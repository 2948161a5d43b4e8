"""OpenEnv's client for tbench2's actions. :mod:`client` says how it may be used."""

from typing import Any

from .core import EnvClient, StepResult
from .models import Tbench2Action, Tbench2Observation, Tbench2State

_NO_LIMIT_S = 7 * 86400.0
_FIELDS = frozenset(Tbench2Observation.model_fields) - {"reward", "done", "metadata"}


class Tbench2Client(EnvClient[Tbench2Action, Tbench2Observation, Tbench2State]):
    """Speaks to one environment. Its calls have no time limits of their own."""

    def __init__(self, url: str) -> None:
        super().__init__(
            base_url=url, message_timeout_s=_NO_LIMIT_S, websocket_ping_interval_s=None
        )

    def _step_payload(self, action: Tbench2Action) -> dict[str, Any]:
        return action.model_dump(exclude={"metadata"})

    def _parse_result(self, payload: dict[str, Any]) -> StepResult[Tbench2Observation]:
        seen = payload.get("observation")
        if not isinstance(seen, dict) or "output" not in seen:
            raise ValueError("the answer holds no observation")  # rather than an empty one
        reward, done = payload.get("reward"), bool(payload.get("done", False))
        # Only what the contract knows: a newer server may say more.
        known = {name: seen[name] for name in _FIELDS & seen.keys()}
        return StepResult(Tbench2Observation(**known, reward=reward, done=done), reward, done)

    def _parse_state(self, payload: dict[str, Any]) -> Tbench2State:
        if "step_count" not in payload:
            raise ValueError("the answer holds no state")
        return Tbench2State(**payload)

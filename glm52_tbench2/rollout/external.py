"""Episodes on a server that somebody else runs (engine.url)."""

import asyncio
from collections.abc import Sequence

from ..config.schema import RunConfig
from ..config.signals import Signals
from ..engines.client import Generation, Message
from ..engines.external import ExternalOpenAi, client_of
from ..engines.openai import Reply
from .chat import ChatLayout
from .endpoints import Endpoints, there
from .episode import Engine

_POLL_S = 1.0


class OpenAiEngine:
    """An endpoint that takes and returns text, as an engine of an episode.

    Its tokens are those of model.path's tokenizer, for lengths; their log-probs, which nobody
    knows, are 0.
    """

    def __init__(self, client: ExternalOpenAi, chat: ChatLayout) -> None:
        self._client, self._chat = client, chat
        self._asked: dict[str, asyncio.Task[Reply]] = {}
        """Requests in flight that nobody has aborted."""

    async def generate(
        self,
        input_ids: list[int],
        *,
        max_new_tokens: int,
        temperature: float,
        stop_token_ids: list[int],
        seed: int,
        rid: str,
        messages: Sequence[Message],
    ) -> Generation:
        """As :meth:`glm52_tbench2.engines.client.EngineClient.generate`, from `messages`."""
        asked = self._asked[rid] = asyncio.create_task(
            self._client.chat(
                messages, max_tokens=max_new_tokens, temperature=temperature, seed=seed, rid=rid
            )
        )
        try:
            reply = await asked
        except asyncio.CancelledError:
            if rid in self._asked:
                raise
            return Generation([], [], "abort", [], 0, 0.0)
        finally:
            self._asked.pop(rid, None)
        # Of a turn whose text is empty, say after hidden reasoning alone, the end is recorded.
        ended = reply.finish == "stop" or not reply.text
        ids = self._chat.turn(reply.text, ended)
        return Generation(
            output_ids=ids,
            logprobs=[0.0] * len(ids),
            finish=reply.finish,
            versions=[0] * len(ids),
            cached_tokens=0,
            seconds=reply.seconds,
            counted_tokens=reply.tokens,
        )

    async def abort(self, rid: str) -> None:
        """Ends a request with its connection; what it had generated is lost.

        Raises EngineError as :meth:`glm52_tbench2.engines.openai.OpenAiClient.abort`.
        """
        await self._client.abort(rid)
        if asked := self._asked.pop(rid, None):
            asked.cancel()


class ExternalEndpoints(Endpoints):
    """The environment of a job, and an engine that is not the job's."""

    def __init__(self, config: RunConfig, signals: Signals, chat: ChatLayout) -> None:
        super().__init__(config, signals)
        self._client = client_of(config)
        self._engine: Engine = (
            OpenAiEngine(self._client, chat)
            if isinstance(self._client, ExternalOpenAi)
            else self._client
        )

    async def engine(self, number: int) -> Engine:
        """The one there is, once it answers; it is waited for as long as engines of a run are.

        Raises RolloutError.
        """

        async def answering() -> Engine | None:
            if self._client.failed and not await self._client.health():
                return None
            self._client.failed = False
            return self._engine

        deadline_s = self._config.cluster.deadlines.engine
        silent = f"engine.url, {self._client.url}, did not answer"
        return await there(answering, deadline_s, silent, _POLL_S)

    async def close(self) -> None:
        """Closes the connections to the endpoint."""
        await self._client.close()

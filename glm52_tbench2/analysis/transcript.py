"""An episode as a person reads it."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .run_files import Row
from .stats import or_nan

MOST_CHARS = 6000
COLUMNS = (
    *("sample_id", "task_id", "end_reason", "reward", "advantage", "error"),
    *("tokens", "loss_mask", "prompt_tokens", "turns"),
)
"""That a transcript is made from."""


@dataclass(frozen=True)
class TurnText:
    """One turn and its answer."""

    said: str
    num_tokens: int
    finish: str
    command: str | None
    exit_code: int | None
    seconds: float
    observation: str


@dataclass(frozen=True)
class Transcript:
    """One episode. Texts are cut in the middle where they are longer than MOST_CHARS."""

    sample_id: str
    task_id: str
    end_reason: str
    reward: float
    advantage: float
    num_tokens: int
    num_generated: int
    prompt: str
    turns: list[TurnText]
    error: str | None


class Decoder:
    """Token ids to text with the run's own tokenizer, special tokens shown."""

    def __init__(self, model_dir: Path) -> None:
        """Raises ValueError, in one sentence, when the folder holds no usable tokenizer."""
        from tokenizers import Tokenizer

        path = model_dir / "tokenizer.json"
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"{path} is not readable: {error}") from error

    def text(self, ids: list[int]) -> str:
        """Text of `ids`."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def pieces(self, ids: Iterable[int]) -> dict[int, bytes]:
        """Bytes of each token alone, of a tokenizer whose tokens are bytes of UTF-8."""
        whole = {one.content for one in self._tokenizer.get_added_tokens_decoder().values()}
        byte_of = {letter: byte for byte, letter in enumerate(_letters())}
        found = {}
        for number in ids:
            token = self._tokenizer.id_to_token(number) or f"<{number}>"
            known = token not in whole and all(letter in byte_of for letter in token)
            found[number] = bytes(byte_of[letter] for letter in token) if known else token.encode()
        return found


def _letters() -> list[str]:
    """The letter that a byte-level tokenizer writes for each byte: itself where it can be printed,
    else the next one from 256 on."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte if byte in printed else next(others)) for byte in range(256)]


def transcribe(row: Row, decoder: Decoder | None) -> Transcript:
    """The transcript of one row of a step file, with COLUMNS; without a decoder only what is text
    already.
    """

    def text(start: int, end: int) -> str:
        if decoder is None:
            return f"({end - start} tokens, not decoded: the run's tokenizer is not readable)"
        return shortened(decoder.text(row["tokens"][start:end]))

    turns = [
        TurnText(
            said=text(turn["start"], turn["end"]),
            num_tokens=turn["end"] - turn["start"],
            finish=turn["finish"],
            command=turn["command"],
            exit_code=turn["exit_code"],
            seconds=turn["exec_s"],
            observation=shortened(turn["observation"] or ""),
        )
        for turn in row["turns"]
    ]
    return Transcript(
        sample_id=row["sample_id"],
        task_id=row["task_id"],
        end_reason=row["end_reason"],
        reward=or_nan(row["reward"]),
        advantage=or_nan(row["advantage"]),
        num_tokens=len(row["tokens"]),
        num_generated=sum(row["loss_mask"]),
        prompt=text(0, row["prompt_tokens"]),
        turns=turns,
        error=row["error"],
    )


def shortened(text: str) -> str:
    """`text`, with the middle left out when it is longer than MOST_CHARS."""
    if len(text) <= MOST_CHARS:
        return text
    half = MOST_CHARS // 2
    return f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"

"""A conversation as token ids that only ever grow.

The tokens around a message come from the tokenizer's own chat template, as what it renders beside
placeholders for the contents. Contents are encoded apart from it, so a command's output that spells
``<|assistant|>`` stays text and never becomes a control token.
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ..config.errors import UserError

_SYSTEM, _INSTRUCTION, _TURN, _OBSERVATION = (
    f"@@{name}@@" for name in ("system", "instruction", "turn", "observation")
)


class ChatLayout:
    """The chat layout of one Hugging Face tokenizer.

    Args:
        tokenizer: a Hugging Face tokenizer with a tokenizer.json and a chat template.
        stop_token_ids: ids that end a turn besides the one the template puts after it.

    Raises UserError without a tokenizer.json, when the template drops or doubles a message, or when
    assembling ids from its pieces does not give what the tokenizer gives for the whole.
    """

    def __init__(self, tokenizer: Any, stop_token_ids: Sequence[int] = ()) -> None:
        self._tokenizer = tokenizer
        if not hasattr(tokenizer, "backend_tokenizer"):
            raise UserError(
                "The tokenizer has no tokenizer.json; save it once as a fast tokenizer."
            )
        self._special: dict[str, int] = dict(tokenizer.get_added_vocab())
        words = "|".join(re.escape(t) for t in sorted(self._special, key=len, reverse=True))
        self._split_special = re.compile(f"({words})" if words else "(?!)")
        self._fixed: dict[str, list[int]] = {}
        """Piece of a layout that holds no content -> its ids."""
        self._find_special = re.compile(f"(?={words})" if words else "(?!)")

        opening: list[dict[str, str]] = [
            {"role": "system", "content": _SYSTEM},
            {"role": "user", "content": _INSTRUCTION},
        ]
        answered = [
            *opening,
            {"role": "assistant", "content": _TURN},
            {"role": "user", "content": _OBSERVATION},
        ]
        self._prompt = self._render(opening, (_SYSTEM, _INSTRUCTION))
        self._answer = self._render(answered, (_TURN, _OBSERVATION)).partition(_TURN)[2]
        self._check()

        closing = self._split_special.match(self._answer)
        ends = [self._special[closing[0]]] if closing else []
        self._end = ends or list(stop_token_ids[:1])
        self.stop_token_ids: list[int] = sorted({*ends, *stop_token_ids})
        """Ids at which the engine ends a turn."""

    @classmethod
    def load(cls, model_dir: Path) -> "ChatLayout":
        """The layout of the tokenizer in `model_dir`, with the end-of-turn ids its model declares.

        Raises UserError when the folder holds no usable tokenizer.
        """
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(str(model_dir), local_files_only=True)
        except (OSError, ValueError) as error:
            raise UserError(f"model.path {model_dir} holds no usable tokenizer: {error}") from error
        return cls(tokenizer, _declared_stops(model_dir))

    def prompt(self, system: str, instruction: str) -> list[int]:
        """Ids up to the first generated token."""
        return self._encode(self._prompt, {_SYSTEM: system, _INSTRUCTION: instruction})

    def observation(self, text: str, last_token: int) -> list[int]:
        """Ids to append between a turn that ended with `last_token` and the next one.

        A template closes a turn with the very token the policy ends it with; it stands once.
        """
        ids = self._encode(self._answer, {_OBSERVATION: text})
        return ids[1:] if ids[:1] == [last_token] else ids

    def turn(self, text: str, ended: bool) -> list[int]:
        """Ids of a turn that is known as text alone, with the token that ends one if it `ended`."""
        return [*self._plain(text), *(self._end if ended else [])]

    def text(self, ids: Sequence[int]) -> str:
        """What a turn says: its ids as text, without the token that ended it."""
        said = list(ids[:-1] if ids and ids[-1] in self.stop_token_ids else ids)
        text: str = self._tokenizer.decode(
            said, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def _render(self, messages: list[dict[str, str]], contents: Sequence[str]) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # templates raise what they like
            raise UserError(f"The tokenizer's chat template fails: {error}") from error
        for content in contents:
            if text.count(content) != 1:
                raise UserError(
                    f"The tokenizer's chat template shows the {content.strip('@')} message "
                    f"{text.count(content)} times; it must show it once."
                )
        return text

    def _check(self) -> None:
        contents = {_SYSTEM: "You are a shell.", _INSTRUCTION: "List the files.\nThen stop."}
        mine = self._encode(self._prompt, contents)
        messages = [
            {"role": "system", "content": contents[_SYSTEM]},
            {"role": "user", "content": contents[_INSTRUCTION]},
        ]
        theirs = self._tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=True, return_dict=False
        )
        if mine != list(theirs):
            raise UserError(
                "The tokenizer's chat template cannot be taken apart: the ids of its pieces are "
                "not the ids of the whole; use a tokenizer whose special tokens strip no spaces."
            )

    def _encode(self, layout: str, contents: Mapping[str, str]) -> list[int]:
        """Ids of a rendered layout with its placeholders filled in."""
        fill = re.compile("|".join(map(re.escape, contents)))
        ids: list[int] = []
        for piece in self._split_special.split(layout):
            if piece in self._special:
                ids.append(self._special[piece])
            elif fill.search(piece):
                ids += self._plain(fill.sub(lambda found: contents[found[0]], piece))
            elif piece:
                if piece not in self._fixed:
                    self._fixed[piece] = self._plain(piece)
                ids += self._fixed[piece]
        return ids

    def _plain(self, text: str) -> list[int]:
        """Ids of `text`, none of them an added token: such a word is encoded in two parts."""
        cuts = [0, *(found.start() + 1 for found in self._find_special.finditer(text)), len(text)]
        ids: list[int] = []
        for start, end in pairwise(cuts):
            if end > start:
                # The library behind the tokenizer: its own `encode` takes twice as long.
                found = self._tokenizer.backend_tokenizer.encode(
                    text[start:end], add_special_tokens=False
                )
                ids += found.ids
        return ids


def _declared_stops(model_dir: Path) -> list[int]:
    """eos_token_id of a model folder, which is one id or several."""
    for name in ("generation_config.json", "config.json"):
        path = model_dir / name
        if path.is_file():
            declared = json.loads(path.read_text()).get("eos_token_id")
            if declared is not None:
                return [declared] if isinstance(declared, int) else list(declared)
    return []

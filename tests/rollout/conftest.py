"""A minimal tokenizer with GLM's special tokens and layout."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from glm52_tbench2.rollout.chat import ChatLayout

TEMPLATE = (
    "[gMASK]<sop>"
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SPECIAL = [
    "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>",
    "<|observation|>",
]  # fmt: skip


def make_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """Bytes, a few merges and GLM's special tokens; <think> is added but not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("l", "s"), ("a", "s"), ("Ċ", "Ċ"), ("<", "|")]
    vocab = {token: i for i, token in enumerate([*alphabet, *("".join(m) for m in merges)])}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in SPECIAL])
    backend.add_tokens(["<think>", "</think>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|endoftext|>")
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture(scope="session")
def chat(tokenizer: PreTrainedTokenizerFast) -> ChatLayout:
    ids = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|observation|>"])
    return ChatLayout(tokenizer, ids)

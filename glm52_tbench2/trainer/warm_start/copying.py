"""Weights to start from that can already copy a word.

A model of this size learns to copy only after tens of millions of tokens, because a head gains
nothing from attending to a word before it writes that word out, and the other way round. Both
halves are therefore laid down at the start, and training decides what to copy:

- the output layer reads a word in a turned copy of the space its embedding is written in, so a
  token does not predict itself;
- every head writes what it attends to into that turned space;
- the embeddings of words share a mark that heads look for, and a word's two spellings, with and
  without a space before it, differ by another mark only;
- in the first layer some heads look one and two tokens back, so that later layers find a word by
  what stands before it, as "the word after `called`".
"""

from collections.abc import Iterable
from math import sqrt

import torch
from torch import Tensor
from transformers import Glm4MoeLiteForCausalLM, PreTrainedTokenizerBase
from transformers.models.glm4_moe_lite.modeling_glm4_moe_lite import Glm4MoeLiteAttention

from glm52_tbench2.config.schema import ModelConfig

_EMBEDDING_STD = 0.1
_MARKS = 3
"""Leading dimensions of the embedding that hold marks: 0 of all tokens, 1 of words, 2 of spaces."""
_MARK = 4.0
"""Value of a mark, in units of the embedding's std."""
_WORD_GAIN = 2.0
_SHIFT_GAIN = 4.0
_SHIFTS = (1, 2)
"""Distances that the first layer's first heads look back."""
_OUTPUT_GAIN = 2.0
_COPY_GAIN = 0.5
_SHIFT_COPY_GAIN = 0.3
_QUERY_GAIN = 0.2
_MLP_OUTPUT_GAIN = 0.05


@torch.no_grad()
def seed_copying(
    model: Glm4MoeLiteForCausalLM,
    config: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    words: Iterable[str],
    seed: int,
) -> None:
    """Sets every matrix of `model`, float32, so that it tends to copy `words` from its context."""
    random = torch.Generator().manual_seed(seed)
    for name, weight in model.named_parameters():
        if weight.ndim < 2:
            continue  # norms stay 1
        std = 1 / sqrt(weight.shape[-1])
        if "down_proj" in name:
            std *= _MLP_OUTPUT_GAIN
        elif "gate.weight" in name:
            std = 0.02
        elif "q_b_proj" in name:
            std *= _QUERY_GAIN
        weight.copy_(torch.randn(weight.shape, generator=random) * std)

    hidden = config.hidden_size
    embedding = torch.randn(config.vocab_size, hidden, generator=random)
    embedding[:, 2] = 0.0
    marks = torch.zeros(config.vocab_size, 2)
    marks[:, 0] = _MARK
    for word in words:
        shared = torch.randn(hidden, generator=random)
        for spelling, space in ((word, -_MARK), (f" {word}", _MARK)):
            tokens = tokenizer.encode(spelling)
            if len(tokens) == 1:
                embedding[tokens] = shared
                embedding[tokens, 2] = space
                marks[tokens, 1] = _MARK
    turn = _orthogonal(hidden, hidden, random)
    model.lm_head.weight.copy_(embedding @ turn.T / sqrt(hidden) * _OUTPUT_GAIN)
    embedding[:, :2] = marks
    model.model.embed_tokens.weight.copy_(embedding * _EMBEDDING_STD)
    for number, layer in enumerate(model.model.layers):
        _seed_heads(layer.self_attn, config, turn, random)
        if number == 0:
            _look_back(layer.self_attn, config, random)


def _seed_heads(
    attention: Glm4MoeLiteAttention, config: ModelConfig, turn: Tensor, random: torch.Generator
) -> None:
    """Heads that look for the mark of words and write what they find into the turned space."""
    assert attention.q_a_proj is not None and attention.q_b_proj is not None
    heads, nope, rank = config.num_heads, config.qk_nope_head_dim, config.kv_lora_rank
    # Latent 0 is the mark of words; the others are a random view of all but the marks.
    view = torch.zeros(rank, config.hidden_size)
    view[0, 1] = 1.0
    view[1:, _MARKS:] = _orthogonal(rank - 1, config.hidden_size - _MARKS, random)
    attention.kv_a_proj_with_mqa.weight[:rank] = view
    key_value = attention.kv_b_proj.weight.view(heads, -1, rank)
    key_value[:, 0] = 0.0
    key_value[:, 0, 0] = _WORD_GAIN
    # Latent 0 of the query is the mark of all tokens: a query that is always there.
    attention.q_a_proj.weight[0] = 0.0
    attention.q_a_proj.weight[0, 0] = 1.0
    query = attention.q_b_proj.weight.view(heads, -1, config.q_lora_rank)
    query[:, 0] = 0.0
    query[:, 0, 0] = _WORD_GAIN
    output = attention.o_proj.weight.view(config.hidden_size, heads, config.v_head_dim)
    for head in range(heads):
        value = _orthogonal(config.v_head_dim, rank, random)
        key_value[head, nope:] = value
        output[:, head] = _COPY_GAIN * turn @ (value @ view).T


def _look_back(
    attention: Glm4MoeLiteAttention, config: ModelConfig, random: torch.Generator
) -> None:
    """The first heads attend to fixed distances, by rotary position alone.

    With a constant key k and the query k turned back by the distance d, the score of a token at
    distance s is the sum over frequencies w of cos(w (s - d)), which is largest at s = d.
    """
    assert attention.q_b_proj is not None
    heads, nope, rope = config.num_heads, config.qk_nope_head_dim, config.qk_rope_head_dim
    frequency = config.rope_base ** (-torch.arange(0, rope, 2) / rope)
    key = attention.kv_a_proj_with_mqa.weight[config.kv_lora_rank :]
    key.zero_()
    mark = _MARK / sqrt(1 + _MARK**2 / config.hidden_size)  # after the norm
    key[0::2, 0] = _SHIFT_GAIN / mark
    query = attention.q_b_proj.weight.view(heads, -1, config.q_lora_rank)
    query[:, nope:] = 0.0
    output = attention.o_proj.weight.view(config.hidden_size, heads, config.v_head_dim)
    for head, distance in enumerate(_SHIFTS):
        query[head] = 0.0
        # The rotary dimensions come in interleaved pairs.
        query[head, nope::2, 0] = _SHIFT_GAIN * torch.cos(-distance * frequency) / 2.5
        query[head, nope + 1 :: 2, 0] = _SHIFT_GAIN * torch.sin(-distance * frequency) / 2.5
        # Another turn for each distance: later layers can tell them apart.
        turn = _orthogonal(config.hidden_size, config.hidden_size, random)
        output[:, head] = _SHIFT_COPY_GAIN / _COPY_GAIN * turn @ output[:, head]


def _orthogonal(rows: int, columns: int, random: torch.Generator) -> Tensor:
    """A random matrix with orthonormal rows or columns, whichever are fewer."""
    matrix = torch.empty(rows, columns)
    torch.nn.init.orthogonal_(matrix, generator=random)
    return matrix

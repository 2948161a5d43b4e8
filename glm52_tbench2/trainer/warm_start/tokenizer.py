"""The small model's tokenizer: byte-level BPE with GLM's special tokens and chat layout."""

from collections.abc import Iterable
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from glm52_tbench2.tasks.mini import FAMILIES, WORDS, fresh

SPECIAL_TOKENS = (
    "<|endoftext|>",
    "[MASK]",
    "[gMASK]",
    "[sMASK]",
    "<sop>",
    "<eop>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|observation|>",
    "<think>",
    "</think>",
)
"""GLM's special tokens; they take the last ids, in this order."""
EOS_TOKENS = ("<|endoftext|>", "<|user|>", "<|observation|>")
"""Tokens that end a turn."""
CHAT_TEMPLATE = (
    "[gMASK]<sop>"
    "{%- for m in messages -%}"
    "<|{{ 'observation' if m.role == 'tool' else m.role }}|>\n{{ m.content }}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|assistant|>\n{% endif -%}"
)
# Words, single digits and single marks, each with the space before it: a name is then the same
# tokens wherever it stands, which is what a small model needs to copy it.
_PIECES = r" ?\p{L}+|\p{N}| ?(?:```|&&|>>|[^\s\p{L}\p{N}])|\s+(?!\S)|\s+"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Learns a vocabulary of at most `vocab_size` entries, special tokens included."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        min_frequency=8,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL_TOKENS[1:]),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def corpus(seed: int, phrases: Iterable[str], instances_per_family: int = 40) -> list[str]:
    """Text to learn the vocabulary from: fresh tasks of every family, the words and `phrases`."""
    rng = Random(f"{seed}/tokenizer")
    texts = []
    for family in sorted(FAMILIES):
        for _ in range(instances_per_family):
            task = fresh(rng, family)
            texts += [task.instruction, *task.turns, *task.wrong, *task.files.values()]
    # Often enough that each word becomes one token, with and without a space before it.
    return texts + [f"{word} {word}" for word in (*WORDS, *phrases)] * 100

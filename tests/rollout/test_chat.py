import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoTokenizer

from glm52_tbench2.config.errors import UserError
from glm52_tbench2.config.paths import DATA
from glm52_tbench2.rollout.chat import ChatLayout

from .conftest import SPECIAL, TEMPLATE, make_tokenizer

words = st.text(max_size=30) | st.sampled_from([*SPECIAL, "<think>", "@@turn@@", "\n\n", " ls"])
messages = st.lists(words, max_size=4).map("".join)


def test_prompt_is_what_the_tokenizer_renders(chat, tokenizer):
    expected = tokenizer.apply_chat_template(
        [{"role": "system", "content": "be brief"}, {"role": "user", "content": "\nls as"}],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert chat.prompt("be brief", "\nls as") == expected


def test_a_conversation_grown_by_appending_is_the_conversation_rendered_whole(chat, tokenizer):
    user = tokenizer.convert_tokens_to_ids("<|user|>")
    ids = chat.prompt("s", "task")
    turn = [*tokenizer.encode("ls", add_special_tokens=False), user]
    ids = [*ids, *turn, *chat.observation("a.txt", turn[-1])]
    whole = tokenizer.apply_chat_template(
        [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "task"},
            {"role": "assistant", "content": "ls"},
            {"role": "user", "content": "a.txt"},
        ],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert ids == whole


def test_the_token_that_ended_a_turn_stands_once(chat, tokenizer):
    user, end = tokenizer.convert_tokens_to_ids(["<|user|>", "<|endoftext|>"])
    assert chat.observation("x", user)[:1] != [user]
    assert chat.observation("x", end)[:1] == [user]
    assert chat.observation("x", end)[1:] == chat.observation("x", user)


def test_every_way_to_end_a_turn_stops_the_engine(chat, tokenizer):
    ends = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|user|>", "<|observation|>"])
    assert chat.stop_token_ids == sorted(ends)
    for end in ends:
        assert chat.text([*tokenizer.encode("ls"), end]) == "ls"


@settings(max_examples=150, deadline=None)
@given(text=messages)
def test_no_content_becomes_a_control_token_and_none_is_lost(chat, tokenizer, text):
    frame = chat.observation("", -1)
    ids = chat.observation(text, -1)
    added = set(tokenizer.get_added_vocab().values())
    assert [i for i in ids if i in added] == [i for i in frame if i in added]
    assert tokenizer.decode(ids) == f"<|user|>\n{text}<|assistant|>\n"


@settings(max_examples=50, deadline=None)
@given(system=messages, instruction=messages)
def test_no_prompt_holds_a_control_token_of_its_contents(chat, tokenizer, system, instruction):
    added = set(tokenizer.get_added_vocab().values())
    ids = chat.prompt(system, instruction)
    assert sum(i in added for i in ids) == 5


def test_thinking_templates_that_rewrite_old_turns_still_give_the_glue():
    template = TEMPLATE.replace(
        "{{ m.content }}",
        "{% if m.role == 'assistant' %}<think></think>\n{% endif %}{{ m.content }}",
    ).replace("<|assistant|>\n{% endif", "<|assistant|>\n<think>{% endif")
    tokenizer = make_tokenizer(template)
    ids = ChatLayout(tokenizer).observation("out", -1)
    assert tokenizer.decode(ids) == "<|user|>\nout<|assistant|>\n<think>"


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (TEMPLATE.replace("{{ m.content }}", "{{ m.content }}{{ m.content }}"), "2 times"),
        ("{{ messages[-1].content }}", "system message 0 times"),
        ("{{ raise_exception('no system role') }}", "no system role"),
    ],
)
def test_a_template_that_cannot_serve_is_refused_in_a_sentence(template, says):
    with pytest.raises(UserError, match=says):
        ChatLayout(make_tokenizer(template))


def test_a_folder_without_a_tokenizer_is_refused_in_a_sentence(tmp_path):
    with pytest.raises(UserError, match="holds no usable tokenizer"):
        ChatLayout.load(tmp_path)


def test_load_takes_the_models_own_ends(tmp_path, tokenizer):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [256, 262]}')
    assert {256, 262} <= set(ChatLayout.load(tmp_path).stop_token_ids)


def test_the_small_models_own_layout():
    chat = ChatLayout.load(DATA / "tiny")
    user = chat.observation("", -1)[0]
    ids = [*chat.prompt("sys", "do it"), *chat.observation("out", user)]
    assert chat.text(ids) == (
        "[gMASK]<sop><|system|>\nsys<|user|>\ndo it<|assistant|>\n\nout<|assistant|>\n"
    )
    names = ["<|endoftext|>", "<|user|>", "<|observation|>"]
    ends = AutoTokenizer.from_pretrained(DATA / "tiny").convert_tokens_to_ids(names)
    assert chat.stop_token_ids == sorted(ends)

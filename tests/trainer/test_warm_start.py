"""The small model: its tokenizer, its demonstrations, its training, and the files that ship."""

import json
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from glm52_tbench2.config.compose import compose
from glm52_tbench2.config.paths import resolve
from glm52_tbench2.config.schema import RunConfig
from glm52_tbench2.rollout.chat import ChatLayout
from glm52_tbench2.rollout.protocol import command_of, is_complete
from glm52_tbench2.tasks.mini import FAMILIES, WORDS, committed, held_out_keys, instance_key
from glm52_tbench2.tasks.mini.generate import split_ids
from glm52_tbench2.tasks.sets import load_set
from glm52_tbench2.tasks.suite import load_suite
from glm52_tbench2.trainer.hf import check_hf_config
from glm52_tbench2.trainer.warm_start.__main__ import main
from glm52_tbench2.trainer.warm_start.demos import (
    OPENERS,
    Behaviour,
    Demo,
    Recording,
    Step,
    Turn,
    demonstrate,
    draw,
    encode,
    fresh_instances,
    record,
)
from glm52_tbench2.trainer.warm_start.measure import generate
from glm52_tbench2.trainer.warm_start.tokenizer import EOS_TOKENS, SPECIAL_TOKENS
from glm52_tbench2.trainer.warm_start.train import (
    Lesson,
    Schedule,
    batches,
    loss_of,
    new_model,
    save,
    train,
)

RECORDING = Recording(
    family="find-move",
    key="0",
    instruction="Find maple.txt and move it to the folder amber.",
    right=[
        Step("find . -name maple.txt", "./cedar/maple.txt"),
        Step("mv ./cedar/maple.txt amber", "(no output)"),
    ],
    wrong=[Step("mv maple.txt amber", "mv: cannot stat 'maple.txt': No such file or directory")],
)


@pytest.fixture(scope="module")
def smoke() -> RunConfig:
    return compose(["experiment=smoke"])


@pytest.fixture(scope="module")
def folder(smoke: RunConfig) -> Path:
    return resolve(smoke.model.path)


@pytest.fixture(scope="module")
def tokenizer(folder: Path):
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture(scope="module")
def chat(folder: Path) -> ChatLayout:
    return ChatLayout.load(folder)


def demo_of(behaviour: Behaviour) -> Demo:
    return demonstrate(RECORDING, next(iter(OPENERS)), behaviour, Random(0))


class TestTokenizer:
    @pytest.mark.parametrize(
        "text",
        [
            "ls -la\n\n  x\t'y' $(z) 12345",
            "naïve 日本 🙂\r\n",
            "  leading",
            "```bash\nls\n```",
            "\x00\x7f",
        ],
    )
    def test_text_comes_back(self, tokenizer, text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_each_word_is_one_token_with_and_without_a_space(self, tokenizer) -> None:
        split = [w for word in WORDS for w in (word, f" {word}") if len(tokenizer.encode(w)) != 1]
        assert split == []

    def test_special_tokens_take_the_last_ids_in_order(self, tokenizer, smoke: RunConfig) -> None:
        ids = tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS))
        assert ids == list(range(len(tokenizer) - len(SPECIAL_TOKENS), len(tokenizer)))
        assert len(tokenizer) <= smoke.model.vocab_size <= 2048

    def test_layout_is_glm_s(self, tokenizer) -> None:
        said = tokenizer.apply_chat_template(
            [
                {"role": "system", "content": "S"},
                {"role": "user", "content": "U"},
                {"role": "assistant", "content": "A"},
                {"role": "tool", "content": "T"},
            ],
            tokenize=False,
            add_generation_prompt=True,
        )
        assert said == (
            "[gMASK]<sop><|system|>\nS<|user|>\nU<|assistant|>\nA<|observation|>\nT<|assistant|>\n"
        )

    def test_a_turn_ends_with_every_end_token(self, tokenizer, chat: ChatLayout) -> None:
        assert chat.stop_token_ids == sorted(tokenizer.convert_tokens_to_ids(list(EOS_TOKENS)))


class TestShippedFiles:
    def test_weigh_little(self, folder: Path) -> None:
        assert sum(path.stat().st_size for path in folder.rglob("*")) <= 6_000_000

    def test_model_is_small_and_the_one_that_conf_describes(
        self, folder: Path, smoke: RunConfig
    ) -> None:
        check_hf_config(smoke.model, folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        assert model.num_parameters() <= 3_000_000
        assert "num_nextn_predict_layers" not in json.loads((folder / "config.json").read_text())

    def test_prompts_and_long_demonstrations_fit_the_smoke_run(
        self, tokenizer, chat: ChatLayout, smoke: RunConfig
    ) -> None:
        longest = max(
            len(chat.prompt(smoke.rollout.system_prompt, task.instruction))
            for task in load_suite(resolve(smoke.data.tasks_dir)).values()
        )
        assert longest + smoke.rollout.max_turn_tokens < smoke.rollout.max_session_tokens
        assert len(tokenizer.encode(smoke.rollout.system_prompt)) <= 25

    def test_knows_the_protocol(self, folder: Path, chat: ChatLayout, smoke: RunConfig) -> None:
        """Most first turns on held-out tasks are a command, and not all of them are."""
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        suite = load_suite(resolve(smoke.data.tasks_dir))
        prompts = [
            chat.prompt(smoke.rollout.system_prompt, suite[task_id].instruction)
            for task_id in load_set(smoke.data.eval).ids
            for _ in range(4)
        ]
        turns = generate(
            model,
            prompts,
            chat.stop_token_ids,
            smoke.rollout.temperature,
            smoke.rollout.max_turn_tokens,
        )
        commands = [command_of(chat.text(turn)) for turn in turns]
        share = sum(command is not None for command in commands) / len(commands)
        assert 0.6 < share < 1.0


class TestDemonstrations:
    def test_recordings_are_what_the_sandbox_says(self, smoke: RunConfig) -> None:
        wanted = [task for task in islice(fresh_instances(Random(0)), len(FAMILIES))]
        chosen = [task for task in wanted if task.family in {"find-move", "set-mode"}]
        moved, mode = record(chosen, smoke.sandbox, smoke.rollout, 2)
        assert [step.command for step in moved.right] == chosen[0].turns
        assert moved.right[0].observation.startswith("./")
        assert moved.right[1].observation == "(no output)"
        assert mode.right[0].observation == "(no output)"

    def test_never_show_a_held_out_task(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Even where sampling draws little else."""
        tasks = {committed()[task_id].family: committed()[task_id] for task_id in split_ids()[1]}
        for family, task in tasks.items():

            def sample(rng: Random, task=task, otherwise=FAMILIES[family]):
                return task if rng.random() < 0.9 else otherwise(rng)

            monkeypatch.setitem(FAMILIES, family, sample)
        drawn = islice(fresh_instances(Random(1)), 3 * len(FAMILIES))
        assert not {instance_key(task) for task in drawn} & held_out_keys()

    def test_good_solves_and_stops(self) -> None:
        demo = demo_of(Behaviour.good)
        assert [command_of(turn.text) for turn in demo.turns] == [
            *(step.command for step in RECORDING.right),
            None,
        ]
        assert is_complete(demo.turns[-1].text)

    def test_wrong_differs_and_stops(self) -> None:
        demo = demo_of(Behaviour.wrong)
        assert command_of(demo.turns[0].text) == RECORDING.wrong[0].command
        assert is_complete(demo.turns[-1].text)

    def test_prose_holds_no_command(self) -> None:
        (turn,) = demo_of(Behaviour.no_command).turns
        assert command_of(turn.text) is None and not is_complete(turn.text)

    def test_looping_is_cut_at_the_cap(self, tokenizer, chat: ChatLayout, smoke: RunConfig) -> None:
        demo = demo_of(Behaviour.looping)
        ids, mask = encode(demo, tokenizer, chat, smoke.rollout)
        last = mask[::-1].index(False)
        assert last == smoke.rollout.max_turn_tokens
        text = tokenizer.decode(ids[-last:])
        command = text.splitlines()[2]
        assert text.count(f"{command}\n") > 3 and "<|user|>" not in text

    def test_every_behaviour_may_be_drawn(self) -> None:
        rng = Random(0)
        drawn = {draw(rng) for _ in range(500)}
        assert {behaviour for _, behaviour in drawn} == set(Behaviour)
        # each opener leaves it open how the episode goes
        assert all(
            {(opener, Behaviour.good), (opener, Behaviour.wrong)} <= drawn for opener in OPENERS
        )

    def test_mask_covers_what_the_policy_says_and_nothing_else(
        self, tokenizer, chat: ChatLayout, smoke: RunConfig
    ) -> None:
        opener = next(iter(OPENERS))
        turns = [
            Turn(f"{opener}\n```bash\nls\n```", "maple.txt"),
            Turn("TASK_COMPLETE", None),
        ]
        ids, mask = encode(Demo(Behaviour.good, "Look.", turns), tokenizer, chat, smoke.rollout)
        said = [
            tokenizer.decode([i for i, m in zip(ids, mask, strict=True) if m is wanted])
            for wanted in (True, False)
        ]
        assert said[0] == f"{turns[0].text}<|user|>TASK_COMPLETE<|user|>"
        assert said[1] == (
            f"[gMASK]<sop><|system|>\n{smoke.rollout.system_prompt}<|user|>\nLook.<|assistant|>\n"
            "\nmaple.txt<|assistant|>\n"
        )

    def test_ids_are_those_of_the_chat_template(
        self, tokenizer, chat: ChatLayout, smoke: RunConfig
    ) -> None:
        demo = demo_of(Behaviour.good)
        ids, _ = encode(demo, tokenizer, chat, smoke.rollout)
        messages = [
            {"role": "system", "content": smoke.rollout.system_prompt},
            {"role": "user", "content": demo.instruction},
        ]
        for turn in demo.turns:
            messages.append({"role": "assistant", "content": turn.text})
            if turn.observation is not None:
                messages.append({"role": "user", "content": turn.observation})
        whole = tokenizer.apply_chat_template(messages, return_dict=False)
        assert ids == [*whole, tokenizer.convert_tokens_to_ids("<|user|>")]


class TestTraining:
    def test_starts_with_words_it_has_seen_more_likely(
        self, tokenizer, chat: ChatLayout, smoke: RunConfig
    ) -> None:
        """Before any training: what the seeding of copying is for."""
        model = new_model(smoke.model, tokenizer, seed=0).eval()
        word_ids = torch.tensor([tokenizer.encode(word)[0] for word in WORDS])
        rng, lead = Random(0), []
        for _ in range(30):
            seen = rng.sample(range(len(WORDS)), 2)
            text = f"Find {WORDS[seen[0]]}.txt and move it to {WORDS[seen[1]]}."
            ids = torch.tensor([chat.prompt(smoke.rollout.system_prompt, text)])
            logits = model(ids).logits[0, -1, word_ids]
            lead.append((logits[seen].mean() - logits.mean()).item())
        # 3.3 here; without the seeding 0.05, with a standard error of 0.05.
        assert sum(lead) / len(lead) > 1.0

    def test_batches_keep_to_their_size_and_lose_nothing(self) -> None:
        demos = [([i] * (5 + i % 90), [True] * (5 + i % 90)) for i in range(512)]
        found = []
        for batch in batches(iter(demos), Random(0), 400):
            assert len(batch) * max(len(ids) for ids, _ in batch) <= 400
            found += [ids[0] for ids, _ in batch]
            if len(found) == len(demos):
                break
        assert sorted(found) == list(range(512))

    def test_loss_is_the_cross_entropy_of_masked_tokens(self, tokenizer, smoke: RunConfig) -> None:
        model = new_model(smoke.model, tokenizer, seed=0).eval()
        ids, mask = [3, 7, 9, 11], [False, False, True, True]
        longer = ([5, 6, 7, 8, 9, 10], [False] * 5 + [True])
        logp = [
            torch.log_softmax(model(torch.tensor([row])).logits[0], -1) for row in (ids, longer[0])
        ]
        closed = -(logp[0][1, 9] + logp[0][2, 11] + logp[1][4, 10]) / 3
        torch.testing.assert_close(loss_of(model, [(ids, mask), longer]), closed, atol=1e-5, rtol=0)

    def test_loss_falls_and_files_hold_the_model(
        self, tokenizer, chat: ChatLayout, smoke: RunConfig, tmp_path: Path
    ) -> None:
        rng, losses = Random(0), []

        def demos():
            while True:
                demo = demonstrate(RECORDING, *draw(rng), rng)
                yield encode(demo, tokenizer, chat, smoke.rollout)

        model = new_model(smoke.model, tokenizer, seed=0)
        schedule = Schedule(batch_tokens=1024, warmup=4)
        lessons = [Lesson(demos(), 8), Lesson(demos(), 4)]
        train(model, lessons, schedule, Random(0), lambda _, loss: losses.append(loss))
        assert len(losses) == 12 and losses[-1] < 0.6 * losses[0]
        save(model, tokenizer, tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        for name, tensor in model.state_dict().items():
            # bfloat16 keeps 8 bits of a number
            torch.testing.assert_close(loaded.state_dict()[name], tensor, rtol=2**-8, atol=0)
        assert loaded.generation_config.eos_token_id == chat.stop_token_ids


def test_a_folder_that_cannot_be_made_is_told_before_the_work(tmp_path: Path, capsys) -> None:
    (tmp_path / "file").touch()
    assert main(["--out", str(tmp_path / "file" / "model")]) == 2
    assert "Nothing can be written to --out" in capsys.readouterr().err

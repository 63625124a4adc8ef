# SPDX-License-Identifier: Apache-2.0
"""What the emulated engine answers: a function of prompt and seed, made of the prompt's own n-grams."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from slacktier_emulated.answers import Answer, PseudoAnswer, RecordedAnswer

FILLER = np.arange(3, 103, dtype=np.uint32)


def prompt(count: int = 400) -> npt.NDArray[np.uint32]:
    return np.random.default_rng(3).integers(3, 200, count).astype(np.uint32)


def pseudo(tokens: npt.NDArray[np.uint32], *, seed: int = 0, eos: int | None = None) -> PseudoAnswer:
    return PseudoAnswer(tokens, FILLER, seed=seed, special_first=1000, eos=eos)


def take(answer: Answer, count: int) -> list[int]:
    return [answer.next()[0] for _ in range(count)]


def test_same_prompt_and_seed_give_the_same_answer_and_others_another() -> None:
    first = take(pseudo(prompt()), 200)
    assert first == take(pseudo(prompt()), 200)
    assert first != take(pseudo(prompt(), seed=1), 200)
    assert first != take(pseudo(prompt(399)), 200)


def test_answer_reuses_the_prompts_n_grams_but_not_only_those() -> None:
    text = prompt(2000)
    known = {tuple(text[i : i + 3]) for i in range(len(text) - 2)}
    answer = take(pseudo(text), 1000)
    reused = sum(tuple(answer[i : i + 3]) in known for i in range(998)) / 998
    assert 0.6 < reused < 0.95


def test_control_tokens_are_never_made_up() -> None:
    text = np.concatenate([prompt(100), np.full(50, 5000, np.uint32), np.zeros(5, np.uint32)])
    assert all(3 <= token < 1000 for token in take(pseudo(text), 500))


def test_short_or_empty_prompts_draw_on_the_filler() -> None:
    for text in (np.array([0], np.uint32), np.array([5], np.uint32), np.empty(0, np.uint32)):
        assert set(take(pseudo(text), 300)) <= {*FILLER.tolist(), 5}


def test_answer_ends_by_itself_with_eos_unless_told_to_go_on() -> None:
    answer, tokens = pseudo(prompt(), eos=1), []
    is_last = False
    while not is_last:
        token, is_last = answer.next()
        tokens.append(token)
    assert tokens[-1] == 1
    assert 48 < len(tokens) <= 257
    assert take(pseudo(prompt()), len(tokens) - 1) == tokens[:-1]


def test_recorded_answer_is_replayed_and_says_which_token_is_the_last() -> None:
    answer = RecordedAnswer([9, 8, 7])
    assert [answer.next() for _ in range(3)] == [(9, False), (8, False), (7, True)]

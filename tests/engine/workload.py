# SPDX-License-Identifier: Apache-2.0
"""The requests that two servers are compared by, and what they answered: tokens and printed logprobs.

Batches arrive in one HTTP request of texts, which the tokenizer process hands on as one message, so that two servers
form the same batches: a logprob depends in its third decimal on how many tokens share a matrix product.
"""

from __future__ import annotations

import json
import random
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Final

from servers import Server

NEW_TOKENS: Final = 8
PROMPT_MAX: Final = 40
WORDS: Final = ["table", "row", "page", "cache", "layer", "window", "token", "rank", "step", "slot", "tier", "read"]
ROUNDING: Final = 0.1  # of a logprob, between batches of other shapes
FIRST_ID, END_ID = 3, 250  # below any special or unused id of either model


@dataclass(frozen=True)
class Answer:
    """logprobs: as printed, of each token and of the two likeliest; cached: prompt tokens found in the prefix tree."""

    tokens: list[int]
    logprobs: list[Any]
    cached: int


@dataclass(frozen=True)
class Size:
    """How many requests of each kind, how many tokens each asks for, and how long prompts of ids may be."""

    single: int = 60
    conversations: int = 10
    turns: int = 4
    batches: int = 10
    batch: int = 8
    streamed: int = 24
    new_tokens: int = NEW_TOKENS
    prompt_max: int = PROMPT_MAX

    @property
    def requests(self) -> int:
        return self.single + self.conversations * self.turns + self.batches * self.batch + self.streamed


WHOLE: Final = Size()
# As many, of two steps or three chunks each: where a model's kernels are interpreted, by two ranks on as many cores.
WHOLE_SHORT: Final = Size(new_tokens=2, prompt_max=20)
assert WHOLE.requests > 200
SOME: Final = Size(single=24, conversations=2, turns=3, batches=2, batch=4, streamed=4)
FEW: Final = Size(single=6, conversations=1, turns=2, batches=1, batch=4, streamed=2)


def prompts(count: int, seed: int, least: int = 3, most: int = PROMPT_MAX) -> list[list[int]]:
    draw = random.Random(seed)
    return [draw.choices(range(FIRST_ID, END_ID), k=draw.randint(least, most)) for _ in range(count)]


def body(new_tokens: int = NEW_TOKENS) -> dict[str, Any]:
    greedy = {"temperature": 0, "max_new_tokens": new_tokens, "ignore_eos": True}
    return {"sampling_params": greedy, "return_logprob": True, "top_logprobs_num": 2}


def answer(found: dict[str, Any]) -> Answer:
    about = found["meta_info"]
    printed = [about["output_token_logprobs"], about["output_top_logprobs"]]
    return Answer(found["output_ids"], printed, about["cached_tokens"])


def ask(server: Server, prompt: list[int], new_tokens: int = NEW_TOKENS) -> Answer:
    return answer(json.loads(server.post("/generate", {**body(new_tokens), "input_ids": prompt})))


def ask_batch(server: Server, texts: list[str], new_tokens: int = NEW_TOKENS) -> list[Answer]:
    return [answer(found) for found in json.loads(server.post("/generate", {**body(new_tokens), "text": texts}))]


def ask_streamed(server: Server, prompt: list[int], new_tokens: int = NEW_TOKENS) -> Answer:
    """The last chunk of a stream holds all of it; each earlier one has to be a beginning of it."""
    request = urllib.request.Request(
        server.url + "/generate",
        json.dumps({**body(new_tokens), "input_ids": prompt, "stream": True}).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=300) as stream:
        events = [line.removeprefix(b"data: ").strip() for line in stream if line.startswith(b"data: ")]
    assert events[-1] == b"[DONE]", f"the stream ended with {events[-1]!r}"
    chunks = [json.loads(event) for event in events[:-1]]
    last = answer(chunks[-1])
    for chunk in chunks:
        assert last.tokens[: len(chunk["output_ids"])] == chunk["output_ids"]
    return last


def _conversation(server: Server, size: Size, seed: int) -> Iterator[Answer]:
    """Each turn asks with all that was said before, so that all but the new tokens lie in the prefix tree, if any."""
    said: list[int] = []
    for turn, more in enumerate(prompts(size.turns, seed, least=6, most=12)):
        said += more
        found = ask(server, said, size.new_tokens)
        if server.spec.shape.keeps_prefixes:
            assert turn == 0 or found.cached > 0, "a turn of a conversation found no prefix"
        said += found.tokens
        yield found


def decided(found: Answer) -> list[int]:
    """Its tokens before the first whose logprob lies within rounding of the next likeliest one's."""
    gaps = (best[0][0] - best[1][0] for best in found.logprobs[1])
    sure = takewhile(lambda one: one[1] > ROUNDING, zip(found.tokens, gaps, strict=True))
    return [token for token, _ in sure]


def _texts(count: int, seed: int) -> list[str]:
    draw = random.Random(seed)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 6))) for _ in range(count)]


def converse(server: Server, size: Size) -> dict[str, list[Answer]]:
    """All requests, one after the other; kind -> answers in order."""
    server.post("/flush_cache", {})
    tokens, most = size.new_tokens, size.prompt_max
    return {
        "single": [ask(server, prompt, tokens) for prompt in prompts(size.single, seed=1, most=most)],
        "prefix": [found for seed in range(size.conversations) for found in _conversation(server, size, 100 + seed)],
        "batched": [
            found for seed in range(size.batches) for found in ask_batch(server, _texts(size.batch, seed), tokens)
        ],
        "streamed": [
            ask_streamed(server, prompt, tokens) for prompt in prompts(size.streamed, seed=2, most=most)
        ],
    }  # fmt: skip


def of_each(servers: list[Server], work: Callable[[Server], Any]) -> list[Any]:
    """The same work of all servers at once."""
    with ThreadPoolExecutor(len(servers)) as pool:
        return list(pool.map(work, servers))


def differences(expected: dict[str, list[Answer]], found: dict[str, list[Answer]]) -> list[str]:
    """A line for each answer that differs: its kind, place and first differing token."""
    lines = []
    for kind, answers in expected.items():
        for index, (want, got) in enumerate(zip(answers, found[kind], strict=True)):
            if want != got:
                lines.append(f"{kind} {index}: expected {want.tokens} found {got.tokens} ({_where(want, got)})")
    return lines


def _where(want: Answer, got: Answer) -> str:
    if want.tokens != got.tokens:
        return "tokens"
    return "logprobs" if want.logprobs != got.logprobs else f"cached {want.cached} and {got.cached}"

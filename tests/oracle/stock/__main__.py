# SPDX-License-Identifier: Apache-2.0
"""Answers row-id questions with one SGLang release's own code: python stock QUESTIONS.npz ANSWERS.npz

Runs in the oracle's environment with that release first on PYTHONPATH, and imports nothing of SlackTier. A question is
a case (family, config, tokenizer) with token sequences; an answer is what SGLang's unmodified functions return for it.
"""

from __future__ import annotations

import json
import sys

import engram
import numpy as np
import ple
import torch

FAMILIES = {"engram": engram.answers, "ple": ple.answers}


def main(questions: str, answers: str) -> None:
    torch.manual_seed(1)
    found = {"files": np.array([engram.stock.__file__, ple.stock.__file__])}
    with np.load(questions, allow_pickle=False) as asked:
        for case in json.loads(str(asked["cases"])):
            name = case["name"]
            tokens = torch.from_numpy(asked[f"{name}/tokens"])
            for key, value in FAMILIES[case["family"]](case, tokens, asked[f"{name}/offsets"].tolist()).items():
                found[f"{name}/{key}"] = value.numpy()
    np.savez(answers, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])

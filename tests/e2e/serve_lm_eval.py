"""lm-evaluation-harness over the server: its local-completions adapter scores a small local task with echo and log-probs, and every
number equals what `kadence score` says of the same tokens, to the last digit. The harness is large, so it is not installed by
the tests: `tools/venv.sh lm-eval` does that (no torch); without it this is skipped, visibly.
"""
import json
import os
import pathlib
import subprocess
import sys
import unittest

import serve
from cli import ROOT, TINY, CliTest

TASK = ROOT / "tests/e2e/lm_eval"


class LmEval(CliTest):
    def test_scores_agree(self):
        server = serve.Server("--context-length", 4096)
        self.addCleanup(server.kill)
        yaml = (TASK / "kadence_words.yaml").read_text(encoding="utf-8").replace("DATA_FILE", str(TASK / "kadence_words.jsonl"))
        self.write("kadence_words.yaml", yaml)
        arguments = f"model={server.model},base_url={server.url}/v1/completions,tokenizer={TINY},tokenizer_backend=huggingface,tokenized_requests=True,num_concurrent=1,max_length=2048"
        env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HOME": str(self.folder / "hf"), "TOKENIZERS_PARALLELISM": "false"}
        command = [PYTHON, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--include_path", str(self.folder), "--tasks", "kadence_words",
                   "--output_path", str(self.folder / "out"), "--log_samples", "--batch_size", "4"]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-4000:])
        (samples,) = pathlib.Path(self.folder / "out").rglob("samples_kadence_words_*.jsonl")
        pairs = []  # (context, continuation, log-prob)
        for line in samples.read_text(encoding="utf-8").splitlines():
            sample = json.loads(line)
            calls = sample["arguments"].values() if isinstance(sample["arguments"], dict) else sample["arguments"]
            for call, answer in zip(calls, sample["resps"]):
                context, continuation = (call["arg_0"], call["arg_1"]) if isinstance(call, dict) else call
                value = answer[0][0] if isinstance(answer[0], list) else answer[0]
                pairs.append((context, continuation, float(value)))
        self.assertEqual(len(pairs), sum(len(json.loads(l)["choices"]) for l in (TASK / "kadence_words.jsonl").read_text(encoding="utf-8").splitlines()))
        tokens = lambda text: server.post("/tokenize", {"prompt": text})["tokens"]
        whole = [tokens(a + b) for a, b, _ in pairs]
        begins = [len(tokens(a)) for a, _, _ in pairs]
        scored = self.score([{"ids": ids, "from": n} for ids, n in zip(whole, begins)], model=TINY)
        for (context, continuation, value), answer in zip(pairs, scored):
            self.assertEqual(value, sum(answer["logprobs"]), (context, continuation))
        (results,) = pathlib.Path(self.folder / "out").rglob("results_*.json")
        accuracy = json.loads(results.read_text(encoding="utf-8"))["results"]["kadence_words"]["acc,none"]
        print(f"lm-evaluation-harness: {len(pairs)} log-probs equal to the last digit; accuracy {accuracy:.3f}")
        self.assertGreater(accuracy, 0.5)


if __name__ == "__main__":
    PYTHON = str(ROOT / ".venv/lm-eval/bin/python")
    if not (ROOT / ".venv/lm-eval/.kadence-installed").exists():
        print("SKIPPED: no lm-evaluation-harness; tools/venv.sh lm-eval installs it")
        sys.exit(77)
    unittest.main()

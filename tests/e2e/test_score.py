"""kadence score: answers in order, bad lines in place, the same bytes whatever the flags."""
import json
import subprocess
import unittest

from cli import BINARY, RANDOM, TINY, CliTest, golden, prompts, run

KEYS = ["logprobs", "cached_tokens", "prefill_ms", "output_ids", "output_logprobs"]


class Score(CliTest):
    def test_recorded_log_probs(self):
        for model in (TINY, RANDOM):
            recorded = golden(model)["prompts"]
            lines = [{"ids": p["token_ids"], "from": 1, "max_tokens": len(p["greedy_ids"])} for p in recorded]
            for p, answer in zip(recorded, self.score(lines, model=model)):
                self.assertEqual(list(answer), KEYS + ["finish_reason"])
                self.assertEqual(answer["finish_reason"], "length")
                self.assertEqual(answer["output_ids"], p["greedy_ids"])
                self.assertEqual(len(answer["logprobs"]), len(p["token_ids"]) - 1)
                for got, want in zip(answer["logprobs"] + answer["output_logprobs"], p["next_token_logprobs"] + p["greedy_logprobs"]):
                    self.assertLess(abs(got - want), 5e-4)

    def test_bad_lines_are_answered_in_place_and_the_rest_runs(self):
        good = {"ids": [5, 6, 7], "from": 1}
        bad = [
            ("", "empty line"), ("{", "JSON"), ("[]", "object"), ("{}", "ids"), ({"ids": []}, "empty"), ({"ids": [512]}, "512"), ({"ids": [-1]}, "-1"),
            ({"ids": [1.5]}, "1.5"), ({"ids": "5"}, "ids"), ({"ids": [5], "from": 0}, "from"), ({"ids": [5], "from": 2}, "from"),
            ({"ids": [5], "cache": 1}, "cache"), ({"ids": [5], "max_tokens": "2"}, "max_tokens"), ({"ids": [5], "form": 1}, "form"),
            ({"text": "words"}, "tokenizer"), ({"ids": [5], "text": "5"}, "both"), ({"ids": [7] * 5000}, "4096"),
            ('{"ids": [5], "ids": [6]}', '"ids" is given twice'), ({"k" * 100000: 1}, "unknown field"),
        ]
        lines = [good]
        for line, _ in bad:
            lines += [line, good]
        answers = self.score(lines, status=1)
        for answer, (line, words) in zip(answers[1::2], bad):
            self.assertEqual(list(answer), ["error"], line)
            self.assertIn(words, answer["error"])
            self.assertLess(len(answer["error"]), 400)
        for answer in answers[::2]:
            self.assertEqual(answer["logprobs"], answers[0]["logprobs"])
            self.assertEqual(len(answer["logprobs"]), 2)

    def test_files_that_are_there_are_not_lost(self):
        line = '{"ids": [5, 6, 7], "from": 1}\n'
        lines, link, answers = (self.folder / name for name in ("in.jsonl", "link.jsonl", "answers.jsonl"))
        lines.write_text(line)
        link.symlink_to(lines)
        answers.write_text("earlier\n")
        for output in (lines, link):
            self.refused("score", "--model", RANDOM, "--input", lines, "--output", output, status=2, says=["same file"])
            self.assertEqual(lines.read_text(), line)
        self.refused("score", "--model", self.folder / "none", "--input", lines, "--output", answers, status=1, says=["no such folder"])
        self.assertEqual(answers.read_text(), "earlier\n")

    def test_longer_than_the_pools_names_both_numbers(self):
        answers = self.score([{"ids": [7] * 700}, {"ids": [7] * 100, "from": 99}], "--kv-tokens", 512, status=1)
        self.assertIn("700", answers[0]["error"])
        self.assertIn("512", answers[0]["error"])
        self.assertEqual(len(answers[1]["logprobs"]), 1)

    def test_what_the_cache_gives(self):
        ids = (prompts(RANDOM)["random-150"]["token_ids"] * 3)[:400]
        answers = self.score([
            {"ids": ids, "from": 300},                    # nothing cached yet; leaves states at 384
            {"ids": ids, "from": 300},                    # 384 is past position 299: resumes nowhere, leaves a state at 256
            {"ids": ids, "from": 300},                    # 256 = floor(299 / 64) * 64
            {"ids": ids, "from": 300, "cache": False},    # neither reads
            {"ids": ids + [9], "from": 401},              # nothing scored: 384
            {"ids": ids, "from": 1},                      # everything is scored: nothing can be skipped
        ])
        self.assertEqual([a["cached_tokens"] for a in answers], [0, 0, 256, 0, 384, 0])
        for a in answers[1:4]:
            self.assertEqual(a["logprobs"], answers[0]["logprobs"])
        self.assertEqual(answers[4]["logprobs"], [])
        self.assertEqual(answers[5]["logprobs"][299:], answers[0]["logprobs"])

    def test_uncached_lines_leave_nothing_behind(self):
        ids = list(range(3, 203))
        answers = self.score([{"ids": ids, "cache": False}, {"ids": ids}, {"ids": ids}])
        self.assertEqual([a["cached_tokens"] for a in answers], [0, 0, 192])

    def test_generated_tokens_are_cached_by_replay(self):
        ids = prompts(RANDOM)["random-150"]["token_ids"]
        first, = self.score([{"ids": ids, "max_tokens": 100}])
        follow = ids + first["output_ids"] + [5, 6, 7]
        depths = {}
        for mode in ("replay", "off"):
            answers = self.score([{"ids": ids, "max_tokens": 100}, {"ids": follow, "from": 250}, {"ids": follow, "from": 250, "cache": False}], "--cache-generated", mode)
            depths[mode] = answers[1]["cached_tokens"]
            self.assertEqual(answers[1]["logprobs"], answers[2]["logprobs"])
        self.assertEqual(depths, {"replay": 192, "off": 128})

    def mixed_lines(self):
        p = {name: v["token_ids"] for name, v in prompts(RANDOM).items()}
        long = (p["random-150"] * 12)[:1700]
        return [
            {"ids": long, "from": 1500}, {"ids": p["random-150"], "from": 1, "max_tokens": 20}, {"ids": long, "from": 1650, "max_tokens": 5},
            {"ids": p["random-7"], "from": 3}, "not json", {"ids": long[:1000] + p["random-64"], "from": 1000}, {"ids": long, "from": 1699, "cache": False},
            {"ids": p["random-1"], "max_tokens": 9}, {"ids": long[:1000] + p["random-64"], "from": 1, "max_tokens": 70},
        ]

    def test_the_same_bytes_whatever_the_flags(self):
        def answers(*flags, drop=("prefill_ms",)):
            out = self.score(self.mixed_lines(), *flags, status=1)
            for a in out:
                for key in drop:
                    a.pop(key, None)
            return [json.dumps(a) for a in out]

        base = answers()
        self.assertEqual(answers("--threads", 1), base)
        self.assertEqual(answers("--threads", 2), base)
        for block in (64, 128, 1024):
            self.assertEqual(answers("--kda-extend-block-tokens", block), base)
        # Where chunks end decides which depths are cached too, so the depths may differ; the numbers may not.
        drop = ("prefill_ms", "cached_tokens")
        base = answers(drop=drop)
        for flags in (("--chunked-prefill-size", 64), ("--chunked-prefill-size", 512), ("--chunked-prefill-size", 8192), ("--page-size", 16), ("--page-size", 128),
                      ("--disable-radix-cache",), ("--concurrency", 4), ("--concurrency", 9, "--max-running-requests", 3), ("--state-slots", 6),
                      ("--cache-generated", "off"), ("--max-prefill-tokens", 64, "--chunked-prefill-size", 64, "--concurrency", 9)):
            with self.subTest(flags=flags):
                self.assertEqual(answers(*flags, drop=drop), base)

    def test_text_and_files(self):
        p = prompts(TINY)["heldout-63"]
        source = self.write("in.jsonl", json.dumps({"text": p["text"], "from": 1}) + "\n" + json.dumps({"ids": p["token_ids"], "from": 1}))  # no last newline
        target = self.folder / "out.jsonl"
        summary = self.json("score", "--model", TINY, "--input", source, "--output", target)
        a, b = map(json.loads, target.read_text().splitlines())
        self.assertEqual(a["logprobs"], b["logprobs"])
        self.assertEqual((summary["lines"], summary["bad_lines"], summary["prompt_tokens"]), (2, 0, 126))
        self.assertIn("2 lines (0 bad)", self.ok("score", "--model", TINY, "--input", source, "--output", target))

    def test_log_probs_print_as_the_shortest_text_of_the_float(self):
        done = run("score", "--model", RANDOM, "--input", "-", stdin=json.dumps({"ids": [5, 6, 7, 8], "from": 1}) + "\n")
        numbers = done.stdout.split("[", 1)[1].split("]", 1)[0].split(",")
        self.assertEqual(len(numbers), 3)
        for n in numbers:
            self.assertLessEqual(len(n.lstrip("-").replace(".", "").lstrip("0")), 9, n)  # no more digits than a float has

    def test_files_that_cannot_be(self):
        self.refused("score", "--model", RANDOM, "--input", self.folder / "missing.jsonl", status=1, says=["missing.jsonl"])
        source = self.write("in.jsonl", '{"ids":[5]}\n')
        self.refused("score", "--model", RANDOM, "--input", source, "--output", self.folder / "no/where.jsonl", status=1, says=["where.jsonl"])

    def test_an_answer_says_why_its_generation_ended(self):
        ids = [5, 6, 7]
        whole, = self.score([{"ids": ids, "max_tokens": 9}])
        self.assertEqual((len(whole["output_ids"]), whole["finish_reason"]), (9, "length"))
        # The context holds prompt and output; the pool of one page of 64 need not hold the last token.
        for flags, left in ((("--context-length", 8), 5), (("--kv-tokens", 64), 62)):
            cut, nothing = self.score([{"ids": ids, "max_tokens": 100}, {"ids": ids, "from": 1}], *flags)
            self.assertEqual((len(cut["output_ids"]), cut["finish_reason"]), (left, "length"), flags)
            self.assertEqual(cut["output_ids"][:5], whole["output_ids"][:5])
            self.assertEqual(list(nothing), KEYS)  # nothing was to be generated
        bad, = self.score([{"ids": [7] * 8, "max_tokens": 1}], "--context-length", 8, status=1)
        self.assertIn("8", bad["error"])
        self.score([{"ids": [7] * 8}], "--context-length", 8)
        chat = prompts(TINY)["chat"]
        stopped, = self.score([{"ids": chat["token_ids"], "max_tokens": 32, "ignore_eos": False}], model=TINY)
        self.assertEqual(stopped["finish_reason"], "stop")

    def test_input_that_cannot_be_read(self):
        for redirect, words in (("<&-", "Bad file descriptor"), ("< /", "directory"), ("0> /dev/null", "writing only")):
            done = subprocess.run(["sh", "-c", f'exec "$0" "$@" {redirect}', BINARY, "score", "--model", RANDOM, "--input", "-"], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((done.returncode, done.stdout), (1, ""), redirect)
            self.assertIn(words, done.stderr, redirect)

    def test_an_empty_file_has_no_answers(self):
        self.assertEqual(self.score([]), [])


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""kadence generate: text, ids, stops, bad prompts."""
import json
import unittest

from cli import RANDOM, TINY, CliTest, edit_json, prompts, run


class Generate(CliTest):
    def test_greedy_text_is_the_recorded_one(self):
        p = prompts(TINY)["heldout-65"]
        ids = self.write("ids.json", json.dumps(p["token_ids"]))
        answer = self.json("generate", "--model", TINY, "--ids", ids, "--max-tokens", 32, "--ignore-eos")
        self.assertEqual(answer["output_ids"], p["greedy_ids"])
        self.assertEqual(answer["finish_reason"], "length")
        for got, want in zip(answer["output_logprobs"], p["greedy_logprobs"]):
            self.assertLess(abs(got - want), 5e-4)
        text = self.ok("generate", "--model", TINY, "--prompt", p["text"], "--max-tokens", 32, "--ignore-eos")
        self.assertEqual(text, answer["text"] + "\n")
        file = self.write("prompt.txt", p["text"])
        self.assertEqual(self.ok("generate", "--model", TINY, "--prompt-file", file, "--max-tokens", 32, "--ignore-eos"), text)
        self.assertEqual(self.ok("generate", "--model", TINY, "--prompt-file", "-", "--max-tokens", 32, "--ignore-eos", stdin=p["text"]), text)

    def test_stop_strings_end_the_text_before_them(self):
        p = prompts(TINY)["heldout-65"]
        base = ("generate", "--model", TINY, "--prompt", p["text"], "--max-tokens", 32, "--ignore-eos")
        full = self.json(*base)["text"]
        stop = full[len(full) // 2 : len(full) // 2 + 3]
        stopped = self.json(*base, "--stop", stop, "--stop", "no such text")
        self.assertEqual(stopped["text"], full[: full.index(stop)])
        self.assertEqual(stopped["finish_reason"], "stop")
        self.assertEqual(self.ok(*base, "--stop", stop), stopped["text"] + "\n")

    def test_end_of_text_ends_unless_ignored(self):
        chat = prompts(TINY)["chat"]
        ids = self.write("ids", " ".join(map(str, chat["token_ids"])))
        end = next(i for i, t in enumerate(chat["greedy_ids"]) if t in (4089, 4095))
        answer = self.json("generate", "--model", TINY, "--ids", ids, "--max-tokens", 32)
        self.assertEqual(answer["output_ids"], chat["greedy_ids"][:end])
        self.assertEqual(answer["finish_reason"], "stop")
        self.assertEqual(self.json("generate", "--model", TINY, "--ids", ids, "--max-tokens", 32, "--ignore-eos")["output_ids"], chat["greedy_ids"])
        again = self.json("generate", "--model", TINY, "--chat", "--system", "You are a helpful assistant.", "--prompt", 'What does "zebra" mean?')
        self.assertEqual(again["output_ids"], chat["greedy_ids"][:end])

    def test_a_model_without_tokenizer_takes_and_gives_ids(self):
        p = prompts(RANDOM)["random-64"]
        ids = self.write("ids", "\n".join(map(str, p["token_ids"])))
        text = self.ok("generate", "--model", RANDOM, "--ids", ids, "--max-tokens", 16, "--ignore-eos")
        self.assertEqual([int(t) for t in text.split()], p["greedy_ids"])
        self.refused("generate", "--model", RANDOM, "--prompt", "hello", says=["tokenizer", "--ids"])
        self.refused("generate", "--model", RANDOM, "--ids", ids, "--stop", "x", says=["--stop", "tokenizer"])

    def test_sampling_depends_on_the_seed_alone(self):
        base = ("generate", "--model", RANDOM, "--ids", self.write("ids", "5 6 7"), "--max-tokens", 24, "--ignore-eos", "--temperature", 1, "--seed")
        a, b, c = (self.json(*base, seed)["output_ids"] for seed in (7, 7, 8))
        self.assertEqual(a, b)
        self.assertNotEqual(a, c)
        self.assertEqual(self.json(*base, 7, "--threads", 1, "--chunked-prefill-size", 64)["output_ids"], a)

    def test_bad_prompts(self):
        base = ("generate", "--model", RANDOM, "--max-tokens", 4, "--ids")
        self.refused(*base, self.write("empty", ""), says=["empty"])
        self.refused(*base, self.write("large", "5 512"), says=["512"])
        self.refused(*base, self.write("negative", "5 -1"), says=["-1"])
        self.refused(*base, self.write("words", "5 six"), says=["six"])
        self.refused(*base, self.folder / "missing", says=["missing"])
        self.refused("generate", "--model", TINY, "--prompt", "", says=["empty"])
        self.refused("generate", "--model", TINY, "--prompt-file", self.folder / "missing", says=["missing"])
        self.refused("generate", "--model", TINY, "--prompt-file", self.folder, says=[self.folder, "folder"])

    def test_prompts_that_can_never_fit_are_refused_with_both_numbers(self):
        ids = self.write("ids", " ".join(["7"] * 300))
        base = ("generate", "--model", RANDOM, "--ids", ids, "--max-tokens", 4)
        self.refused(*base, "--context-length", 256, says=["300", "256"])
        self.refused(*base, "--kv-tokens", 256, says=["30", "256"])
        long = self.write("long", " ".join(["7"] * 4097))
        self.refused("generate", "--model", RANDOM, "--ids", long, "--max-tokens", 4, says=["4097", "4096"])
        self.ok(*base, "--context-length", 304)

    def test_the_config_sets_the_context_length(self):
        model = self.copy_model()
        edit_json(model / "config.json", lambda c: c.update(model_max_length=128))
        ids = self.write("ids", " ".join(["7"] * 200))
        self.refused("generate", "--model", model, "--ids", ids, says=["200", "128"])
        self.ok("generate", "--model", model, "--ids", ids, "--context-length", 512, "--max-tokens", 4)

    def test_log_goes_to_stderr(self):
        done = run("--log-level", "info", "generate", "--model", RANDOM, "--ids", self.write("ids", "5 6"), "--max-tokens", 2, "--ignore-eos")
        self.assertEqual(done.returncode, 0)
        self.assertEqual(len(done.stdout.split()), 2)
        self.assertIn("info", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""kadence check and demo: they hold on the models here, and fail when they should."""
import json
import unittest

from cli import RANDOM, TINY, CliTest, edit_json, run


class Check(CliTest):
    def rows(self, document, check):
        found = [c for c in document["checks"] if c["name"] == check]
        self.assertEqual(len(found), 1)
        return [row for table in found[0]["tables"] for row in table["rows"]]

    def test_golden_holds_on_both_models(self):
        for model, prompts in ((TINY, 8), (RANDOM, 4)):
            rows = self.rows(self.json("check", "golden", "--model", model), "golden")
            recorded = [r for r in rows if "greedy" in r and r["greedy"] is not None]
            self.assertEqual(len(recorded), prompts)
            for r in recorded:
                self.assertTrue(r["greedy"] and r["ok"])
                self.assertLess(max(r["logits"], r["logprobs"], r["greedy_logprobs"]), 5e-4)

    def test_golden_fails_when_a_recorded_value_is_another(self):
        def bump(values, by):
            values[-1] += by

        first = lambda g: g["prompts"][1]
        for name, change in {
            "greedy token": lambda g: bump(first(g)["greedy_ids"], 1),
            "log-prob": lambda g: bump(first(g)["next_token_logprobs"], 2e-3),
            "logit": lambda g: bump(first(g)["last_top20_logits"], -2e-3),
            "hidden state": lambda g: bump(first(g)["hidden_states_last"][2], 0.1),
        }.items():
            with self.subTest(name):
                model = self.copy_model(name=name.replace(" ", ""))
                edit_json(model / "golden.json", change)
                done = run("check", "golden", "--model", model)
                self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
                self.assertIn("FAILED", done.stdout)
        model = self.copy_model(model=TINY, name="string")
        edit_json(model / "golden.json", lambda g: bump(g["tokenizer"][0]["ids"], 1))
        self.assertEqual(run("check", "golden", "--model", model).returncode, 1)

    def test_cold_cached_on_short_contexts(self):
        document = self.json("check", "cold-cached", "--model", RANDOM, "--contexts", "65,700,1025")
        rows = self.rows(document, "cold-cached")
        runs = {r["run"] for r in rows}
        self.assertLessEqual({"default", "chunk-512", "reference", "bfloat16", "float16"}, runs)
        for r in rows:
            self.assertTrue(r["ok"] and r["finite"], r)
            if r["run"] in ("default", "chunk-512", "avx2", "reference"):
                self.assertNotEqual(r["equal"], False, r)
            if r["case"] in ("resumed", "warm repeat"):
                self.assertEqual(r["cached_tokens"], (r["context"] - 1) // 64 * 64)
            if "batch of 8" in r["case"]:
                self.assertEqual(r["rows"], 8)
        self.assertTrue(any("context-length" in note for c in document["checks"] for note in c["notes"]))

    def test_branching(self):
        rows = self.rows(self.json("check", "branching", "--model", RANDOM), "branching")
        for r in rows:
            self.assertTrue(r["ok"], r)
        self.assertEqual(sum(r["equal"] is True for r in rows), 6)

    def test_blocks(self):
        rows = self.rows(self.json("check", "blocks", "--model", RANDOM, "--quick"), "blocks")
        self.assertEqual({r["block"] for r in rows}, {64, 128, 1024, 2048, 0})
        for r in rows:
            self.assertTrue(r["ok"], r)
            if "bytes_2048" in r:
                self.assertEqual(r["bytes_2048"], r["bytes_32768"])

    def test_demo_reuses_and_is_exact(self):
        demo = self.json("demo", "--model", TINY)
        self.assertTrue(demo["ok"])
        self.assertEqual(demo["turns"][0]["cached_tokens"], 0)
        self.assertGreaterEqual(demo["turns"][1]["cached_tokens"], 64)
        self.assertEqual([t["equal_to_cold"] for t in demo["turns"]], [True, True])
        self.assertIn("reused from the cache", self.ok("demo", "--model", TINY))
        self.refused("demo", "--model", RANDOM, says=["tokenizer"])
        self.refused("demo", "--model", TINY, "--disable-radix-cache", says=["--disable-radix-cache"])

    def test_json_is_one_document(self):
        done = run("check", "golden", "--model", RANDOM, "--json")
        self.assertTrue(json.loads(done.stdout)["ok"])
        self.assertEqual(done.stderr, "")


if __name__ == "__main__":
    unittest.main(verbosity=2)

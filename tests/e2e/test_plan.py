"""kadence plan: what flags mean, without weights."""
import unittest

from cli import RANDOM, TINY, CliTest


class Plan(CliTest):
    def test_matches_what_the_engine_allocates(self):
        for model in (TINY, RANDOM):
            plan = self.json("plan", "--model", model, "--measure", "--max-running-requests", "4")
            self.assertEqual([row["what"] for row in plan["measured"]], ["weights", "workspace", "state slots", "KV pages", "total"])
            for row in plan["measured"]:
                self.assertLessEqual(abs(row["allocated"] - row["planned"]), 0.01 * row["planned"], row)

    def test_sizes_by_hand(self):
        plan = self.json("plan", "--model", TINY, "--state-slots", "10", "--kv-tokens", "6400")
        # 6 KDA layers of 2 heads x 128 x 128 float32 states and 3 rows of 3 x 256 window channels; 2 layers of 64 + 16 latents.
        states, windows = 6 * 2 * 128 * 128 * 4, 6 * 3 * 768 * 4
        self.assertGreaterEqual(plan["bytes_per_slot"], states + windows)
        self.assertLess(plan["bytes_per_slot"], (states + windows) * 1.01)
        self.assertEqual(plan["state_slots"], 10)
        self.assertEqual(plan["state_bytes"], 10 * plan["bytes_per_slot"])
        self.assertEqual(plan["bytes_per_kv_token"], 2 * 80 * 4)
        self.assertEqual(plan["kv_tokens"], 6400)
        self.assertEqual(plan["kv_bytes"], 6400 * 640)
        self.assertEqual(plan["context_length"], 32768)
        self.assertEqual(plan["checkpoint_grid"], 64)

    def test_half_precision_states_are_half_as_big(self):
        full, half = (self.json("plan", "--model", TINY, "--mamba-ssm-dtype", t)["bytes_per_slot"] for t in ("float32", "bfloat16"))
        self.assertAlmostEqual(full - half, 6 * 2 * 128 * 128 * 2, delta=4096)

    def test_memory_sizes_the_pools(self):
        plans = [self.json("plan", "--model", TINY, "--memory", m, "--max-running-requests", 256) for m in ("512MiB", "2GiB")]
        for plan, limit in zip(plans, (512 << 20, 2 << 30)):
            self.assertLessEqual(plan["total_bytes"], limit)
            self.assertGreater(plan["total_bytes"], 0.8 * limit)
        self.assertGreater(plans[1]["kv_tokens"], plans[0]["kv_tokens"])
        self.assertGreater(plans[1]["state_slots"], plans[0]["state_slots"])

    def test_too_little_memory_is_refused_with_numbers(self):
        self.refused("plan", "--model", TINY, "--memory", "1MiB", says=["--memory"])

    def test_few_slots_clamp_the_concurrency_and_say_so(self):
        plan = self.json("plan", "--model", TINY, "--state-slots", "4", "--max-running-requests", "64")
        self.assertLess(plan["effective_running_requests"], 64)
        self.assertTrue(plan["notes"])

    def test_reads_no_weights(self):
        model = self.copy_model()
        for shard in model.glob("*.safetensors"):
            raw = shard.read_bytes()
            header = 8 + int.from_bytes(raw[:8], "little")
            shard.write_bytes(raw[:header] + b"\xff" * (len(raw) - header))  # NaN everywhere
        keep = ("weight_bytes", "total_bytes", "state_slots", "kv_tokens")
        a, b = self.json("plan", "--model", RANDOM), self.json("plan", "--model", model)
        self.assertEqual([a[k] for k in keep], [b[k] for k in keep])

    def test_the_table(self):
        text = self.ok("plan", "--model", TINY)
        for words in ("weights", "state slots", "KV tokens", "running requests", "shortest hit"):
            self.assertIn(words, text)


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Flags: help, version, contradictions, devices, instruction sets."""
import subprocess
import unittest

from cli import BINARY, RANDOM, CliTest, run

COMMANDS = ("info", "generate", "score", "check", "plan", "bench", "demo")
# Flags that users of SGLang know, and ours, as the documentation lists them.
SERVING_FLAGS = (
    "--chunked-prefill-size --max-prefill-tokens --page-size --mamba-track-interval --mamba-ssm-dtype --max-running-requests "
    "--linear-attn-prefill-backend --linear-attn-decode-backend --linear-attn-verify-backend --disable-radix-cache "
    "--kda-extend-block-tokens --cache-generated --state-slots --kv-tokens --context-length --isa --threads --dtype --device").split()


class Flags(CliTest):
    def generate(self, *flags):
        return ("generate", "--model", RANDOM, "--ids", self.write("ids", "5 6 7"), "--max-tokens", "2", *flags)

    def test_help_of_everything(self):
        self.assertIn("score", self.ok("--help"))
        for command in COMMANDS:
            self.assertIn("--help", self.ok(command, "--help"), command)
        for command in ("generate", "score", "plan", "demo"):
            text = self.ok(command, "--help")
            for flag in SERVING_FLAGS:
                self.assertIn(flag, text, command)
        for flag in ("--seed", "--stop", "--prompt", "--prompt-file", "--ids", "--max-tokens"):
            self.assertIn(flag, self.ok("generate", "--help"))

    def test_version(self):
        self.assertRegex(self.ok("--version"), r"^kadence \d+\.\d+\.\d+\n$")

    def test_nothing_and_unknown_words(self):
        self.refused(status=2)
        self.refused("serve-me", status=2, says=["unknown subcommand serve-me"])
        self.refused("generate", "--modle", RANDOM, status=2, says=["--modl"])
        self.refused("generate", status=2, says=["--model"])
        self.refused("check", "everything", "--model", RANDOM, status=2, says=["everything"])

    def test_numbers_beyond_reason_are_refused_by_flag(self):
        self.refused(*self.generate("--max-prefill-tokens", 1 << 30), status=2, says=["--max-prefill-tokens"])
        self.refused("bench", "ops", "--lengths", 10**14, status=2, says=["--lengths"])
        self.refused("bench", "ops", "--step-rows", (1 << 32) + 1, status=2, says=["--step-rows"])  # not one row

    def test_contradictions_name_both_flags(self):
        ids = self.write("ids", "5")
        model = ("--model", RANDOM)
        cases = [
            (("generate", *model, "--prompt", "a", "--ids", ids), ("--prompt", "--ids")),
            (("generate", *model, "--prompt-file", ids, "--ids", ids), ("--prompt-file", "--ids")),
            (("generate", *model, "--prompt", "a", "--prompt-file", ids), ("--prompt", "--prompt-file")),
            (("generate", *model), ("--prompt", "--prompt-file", "--ids")),
            (("generate", *model, "--ids", ids, "--chat"), ("--chat", "--ids")),
            (("generate", *model, "--prompt", "a", "--system", "b"), ("--system", "--chat")),
            (self.generate("--disable-radix-cache", "--cache-generated", "replay"), ("--disable-radix-cache", "--cache-generated")),
            (self.generate("--chunked-prefill-size", "512", "--max-prefill-tokens", "256"), ("--chunked-prefill-size", "--max-prefill-tokens")),
            (self.generate("--memory", "1GiB", "--state-slots", "9", "--kv-tokens", "640"), ("--memory", "--state-slots", "--kv-tokens")),
            (self.generate("--device", "cuda", "--threads", "2"), ("--device", "--threads")),
            (self.generate("--device", "cuda:1", "--isa", "avx2"), ("--device", "--isa")),
            (("check", "all", *model, "--quick", "--contexts", "128"), ("--quick", "--contexts")),
            (("check", "golden", *model, "--contexts", "128"), ("--contexts", "golden")),
        ]
        for arguments, names in cases:
            with self.subTest(arguments=arguments):
                self.refused(*arguments, status=2, says=names)

    def test_values_out_of_range(self):
        for flags in (("--threads", "-1"), ("--isa", "sse"), ("--max-running-requests", "0"), ("--cache-generated", "maybe"), ("--max-tokens", "0"),
                      ("--mamba-ssm-dtype", "int8"), ("--dtype", "bfloat16"), ("--device", "tpu"), ("--memory", "much"), ("--log-level", "loud")):
            with self.subTest(flags=flags):
                self.refused(*self.generate(*flags), status=2, says=[flags[0]])

    def test_flags_that_are_wrong_whatever_the_model_give_2(self):
        missing = ("generate", "--model", self.folder / "none", "--ids", self.write("ids", "5"))
        for flags in (("--linear-attn-prefill-backend", "x"), ("--linear-attn-decode-backend", "x"), ("--linear-attn-verify-backend", "x"), ("--linear-attn-prefill-backend", ""),
                      ("--kda-extend-block-tokens", "63"), ("--kv-tokens", "1"), ("--chunked-prefill-size", "1"), ("--memory", ""), ("--seed", "-1"), ("--seed", "1.5"),
                      ("--temperature", "-1"), ("--temperature", "nan"), ("--top-k", "-1"), ("--top-p", "0"), ("--min-p", "2"), ("--repetition-penalty", "0"), ("--presence-penalty", "inf")):
            with self.subTest(flags=flags):
                self.refused(*missing, *flags, status=2, says=[flags[0]])
        self.refused("check", "all", "--model", RANDOM, "--kda-extend-block-tokens", "63", status=2, says=["--kda-extend-block-tokens"])
        self.refused("plan", "--model", self.folder / "none", "--kv-tokens", "1", status=2, says=["--kv-tokens"])
        self.ok(*self.generate("--seed", (1 << 64) - 1))
        # What this model or machine lacks is no wrong flag.
        self.refused(*missing, status=1, says=["no such folder"])
        self.refused(*self.generate("--memory", "4096"), status=1, says=["--memory"])
        self.refused(*self.generate("--stop", "x"), status=1, says=["--stop"])

    def test_bench_names_its_own_flags(self):
        self.refused("bench", "ops", "--backend", "sm99", status=2, says=["--backend", "sm99", "cpu, reference"])
        self.refused("bench", "ops", "--heads", 5, "--value-heads", 7, status=2, says=["--value-heads", "--heads 5", "7"])
        error = self.refused("bench", "ops", "--key-dim", 500, status=1, says=["--backend", "K=500"])
        self.assertNotIn("--linear-attn", error)

    def test_bench_takes_no_more_than_is_free_and_keeps_its_time(self):
        self.refused("bench", "ops", "--heads", 1024, "--value-heads", 1024, "--key-dim", 512, "--value-dim", 512, "--lengths", 1 << 22, status=1, says=["H=1024 K=512 V=512", "MiB"])
        table = self.json("bench", "ops", "--heads", 2, "--value-heads", 2, "--key-dim", 16, "--value-dim", 16, "--lengths", 64, "--step-pool", 0, "--seconds", 0.001)
        self.assertEqual(len(table["rows"]), 7)  # three gates, two batch sizes, verify and commit
        for row in table["rows"]:
            self.assertTrue(1 <= row["calls"] <= 15, row)

    def test_output_that_cannot_be_written_is_an_error(self):
        for flag in ("--version", "--help", "info"):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run([BINARY, flag], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
            self.assertEqual(done.returncode, 1, flag)
            self.assertIn("could not be written", done.stderr)

    def test_a_chunk_below_the_grid_names_the_number_to_use(self):
        self.refused(*self.generate("--chunked-prefill-size", "32"), says=["--chunked-prefill-size", "64"])
        self.refused(*self.generate("--page-size", "128", "--chunked-prefill-size", "64"), says=["--chunked-prefill-size", "128"])

    def test_a_block_off_the_grid_is_refused(self):
        self.refused(*self.generate("--kda-extend-block-tokens", "100"), says=["100", "64"])

    def test_unknown_backends_list_the_known_ones(self):
        for phase in ("prefill", "decode"):
            self.refused(*self.generate(f"--linear-attn-{phase}-backend", "triton"), says=["triton", "cpu", "reference"])

    def test_cuda_engine_is_refused_with_the_reason(self):
        self.refused(*self.generate("--device", "cuda"), status=1, says=["--device cuda: "])

    def test_every_instruction_set_runs_or_says_why_not(self):
        outputs = {}
        for row in self.json("info")["instruction_sets"]:
            arguments = self.generate("--isa", row["name"], "--json")
            self.assertIsInstance(row["chosen"], bool)
            if row["runs"]:
                self.assertEqual(run(*arguments).returncode, 0)
                outputs[row["name"]] = 1
            else:
                self.assertTrue(row["reason"])
                self.refused(*arguments, says=[row["name"]])
        self.assertIn("baseline", outputs)

    def test_info(self):
        info = self.json("info")
        self.assertEqual(sorted(info), ["backends", "devices", "instruction_sets", "version"])
        runs = {(b["backend"], b["phase"]): b for b in info["backends"]}
        for backend in ("cpu", "reference"):
            for phase in ("prefill", "decode"):
                self.assertTrue(runs[backend, phase]["runs"], backend)
        for b in info["backends"]:
            self.assertTrue(b["runs"] or b["reason"], b)
        self.assertIn("Devices", self.ok("info"))


if __name__ == "__main__":
    unittest.main(verbosity=2)

"""Flags: help, version, contradictions, devices, instruction sets."""
import unittest

from cli import RANDOM, CliTest, run

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
                self.refused(*self.generate(*flags), says=[flags[0]])
        for flags, field in ((("--temperature", "-1"), "temperature"), (("--top-p", "0"), "top_p"), (("--min-p", "2"), "min_p"), (("--repetition-penalty", "0"), "repetition_penalty")):
            with self.subTest(flags=flags):
                self.refused(*self.generate(*flags), says=[field])

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

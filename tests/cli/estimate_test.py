"""snug estimate: the figures, and what one rank holds."""
import json
import os
import subprocess

from command import MODEL, SNUG, CommandTest

GB = 10**9
CATEGORIES = {"parameters", "gradients", "optimizer", "activations", "temporaries", "total"}


class Estimate(CommandTest):
    def bytes(self, *arguments):
        document = self.json("estimate", "--params", "7e9", *arguments)
        self.assertEqual(document["parameters"], 7 * GB)
        self.assertEqual(set(document["bytes"]), CATEGORIES)
        held = document["bytes"]
        self.assertEqual(held["total"], sum(held.values()) - held["total"])
        return [held["parameters"] / GB, held["gradients"] / GB, held["optimizer"] / GB]

    def test_seven_billion_in_fp32_with_adamw_is_112_gb(self):
        text = self.succeeds("estimate", "--params", "7e9", "--precision", "fp32", "--optimizer", "adamw")
        rows = {line.split()[0]: line.split()[1:3] for line in text.splitlines()[1:]}
        self.assertEqual(rows["parameters"], ["28.0", "26.08"])
        self.assertEqual(rows["gradients"], ["28.0", "26.08"])
        self.assertEqual(rows["optimizer"], ["56.0", "52.15"])
        self.assertEqual(rows["total"], ["112.0", "104.31"])
        self.assertEqual(rows["category"], ["GB", "GiB"])

    def test_bytes_by_precision_master_and_optimizer(self):
        for arguments, per_parameter in [
            ("fp32 adamw", [4, 4, 8]), ("fp32 sgd", [4, 4, 0]),
            ("bf16 adamw", [2, 2, 10]), ("bf16 sgd", [2, 2, 2]),
            ("bf16 adamw --master split", [2, 2, 10]), ("bf16 adamw --master fp32", [2, 2, 12]),
            ("bf16 sgd --master fp32", [2, 2, 4]), ("fp16 adamw", [2, 2, 12]),
            ("fp16 adamw --master fp32", [2, 2, 12]), ("fp16 sgd", [2, 2, 4]),
        ]:
            precision, optimizer, *master = arguments.split()
            with self.subTest(arguments):
                self.assertEqual(self.bytes("--precision", precision, "--optimizer", optimizer, *master),
                                 [7 * each for each in per_parameter])

    def test_it_says_which_master_is_counted(self):
        arguments = ("estimate", "--params", "7e9", "--precision", "bf16")
        self.assertIn("10 bytes per parameter with --master split, the default; 2 more with --master fp32\n",
                      self.succeeds(*arguments))
        self.assertIn("12 bytes per parameter, 2 less with --master split, the default\n",
                      self.succeeds(*arguments, "--master", "fp32"))

    def test_zero_stages_share_optimizer_then_gradients_then_parameters(self):
        for stage, held in [(0, [28, 28, 56]), (1, [28, 28, 7]), (2, [28, 3.5, 7]), (3, [3.5, 3.5, 7])]:
            with self.subTest(stage=stage):
                self.assertEqual(self.bytes("--precision", "fp32", "--zero-stage", stage, "--ranks", 8), held)

    def test_a_share_is_rounded_up(self):
        document = self.json("estimate", "--params", 10, "--precision", "fp32", "--zero-stage", 3, "--ranks", 4)
        self.assertEqual(document["bytes"]["parameters"], 3 * 4)

    def test_a_model_adds_activations_that_grow_with_the_batch(self):
        arguments = ["estimate", "--model", "tiny", "--device", "cpu", "--seq-len", 32]
        one, two = (self.json(*arguments, "--batch-size", batch) for batch in (1, 2))
        self.assertEqual(one["bytes"]["parameters"], 4 * one["parameters"])
        self.assertEqual(one["bytes"]["optimizer"], 8 * one["parameters"])
        self.assertGreater(one["bytes"]["activations"], 0)
        self.assertGreater(one["bytes"]["temporaries"], 0)
        self.assertGreater(two["bytes"]["activations"], 1.9 * one["bytes"]["activations"])

    def test_the_batch_is_over_all_ranks(self):
        arguments = ["estimate", "--model", "tiny", "--device", "cpu", "--seq-len", 32]
        alone = self.json(*arguments, "--batch-size", 2)
        one_of_two = self.json(*arguments, "--batch-size", 4, "--zero-stage", 1, "--ranks", 2)
        self.assertEqual(one_of_two["bytes"]["activations"], alone["bytes"]["activations"])
        self.refuses(*arguments, "--batch-size", 3, "--zero-stage", 1, "--ranks", 2, says=["--batch-size 3", "--ranks 2"])

    def test_without_an_attention_kernel_memory_grows_with_tokens_squared(self):
        self.write("model.json", json.dumps({**MODEL, "hidden_size": 48, "max_position_embeddings": 2048}))
        arguments = ["estimate", "--model", "model.json", "--batch-size", 1, "--seq-len"]
        self.refuses(*arguments, 1024, "--device", "cuda", says=["no kernel for heads of 12", "--allow-quadratic"])
        growth = {}
        for device, allow in (("cuda", ["--allow-quadratic"]), ("cpu", [])):
            short, longer, longest = (self.json(*arguments, tokens, "--device", device, *allow)["bytes"]["temporaries"]
                                      for tokens in (512, 1024, 2048))
            growth[device] = (longest - longer) / (longer - short)  # workspaces do not grow
        self.assertGreater(growth["cuda"], 3.5)
        self.assertLess(growth["cpu"], 2.5)

    def test_llama2_7b_needs_less_than_2_gib_of_ram(self):
        process = subprocess.Popen([SNUG, "estimate", "--model", "llama2-7b", "--batch-size", "1", "--seq-len", "4096",
                                    "--device", "cpu"], stdout=subprocess.PIPE, text=True)
        text = process.stdout.read()
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        self.assertEqual(process.returncode, 0)
        self.assertIn("6,738,415,616 parameters", text)
        self.assertLess(usage.ru_maxrss * 1024, 2 * 2**30)

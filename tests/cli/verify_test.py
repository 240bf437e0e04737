"""snug verify and train --verify: a plan changes what is kept, never what is computed."""
import json

from command import STEP, CommandTest


class Verify(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()

    def check_equal(self, *arguments):
        document = self.json("verify", *STEP, *arguments)
        self.assertIs(document["equal"], True)
        self.assertGreater(document["values"], 0)
        self.assertGreater(document["tensors"], 0)
        self.assertEqual(document["largest_difference"], 0)
        return document

    def test_budgets(self):
        whole = self.check_equal("--budget", "5MiB")
        self.assertEqual((whole["micro_batches"], whole["unsplit_difference"]), (1, None))
        split = self.check_equal("--budget", "5MiB", "--micro-batch", 2)
        self.assertEqual(split["tensors"], whole["tensors"])
        self.assertGreater(split["values"], whole["values"])  # two forwards
        self.assertEqual(split["micro_batches"], 2)
        self.assertLess(split["unsplit_difference"], 1e-6)
        self.check_equal("--budget", "4200000")  # where the planner splits
        self.check_equal("--budget", "1GiB")

    def test_half_precision(self):
        self.check_equal("--budget", "4MiB", "--precision", "bf16")

    def test_plans(self):
        self.succeeds("plan", *STEP, "--budget", "5MiB", "--out", "plan.json")
        self.check_equal("--plan", "plan.json")
        plan = self.read("plan.json")
        plan["fates"][1]["recompute"].pop()
        self.write("plan.json", json.dumps(plan))
        self.check_equal("--plan", "plan.json")

    def test_by_hand(self):
        for mode in ("cheap", "block"):
            self.check_equal("--recompute", mode)

    def test_in_words_and_without_leaving_anything(self):
        before = self.files()
        self.assertRegex(self.succeeds("verify", *STEP, "--budget", "5MiB"),
                         r"^(\d+) of \1 values unchanged, (\d+) of \2 gradients bit-equal to those of the plain step\n$")
        self.assertRegex(self.succeeds("verify", *STEP, "--budget", "5MiB", "--micro-batch", 2),
                         r"those of a plain step in the same 2 micro-batches; within \S+e-\d+ of the unsplit step's")
        self.assertEqual(self.files(), before)

    def test_a_budget_that_nothing_fits(self):
        self.assertIn("does not fit", self.does_not_fit("verify", *STEP, "--budget", "1MiB", "--json"))

    def test_one_of_three(self):
        budget, plan, recompute = ("--budget", "5MiB"), ("--plan", "plan.json"), ("--recompute", "cheap")
        for options in ((), budget + plan, budget + recompute, plan + recompute):
            with self.subTest(options):
                self.refuses("verify", *STEP, *options, says=["--budget", "--plan", "--recompute"])


class VerifiedTraining(CommandTest):
    RUN = ("train", "--steps", "1", *STEP, "--verify")

    def setUp(self):
        super().setUp()
        self.write_model()

    def test_it_says_so_and_goes_on(self):
        self.succeeds("train", "--steps", 1, *STEP, "--budget", "5MiB", "--out-dir", "without")
        out = self.succeeds(*self.RUN, "--budget", "5MiB", "--out-dir", "with")
        self.assertRegex(out, r"^verified +(\d+) of \1 values unchanged, (\d+) of \2 gradients bit-equal")
        self.assertEqual(self.losses("with"), self.losses("without"))
        self.assertEqual(self.read("with/plan.json"), self.read("without/plan.json"))

    def test_the_document_stays_alone_on_standard_output(self):
        result = self.snug(*self.RUN, "--recompute", "cheap", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])
        self.assertIn("verified", result.stderr)

    def test_there_must_be_something_to_verify(self):
        self.refuses(*self.RUN, says=["--verify", "--budget", "--plan", "--recompute"])

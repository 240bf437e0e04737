"""The budget holds: a run is planned into it, is refused where nothing fits, and is stopped where a plan was wrong."""
import json

from command import STEP, CommandTest

RUN = ("train", "--steps", "2", *STEP)


class Budget(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()
        plan = json.loads(self.snug("plan", *STEP, "--budget", "1B", "--json").stdout)
        self.peak = plan["plain"]["peak_bytes"]
        self.leanest = plan["predicted"]["peak_bytes"]

    def run_within(self, budget, *options):
        document = self.json(*RUN, "--budget", budget, *options)
        self.assertEqual(document["budget_bytes"], budget)
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])
        self.assertEqual(document["predicted"]["bytes"], document["measured"]["bytes"])
        self.assertLessEqual(document["measured"]["peak_bytes"], budget)
        self.assertIs(document["within_budget"], True)
        return document

    def test_a_run_passes_at_its_own_peak(self):
        self.assertEqual(self.run_within(self.peak)["measured"]["peak_bytes"], self.peak)

    def test_below_it_values_are_re_made(self):
        for budget in (self.peak - 1, self.peak * 6 // 10):
            with self.subTest(budget):
                regions = self.run_within(budget)["recompute"]["regions"]
                self.assertGreater(sum(region["dropped_bytes"] for region in regions), 0)

    def test_the_leanest_plan_splits_the_batch_and_runs_in_its_very_bytes(self):
        document = self.run_within(self.leanest, "--out-dir", "run")
        self.assertEqual(document["measured"]["peak_bytes"], self.leanest)
        self.assertEqual({path.name for path in (self.folder / "run").iterdir()},
                         {"config.json", "plan.json", "metrics.jsonl", "trace", "state"})
        config, plan = self.read("run/config.json"), self.read("run/plan.json")
        self.assertLess(config["micro_batch"], 4)
        for field in ("micro_batch", "accumulation", "budget_bytes"):
            self.assertEqual(plan[field], config[field])

    def test_one_byte_less_is_refused_with_what_fits(self):
        for options in ((), ("--json", "--out-dir", "run")):
            why = self.does_not_fit(*RUN, "--budget", self.leanest - 1, *options)
            for part in ("does not fit", "1 byte more", "parameters", "gradients", "optimizer", "what fits", "  --optimizer sgd ",
                         "  --precision bf16 "):
                self.assertIn(part, why)

    def test_plans_race_and_the_plan_of_the_run_repeats_it(self):
        document = self.json(*RUN, "--budget", self.peak * 7 // 10, "--race", "--out-dir", "raced")
        race = document["race"]
        self.assertEqual(len({one["micro_batch"] for one in race}), len(race))
        self.assertGreater(len(race), 1)
        taken = [one["micro_batch"] for one in race if one["taken"]]
        self.assertEqual(taken, [self.read("raced/plan.json")["micro_batch"]])
        self.assertTrue(all(one["seconds"] > 0 and one["predicted_seconds"] > 0 for one in race))
        self.json(*RUN, "--plan", "raced/plan.json", "--out-dir", "again")
        self.assertEqual(self.losses("again"), self.losses("raced"))
        self.assertNotIn("race", self.run_within(self.peak * 7 // 10), "two steps are not worth one")
        self.refuses(*RUN, "--budget", self.peak, "--race", "--data", "nope.txt", says=["nope.txt"])
        self.refuses(*RUN, "--budget", self.peak, "--race", "--out-dir", "raced", says=["raced", "already holds a run"])
        self.refuses(*RUN, "--budget", self.peak, "--race", "--resume", "--out-dir", "raced", says=["--race", "--resume"])
        alone = self.json(*RUN, "--budget", self.peak, "--race", "--micro-batch", 4, "--warmup", 1)
        self.assertEqual(alone["race"], [])
        self.refuses(*RUN, "--race", says=["--race", "--budget"])
        self.refuses(*RUN, "--budget", self.peak, "--race", "--no-race", says=["--race", "--no-race"])

    def test_a_budget_changes_no_loss_when_the_split_is_given(self):
        split = ("--micro-batch", 2, "--steps", 3)
        plain = self.json("train", *STEP, *split, "--out-dir", "plain")
        budget = plain["measured"]["peak_bytes"] * 4 // 5
        document = self.json("train", *STEP, *split, "--out-dir", "lean", "--budget", budget)
        self.assertLessEqual(document["measured"]["peak_bytes"], budget)
        self.assertEqual(self.read("lean/plan.json")["micro_batch"], 2)
        self.assertEqual(len(self.losses("plain")), 3)
        self.assertEqual(self.losses("lean"), self.losses("plain"))

    def test_a_split_by_the_planner_changes_the_loss_by_rounding_only(self):
        self.succeeds(*RUN, "--out-dir", "plain")
        self.succeeds(*RUN, "--out-dir", "lean", "--budget", self.leanest)
        for plain, lean in zip(self.losses("plain"), self.losses("lean"), strict=True):
            self.assertAlmostEqual(lean / plain, 1, delta=1e-6)

    def test_half_precision_holds_its_budget_too(self):
        plain = self.json(*RUN, "--precision", "bf16")["measured"]["peak_bytes"]
        self.run_within(plain * 7 // 10, "--precision", "bf16")


class Stopped(CommandTest):
    """A plan that was edited and no longer holds what it says."""

    def setUp(self):
        super().setUp()
        self.write_model()
        self.succeeds("plan", *STEP, "--budget", "5MiB", "--out", "plan.json")
        self.plan = self.read("plan.json")

    def check_stopped(self):
        self.write("plan.json", json.dumps(self.plan))
        result = self.snug(*RUN, "--json", "--plan", "plan.json", "--out-dir", "run")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertIn("this run will be stopped", result.stderr)
        report = result.stderr[result.stderr.index("snug: out of budget"):]
        for part in ("parameters", "optimizer", "activations", "region", "layers.", "to fit:"):
            self.assertIn(part, report)
        self.assertEqual(self.losses("run"), [])
        self.succeeds("report", "run/trace")  # shows why

    def test_when_nothing_is_re_made_any_more(self):
        for fate in self.plan["fates"]:
            fate["recompute"] = []
        self.check_stopped()

    def test_when_the_budget_is_a_byte_too_small(self):
        self.plan["budget_bytes"] = self.plan["predicted"]["peak_bytes"] - 1
        self.check_stopped()

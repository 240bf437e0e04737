"""snug plan: an answer for any budget, with or without the machine it is for."""
import json
import re

from command import STEP, CommandTest

CATEGORIES = {"parameters", "gradients", "optimizer", "inputs", "activations", "temporaries", "other"}
LEVERS = {"recompute", "offload", "micro_batch", "head_chunks"}


class PlanTest(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()

    def document(self, *arguments):
        """What --json prints, yes or no; anything else on standard output would break the parser."""
        result = self.snug("plan", *arguments, "--json")
        document = json.loads(result.stdout)
        self.assertEqual(result.returncode, 0 if document["fits"] else 1, result.stderr)
        self.assertEqual("does not fit" in result.stderr, not document["fits"])
        return document

    def plan(self, *arguments):
        return self.document(*STEP, *arguments)


class Documents(PlanTest):
    def check(self, document, batch_size=4):
        plain, predicted = document["plain"], document["predicted"]
        self.assertEqual(set(predicted["bytes"]), CATEGORIES)
        self.assertEqual(sum(predicted["bytes"].values()), predicted["peak_bytes"])
        self.assertEqual(predicted["host_bytes"], 0)
        self.assertLessEqual(document["bound_seconds"], predicted["step_seconds"])
        self.assertEqual(document["micro_batch"] * document["accumulation"], batch_size)
        self.assertEqual(document["fits"], predicted["peak_bytes"] <= document["budget_bytes"])
        self.assertEqual(document["missing_bytes"], max(0, predicted["peak_bytes"] - document["budget_bytes"]))
        levers = document["levers"]
        self.assertLessEqual({lever["name"] for lever in levers}, LEVERS)
        self.assertEqual(sum(lever["saved_bytes"] for lever in levers), plain["peak_bytes"] - predicted["peak_bytes"])
        self.assertAlmostEqual(sum(lever["cost_seconds"] for lever in levers),
                               predicted["step_seconds"] - plain["step_seconds"])

    def test_every_field_is_there_and_adds_up(self):
        for budget in ("1MiB", "4200000", "6MiB"):
            with self.subTest(budget):
                self.check(self.plan("--budget", budget))

    def test_the_head_is_cut_where_its_logits_are_large(self):
        document = self.document("--model", "llama-1.3b", "--hardware", "h200", "--batch-size", 8, "--seq-len", 4096,
                                 "--micro-batch", 2, "--budget", "28GiB")
        self.assertIn("head_chunks", [lever["name"] for lever in document["levers"]])
        self.assertEqual(document["head_chunks"], 4)

    def test_without_a_budget_it_is_the_plain_step(self):
        document = self.plan()
        self.check(document)
        self.assertEqual(document["levers"], [])
        self.assertEqual(document["predicted"]["peak_bytes"], document["plain"]["peak_bytes"])
        self.assertEqual(document["budget_bytes"], document["plain"]["peak_bytes"])
        run = self.json("train", "--steps", 1, *STEP)
        self.assertEqual(run["measured"]["peak_bytes"], document["plain"]["peak_bytes"])
        self.assertEqual(run["measured"]["bytes"], document["predicted"]["bytes"])

    def test_a_split_given_by_hand_stays(self):
        for split in (("--micro-batch", 2), ("--accumulation", 2)):
            document = self.plan(*split, "--budget", "1B")
            self.check(document)
            self.assertEqual((document["micro_batch"], document["accumulation"]), (2, 2))
            self.assertEqual({lever["name"] for lever in document["levers"]}, {"recompute"})


class Budgets(PlanTest):
    def test_the_missing_bytes_are_what_is_missing(self):
        missing = self.plan("--budget", "1MiB")["missing_bytes"]
        enough = self.plan("--budget", 2**20 + missing)
        self.assertIs(enough["fits"], True)
        self.assertEqual(enough["missing_bytes"], 0)
        one_less = self.plan("--budget", 2**20 + missing - 1)
        self.assertIs(one_less["fits"], False)
        self.assertEqual(one_less["missing_bytes"], 1)

    def test_more_memory_never_costs_time(self):
        seconds = [self.plan("--budget", budget)["predicted"]["step_seconds"]
                   for budget in range(4_200_000, 9_400_000, 1_000_000)]
        self.assertEqual(seconds, sorted(seconds, reverse=True))
        self.assertLess(seconds[-1], seconds[0])

    def test_the_sweep_goes_from_the_leanest_plan_to_the_plain_step(self):
        document = self.plan("--sweep", "--budget", "1B")
        sweep, plain = document["sweep"], document["plain"]
        peaks = [point["peak_bytes"] for point in sweep]
        seconds = [point["step_seconds"] for point in sweep]
        self.assertEqual(peaks, sorted(set(peaks)))
        self.assertEqual(seconds, sorted(seconds, reverse=True))
        self.assertEqual((peaks[0], peaks[-1]), (document["predicted"]["peak_bytes"], plain["peak_bytes"]))
        self.assertEqual(seconds[-1], plain["step_seconds"])
        again = self.plan("--budget", peaks[3])["predicted"]
        self.assertLessEqual(again["step_seconds"], seconds[3])

    def test_the_slowdown_is_the_limit_and_the_budget_the_smallest_within_it(self):
        sweep = self.plan("--sweep")["sweep"]
        for limit in (1, 1.04, 9):
            with self.subTest(limit):
                document = self.plan("--max-slowdown", limit)
                allowed = limit * document["plain"]["step_seconds"]
                self.assertLessEqual(document["predicted"]["step_seconds"], allowed)
                self.assertEqual(document["budget_bytes"], document["predicted"]["peak_bytes"])
                for point in sweep:
                    if point["peak_bytes"] < document["budget_bytes"]:
                        self.assertGreater(point["step_seconds"], allowed)
        self.assertEqual(document["budget_bytes"], sweep[0]["peak_bytes"])

    def test_in_words(self):
        out = self.succeeds("plan", *STEP, "--budget", "5MiB", "--sweep")
        for part in ("of plain", "slower", "Plain step", "Budget 5.0 MiB", "recompute", "Planned", "fastest possible",
                     "more would save", "less would cost"):
            self.assertIn(part, out)
        self.assertIn("the plain step fits", self.succeeds("plan", *STEP))
        why = self.does_not_fit("plan", *STEP, "--budget", "1MiB")
        for part in ("does not fit 1.0 MiB", "4.0 MiB", "3.0 MiB more", "that was tried fits either", "optimizer states alone"):
            self.assertIn(part, why)
        self.assertNotIn("--seq-len", why)


class Machines(PlanTest):
    def test_a_machine_that_is_not_here(self):
        result = self.snug("plan", "--hardware", "h200", "--model", "llama3-8b", "--batch-size", 8, "--seq-len", 8192,
                           "--budget", "6GiB", "--json")
        self.assertEqual(result.returncode, 1, result.stderr)
        document = json.loads(result.stdout)
        self.assertIs(document["fits"], False)
        self.assertEqual(document["missing_bytes"], document["predicted"]["peak_bytes"] - 6 * 2**30)
        self.assertEqual((document["states_on_host"], document["gradients_on_host"]), (100, 100))
        self.assertGreater(document["predicted"]["host_bytes"] / 8030261248, 12)  # bytes per parameter: exact AdamW in bf16
        for part in ("does not fit 6.00 GiB", f"{document['missing_bytes'] / 2**30:.2f} GiB more"):
            self.assertIn(part, result.stderr)
        for one in document["alternatives"]:
            self.assertIn(f"  {one['flags']} ", result.stderr)

    def test_sizes_that_make_a_gpu_slow_are_named(self):
        config = {"model_type": "llama", "vocab_size": 50257, "hidden_size": 1000, "intermediate_size": 2803, "num_hidden_layers": 2, "num_attention_heads": 12, "num_key_value_heads": 12,
                  "head_dim": 80, "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_act": "silu"}
        self.write("config.json", json.dumps(config))
        flags = ("plan", "--model", "config.json", "--seq-len", 64, "--budget", "20GiB")
        said = self.snug(*flags, "--hardware", "h200").stderr
        self.assertIn("snug: slow: intermediate_size 2803 is no multiple of 8", said)
        self.assertIn("snug: slow: head_dim 80: FlashAttention's kernels", said)
        self.assertNotIn("hidden_size 1000", said)
        self.assertNotIn("slow:", self.snug(*flags, "--device", "cpu").stderr)

    def test_a_machine_has_a_budget_of_its_own(self):
        document = self.plan("--hardware", "rtx4090")
        self.assertGreater(document["budget_bytes"], 20 * 2**30)
        self.assertLess(document["budget_bytes"], 24 * 2**30)
        self.assertIs(document["fits"], True)

    def test_the_host_budget_is_a_limit(self):
        arguments = ("--model", "tiny", "--batch-size", 8, "--seq-len", 512, "--micro-batch", 8, "--hardware", "h200",
                     "--budget", "1200MiB")
        self.assertGreater(self.json("plan", *arguments)["predicted"]["host_bytes"], 4 * 2**20)
        limited = self.json("plan", *arguments, "--host-budget", "4MiB")["predicted"]["host_bytes"]
        self.assertLessEqual(limited, 4 * 2**20)

    def test_what_does_not_fit_names_the_host_budget_if_that_is_why(self):
        arguments = ("--model", "llama-1.3b", "--batch-size", 4, "--seq-len", 512, "--hardware", "h200", "--budget",
                     "1GiB")
        without = self.does_not_fit("plan", *arguments)
        self.assertNotIn("--host-budget", without)
        least = re.search(r"the leanest plan needs (\S+ GiB)", without).group(1)
        limited = self.does_not_fit("plan", *arguments, "--host-budget", "1GiB")
        self.assertNotIn("--host-budget", limited)  # no size of it would do
        self.assertGreater(re.search(r"the leanest plan needs (\S+ GiB)", limited).group(1), least)
        self.assertRegex(self.does_not_fit("plan", *arguments[:-1], "10GiB", "--host-budget", "1GiB"), r"\n  --host-budget \d+GiB +\d")

    def test_what_is_said_to_fit_does(self):
        step = {"--model": "gpt2-medium", "--hardware": "h200", "--batch-size": 4, "--seq-len": 1024, "--budget": "2500MiB",
                "--host-budget": "2GiB"}
        arguments = lambda flags: [word for flag in flags.items() for word in flag]
        result = self.snug("plan", *arguments(step), "--json")
        self.assertEqual(result.returncode, 1, result.stderr)
        alternatives = json.loads(result.stdout)["alternatives"]
        self.assertIn("--host-budget", {one["flags"].split()[0] for one in alternatives})
        self.assertGreater(len(alternatives), 2, result.stderr)
        for one in alternatives:
            flag, value = one["flags"].split()
            with self.subTest(one["flags"]):
                document = self.json("plan", *arguments({**step, flag: value}))
                self.assertIs(document["fits"], True)
                self.assertLessEqual(document["predicted"]["step_seconds"], one["step_seconds"] * 1.001)

    def test_what_the_host_of_a_machine_is_too_small_for_fits_a_larger_one(self):
        arguments = ("--model", "qwen3-8b", "--batch-size", 1, "--hardware", "rtx4090")
        self.assertRegex(self.does_not_fit("plan", *arguments), r"\n  --host-budget \d+GiB +\d")
        self.assertRegex(self.succeeds("plan", *arguments, "--host-budget", "115GiB"), "Planned: .* tokens/s, micro-batch 1")

    def test_what_is_where_adds_up_when_states_wait_on_the_host(self):
        why = self.does_not_fit("plan", "--model", "llama-1.3b", "--batch-size", 4, "--seq-len", 512, "--hardware",
                                "h200", "--budget", "1GiB")
        rows = {name.strip(): float(size) * {"GiB": 1024, "MiB": 1}[unit] for name, size, unit in
                re.findall(r"^  (parameters|gradients|optimizer|the rest|on the host) *([\d.]+) (GiB|MiB)", why, re.M)}
        least = 1024 * float(re.search(r"the leanest plan needs (\S+) GiB", why).group(1))
        self.assertAlmostEqual(sum(size for name, size in rows.items() if name != "on the host"), least, delta=30)
        self.assertGreater(rows["on the host"], rows.get("optimizer", 0))

    def test_ranks_of_a_machine_share_its_host(self):
        arguments = ("--model", "gpt2-medium", "--hardware", "rtx4090", "--batch-size", 4, "--seq-len", 512, "--ranks", 4, "--zero-stage", 1,
                     "--budget", "3600MiB")
        alone, together = (self.json("plan", *arguments, "--ranks-per-machine", here) for here in (1, 4))
        self.assertGreater(alone["predicted"]["host_bytes"], 0)
        self.assertGreater(alone["stepped_on_host"], together["stepped_on_host"])

    def test_a_faster_machine_is_faster(self):
        h200, l4 = (self.plan("--hardware", name)["plain"]["step_seconds"] for name in ("h200", "l4"))
        self.assertLess(h200, l4)


class Written(PlanTest):
    def test_a_plan_runs_in_the_bytes_it_says(self):
        for budget in (4_200_000, 5_000_000, 7_000_000):
            with self.subTest(budget):
                document = self.plan("--budget", budget, "--out", "plan.json", "--force")
                written = self.read("plan.json")
                for field in ("budget_bytes", "micro_batch", "accumulation", "plain", "bound_seconds", "levers"):
                    self.assertEqual(written[field], document[field])
                run = self.json("train", "--steps", 2, *STEP, "--plan", "plan.json", "--out-dir", f"run-{budget}")
                self.assertEqual(run["budget_bytes"], budget)
                self.assertEqual(run["predicted"]["peak_bytes"], document["predicted"]["peak_bytes"])
                self.assertEqual(run["measured"]["peak_bytes"], document["predicted"]["peak_bytes"])
                self.assertEqual(run["measured"]["bytes"], document["predicted"]["bytes"])
                self.assertEqual(self.read(f"run-{budget}/plan.json"), written)

    def test_nothing_is_written_when_nothing_fits(self):
        self.does_not_fit("plan", *STEP, "--budget", "1MiB", "--out", "plan.json")

    def test_places_that_cannot_be_written(self):
        for out, says in (("missing/plan.json", "No such file"), (".", "directory")):
            self.refuses("plan", *STEP, "--out", out, says=[out, says])

    def test_a_file_that_is_there_stays_unless_asked(self):
        self.write("plan.json", "mine")
        self.refuses("plan", *STEP, "--budget", "5MiB", "--out", "plan.json", says=["plan.json exists already", "--force"])
        self.refuses("plan", *STEP, "--force", says="--force has no use without --out")

    def test_a_plan_for_another_machine_is_not_run_here(self):
        self.succeeds("plan", *STEP, "--hardware", "h200", "--out", "plan.json")
        self.refuses("train", *STEP, "--precision", "bf16", "--plan", "plan.json",
                     says=["plan.json", "device", "cuda", "cpu"])

"""snug train and profile as they should go: results, files, interruption."""
import json
import os
import signal
import subprocess
import time

from command import SMALL, SNUG, STEP, CommandTest

CATEGORIES = {"parameters", "gradients", "optimizer", "inputs", "activations", "temporaries", "other"}
MEASURED = {"peak_bytes": int, "reserved_bytes": int, "process_bytes": int, "host_bytes": int, "step_seconds": float}


class Train(CommandTest):
    def check_measured(self, measured):
        for field, kind in MEASURED.items():
            self.assertIsInstance(measured[field], kind, field)
        self.assertEqual(set(measured["bytes"]), CATEGORIES)
        self.assertEqual(sum(measured["bytes"].values()), measured["peak_bytes"])
        self.assertGreaterEqual(measured["reserved_bytes"], measured["peak_bytes"])

    def metrics(self, folder):
        text = (self.folder / folder / "metrics.jsonl").read_text()
        self.assertTrue(text.endswith("\n"), "a half-written line")
        return [json.loads(line) for line in text.splitlines()]

    def test_a_loss_that_is_no_number_ends_the_run(self):
        result = self.snug("train", "--steps", "9", *SMALL, "--lr", "1e30", "--out-dir", "run")
        self.assertEqual(result.returncode, 3, result.stderr)
        lines = self.metrics("run")
        self.assertRegex(result.stderr.splitlines()[-1], f"is (nan|infinite) at step {len(lines)}: .*--allow-nan")
        self.assertLess(len(lines), 9)

    def test_metrics_stay_json_when_the_loss_is_no_number(self):
        self.succeeds("train", "--steps", "3", *SMALL, "--lr", "1e30", "--allow-nan", "--out-dir", "run")
        lines = self.metrics("run")
        self.assertEqual(len(lines), 3)
        self.assertIsNone(lines[-1]["loss"])

    def test_json_has_the_fields_others_rely_on(self):
        text = self.write("book.txt", "to be or not to be, that is the question. " * 100)
        document = self.json("train", "--model", "tiny", "--data", text, "--steps", 3, "--lr", "1e-2", *SMALL)
        self.assertEqual(document["steps"], 3)
        self.assertFalse(document["interrupted"])
        self.assertIsNone(document["budget_bytes"])
        self.assertIs(document["within_budget"], True)
        for field in ("first_loss", "last_loss", "tokens_per_second"):
            self.assertIsInstance(document[field], float, field)
        self.assertLess(document["last_loss"], document["first_loss"])
        self.check_measured(document["measured"])
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])
        self.assertEqual(set(document["predicted"]["bytes"]), CATEGORIES)

    def test_the_first_line_says_where_the_weights_come_from(self):
        self.write_model()
        first = self.succeeds("train", "--steps", 1, "--seed", 3, *STEP, "--out-dir", "fresh").splitlines()[0]
        self.assertTrue(first.endswith(", fp32 on cpu, fresh weights (seed 3)"), first)
        step = [argument if argument != "model.json" else "fresh/state/step-1" for argument in STEP]
        first = self.succeeds("train", "--steps", 1, *step, "--no-save", "--out-dir", "next").splitlines()[0]
        self.assertTrue(first.endswith(", weights of fresh/state/step-1/model.safetensors"), first)

    def test_fp16_starts_at_a_scale_that_fits(self):
        self.write_model()
        document = self.json("train", "--precision", "fp16", "--steps", 3, *STEP, "--out-dir", "run")
        self.assertEqual(document["skipped_steps"], 0)
        self.assertEqual(document["loss_scale"], 65536)
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])
        self.assertEqual([(line["loss_scale"], line["skipped"]) for line in self.metrics("run")], [(65536, False)] * 3)
        for precision in ("fp32", "bf16"):
            other = self.json("train", "--precision", precision, "--steps", 1, *STEP)
            self.assertFalse({"skipped_steps", "loss_scale"} & set(other), precision)

    def test_steps_that_overflow_are_said_to_be_skipped_and_change_nothing(self):
        huge = ("train", "--precision", "fp16", "--loss-scale", 2**40, "--steps", 3, *SMALL)
        result = self.snug(*huge, "--out-dir", "run")
        self.assertEqual(result.returncode, 0, result.stderr)
        for step, scale in ((1, 2**40), (2, 2**39), (3, 2**38)):
            self.assertIn(f"step {step}/3 | skipped: the gradients overflowed at loss scale {scale}", result.stderr)
        self.assertIn(f"Skipped 3 of 3 steps, whose gradients overflowed; loss scale {2**37}", result.stdout)
        document = self.json(*huge)
        self.assertEqual((document["skipped_steps"], document["loss_scale"]), (3, 2**37))
        self.succeeds("train", "--precision", "fp16", "--lr", 0, "--steps", 3, *SMALL, "--out-dir", "frozen")
        self.assertEqual(self.losses("run"), self.losses("frozen"))

    def test_the_loss_scale_falls_until_steps_are_taken(self):
        self.write_model()
        document = self.json("train", "--precision", "fp16", "--loss-scale", 2**24, "--steps", 12, *STEP,
                             "--out-dir", "run")
        lines = self.metrics("run")
        self.assertTrue(lines[0]["skipped"])
        self.assertLess(document["skipped_steps"], 12)
        self.assertIsNone(lines[0]["gradient_norm"])
        self.assertEqual(document["skipped_steps"], sum(line["skipped"] for line in lines))
        self.assertEqual(document["loss_scale"], 2**24 / 2**document["skipped_steps"])
        for line, following in zip(lines, lines[1:]):
            self.assertEqual(following["loss_scale"], line["loss_scale"] / (2 if line["skipped"] else 1))

    def test_recomputation_lowers_the_peak_and_changes_no_loss(self):
        shape = ("--steps", 2, "--device", "cpu", "--batch-size", 2, "--seq-len", 128)
        plain = self.json("train", *shape)
        self.assertEqual(plain["recompute"], {"mode": "none", "regions": []})
        for mode in ("cheap", "block"):
            document = self.json("train", *shape, "--recompute", mode)
            self.assertEqual(document["last_loss"], plain["last_loss"])
            self.assertLess(document["measured"]["peak_bytes"], plain["measured"]["peak_bytes"])
            self.assertEqual(document["measured"]["peak_bytes"], document["predicted"]["peak_bytes"])
            block = next(region for region in document["recompute"]["regions"] if region["name"] == "layers.3")
            for field in ("kept_bytes", "dropped_bytes", "replays", "seconds"):
                self.assertGreater(block[field], 0, field)
            self.assertEqual(block["refused"], [])
        self.assertIn("layers.* (8)", self.succeeds("train", *shape, "--recompute", "block"))
        self.assertIn("Recompute cheap", self.succeeds("profile", *shape, "--recompute", "cheap", "--out", "a.trace"))

    def test_runs_without_options_in_numbered_directories(self):
        for number in (1, 2):
            self.assertIn(f"runs/tiny-{number}", self.succeeds("train", "--steps", 1, *SMALL))
        run = self.folder / "runs" / "tiny-2"
        self.assertEqual({path.name for path in run.iterdir()}, {"config.json", "metrics.jsonl", "trace", "state"})
        self.assertEqual(json.loads((run / "config.json").read_text())["model"], "tiny")

    def test_text_shows_prediction_and_measurement_side_by_side(self):
        out = self.succeeds("train", "--steps", 2, "--budget", "1GiB", *SMALL)
        for part in ("tiny:", "Predicted peak", "predicted", "measured", "allocated", "reserved", "outside", "held"):
            self.assertIn(part, out)

    def test_metrics_have_one_line_per_step(self):
        document = self.json("train", "--steps", 4, "--out-dir", "run", *SMALL)
        lines = self.metrics("run")
        self.assertEqual([line["step"] for line in lines], [1, 2, 3, 4])
        self.assertEqual(max(line["peak_bytes"] for line in lines), document["measured"]["peak_bytes"])
        self.assertAlmostEqual(lines[0]["loss"], document["first_loss"], places=6)

    def test_accumulation_is_micro_batch_the_other_way_round(self):
        losses = [self.json("train", "--steps", 2, *SMALL, *split)["last_loss"]
                  for split in (("--micro-batch", 1), ("--accumulation", 2), ("--micro-batch", 1, "--accumulation", 2))]
        self.assertEqual(losses, [losses[0]] * 3)

    def test_the_seed_decides_the_run(self):
        losses = [self.json("train", "--steps", 2, "--seed", seed, *SMALL)["last_loss"] for seed in (1, 1, 2)]
        self.assertEqual(losses[0], losses[1])
        self.assertNotEqual(losses[0], losses[2])

    def start_endless_run(self):
        process = subprocess.Popen([SNUG, "train", "--json", "--steps", "1000000", "--out-dir", "run", *SMALL],
                                   cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        metrics = self.folder / "run" / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < 2:
            self.assertIsNone(process.poll(), "the run ended by itself")
            time.sleep(0.02)
        return process

    def test_a_signal_ends_the_run_after_its_step(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number.name):
                process = self.start_endless_run()
                process.send_signal(number)
                out, err = process.communicate(timeout=60)
                self.assertEqual(process.returncode, 128 + number, err)
                document = json.loads(out)
                self.assertTrue(document["interrupted"])
                self.assertEqual([line["step"] for line in self.metrics("run")], list(range(1, document["steps"] + 1)))
                self.succeeds("report", "run/trace")
            (self.folder / "run").rename(self.folder / number.name)

    def test_a_second_signal_ends_the_process(self):
        process = self.start_endless_run()
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGTERM, signal.SIGCONT):  # both arrive within one step
            os.kill(process.pid, number)
        process.communicate(timeout=60)
        self.assertIn(process.returncode, (-signal.SIGINT, -signal.SIGTERM))

    def test_profile_writes_a_trace_and_guards_it(self):
        document = self.json("profile", "--out", "a.trace", *SMALL)
        self.assertEqual(document["trace"], "a.trace")
        self.check_measured(document["measured"])
        self.assertEqual(self.json("report", "a.trace")["peak_bytes"], document["measured"]["peak_bytes"])
        self.refuses("profile", "--out", "a.trace", *SMALL, says=["a.trace", "--force"])
        self.succeeds("profile", "--out", "a.trace", "--force", "--steps", 1, *SMALL)
        self.assertEqual(self.json("report", "a.trace")["steps"], 1)

"""Runs that are stopped, killed or cut off, and go on."""
import json
import os
import random
import resource
import signal
import subprocess
import time
import unittest

from command import MODEL, SNUG, CommandTest
from hardware_test import HARDWARE

RUN = ("train", "--model", "model.json", "--device", "cpu", "--batch-size", "4", "--seq-len", "32", "--data", "book.txt",
       "--shuffle", "3")
KILLS = int(os.environ.get("SNUG_KILLS", "6"))
WIDE = {**MODEL, "hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 2}  # its matrices are large enough to move
STATES_ON_HOST = ("--states-on-host", "all")
ALL_ON_HOST = (*STATES_ON_HOST, "--gradients-on-host", "all", "--weights-on-host", "all")
PLACEMENTS = [(), *((*shares, "--update", update) for shares in (STATES_ON_HOST, ALL_ON_HOST) for update in ("forward", "step"))]


class Resume(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()
        self.write("book.txt", "To be, or not to be, that is the question. " * 50)

    def state(self, run, step):
        return self.folder / run / "state" / f"step-{step}"

    def losses(self, run):
        lines = (self.folder / run / "metrics.jsonl").read_text().splitlines()
        return [(line["step"], line["loss"], line["gradient_norm"]) for line in map(json.loads, lines)]

    def assert_same_end(self, one, other, step):
        self.assertEqual(self.losses(one), self.losses(other))
        for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
            self.assertEqual((self.state(one, step) / name).read_bytes(), (self.state(other, step) / name).read_bytes(), name)

    def resumed(self, *flags, later=()):
        """12 steps at once against 5 and then 7."""
        self.succeeds(*RUN, *flags, "--steps", 12, "--out-dir", "whole")
        self.succeeds(*RUN, *flags, "--steps", 5, "--out-dir", "parts")
        document = self.json(*RUN, *flags, *later, "--steps", 12, "--out-dir", "parts", "--resume")
        self.assertEqual((document["steps"], document["resumed"], document["interrupted"]), (12, 5, False))
        self.assert_same_end("whole", "parts", 12)

    def test_five_and_seven_steps_are_twelve(self):
        self.resumed("--warmup", 4)

    def test_in_bf16_with_either_master(self):
        for master in ("split", "fp32"):
            with self.subTest(master):
                self.resumed("--precision", "bf16", "--master", master)
                subprocess.run(["rm", "-r", self.folder / "whole", self.folder / "parts"], check=True)

    def test_in_fp16_with_a_scale_that_has_moved(self):
        self.resumed("--precision", "fp16", "--loss-scale", 2**24)
        facts = json.loads((self.state("parts", 12) / "state.json").read_text())["facts"]
        self.assertLess(facts["loss_scale"]["scale"], 2**24)

    def test_with_momentum(self):
        self.resumed("--optimizer", "sgd", "--momentum", 0.9, "--lr", 0.01)

    def test_under_one_placement_after_the_other(self):
        self.write("model.json", json.dumps(WIDE))
        flags = (*RUN, "--precision", "bf16")
        self.succeeds(*flags, "--steps", 12, "--out-dir", "whole")
        some = ("--gradients-on-host", "50%", "--weights-on-host", "50%")
        placements = [*PLACEMENTS, some, (*ALL_ON_HOST, "--recompute", "block"), ("--states-on-host", "40%"), ()]
        for step, placement in enumerate(placements, start=1):
            self.succeeds(*flags, *placement, "--steps", step, "--out-dir", "parts", *(("--resume",) if step > 1 else ()))
        self.succeeds(*flags, *ALL_ON_HOST, "--steps", 12, "--out-dir", "parts", "--resume")
        self.assert_same_end("whole", "parts", 12)

    def test_under_a_host_budget_that_is_too_small_it_is_refused_and_nothing_changes(self):
        self.write("model.json", json.dumps(WIDE))
        self.succeeds(*RUN, *ALL_ON_HOST, "--steps", 2, "--out-dir", "run")
        before = {path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}
        result = self.snug(*RUN, *ALL_ON_HOST, "--host-budget", "1MiB", "--steps", 3, "--out-dir", "run", "--resume")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("1.0 MiB", result.stderr.splitlines()[-1])
        self.assertEqual({path: path.read_bytes() for path in self.folder.rglob("*") if path.is_file()}, before)
        self.succeeds(*RUN, *ALL_ON_HOST, "--steps", 3, "--out-dir", "run", "--resume")

    def test_under_a_host_budget_that_shrinks_it_is_planned_again(self):
        self.write("model.json", json.dumps(WIDE))
        link = dict.fromkeys(("to_host_rate", "to_device_rate", "both_ways_rate"), 1e10)
        self.write("hardware.json", json.dumps({**HARDWARE, **link}))
        self.succeeds(*RUN, "--steps", 4, "--no-save", "--out-dir", "whole")
        peak = self.json(*RUN, "--steps", 1, "--no-save", "--out-dir", "plain")["predicted"]["peak_bytes"]
        flags = (*RUN, "--micro-batch", 4, "--hardware", "hardware.json", "--budget", int(peak * 0.8))
        first = self.json(*flags, "--steps", 2, "--out-dir", "parts")
        less = first["measured"]["host_bytes"] - 4096
        self.assertGreater(less, 2**20)
        later = self.json(*flags, "--host-budget", less, "--steps", 4, "--out-dir", "parts", "--resume")
        self.assertLessEqual(later["measured"]["host_bytes"], less)
        self.assertTrue(later["within_budget"])
        self.assertEqual(self.losses("parts"), self.losses("whole"))

    def test_under_another_budget_whose_levers_lose_nothing(self):
        self.resumed(later=("--recompute", "block"))

    def test_without_a_budget_it_keeps_the_one_it_had_and_its_plan(self):
        budget = ("--budget", "4000000", "--host-budget", "2GiB")
        self.succeeds(*RUN, *budget, "--steps", 6, "--out-dir", "whole")
        self.succeeds(*RUN, *budget, "--steps", 3, "--out-dir", "parts")
        self.assertGreater(self.read("parts/config.json")["accumulation"], 1)
        result = self.snug(*RUN, "--steps", 6, "--out-dir", "parts", "--resume", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        document = json.loads(result.stdout)
        self.assertEqual((document["budget_bytes"], document["within_budget"]), (4000000, True))
        self.assertIn("budget  3.8 MiB, as this run had it\nplan    as this run had it\n", result.stderr)
        self.assertIn("weights of parts/state/step-3/model.safetensors", result.stderr)
        self.assertNotIn("warning", result.stderr)
        self.assertEqual(self.read("parts/config.json"), self.read("whole/config.json"))
        self.assert_same_end("whole", "parts", 6)
        result = self.snug(*RUN, "--recompute", "cheap", "--steps", 7, "--out-dir", "parts", "--resume", "--json")
        self.assertIn("snug: warning: the batch is now split 4 x 1, it was", result.stderr)
        self.assertIsNone(json.loads(result.stdout)["budget_bytes"])

    def test_a_run_that_is_done_is_left_alone(self):
        self.succeeds(*RUN, "--steps", 3, "--out-dir", "done")
        before = self.files()
        document = self.json(*RUN, "--steps", 3, "--out-dir", "done", "--resume")
        self.assertEqual((document["steps"], document["resumed"]), (3, 3))
        self.assertEqual(self.files(), before)
        for name in (".step-2.old", ".step-4.part"):  # as a kill leaves them
            (self.folder / "done" / "state" / name).mkdir()
        self.succeeds(*RUN, "--steps", 3, "--out-dir", "done", "--resume")
        self.assertEqual(self.files(), before)

    def test_lines_after_the_last_state_and_half_lines_are_written_again(self):
        self.succeeds(*RUN, "--steps", 6, "--out-dir", "whole")
        self.succeeds(*RUN, "--steps", 4, "--out-dir", "cut")
        metrics = self.folder / "cut" / "metrics.jsonl"
        metrics.write_text(metrics.read_text() + '{"step":5,"loss":1.5}\n{"step":6,"lo')
        self.succeeds(*RUN, "--steps", 6, "--out-dir", "cut", "--resume")
        self.assertEqual(self.losses("cut"), self.losses("whole"))

    def test_states_in_between_and_how_many_stay(self):
        self.succeeds(*RUN, "--steps", 7, "--save-every", 2, "--keep-last", 3, "--out-dir", "many")
        self.assertEqual(sorted(os.listdir(self.folder / "many" / "state")), ["step-4", "step-6", "step-7"])

    def test_a_schedule_that_ends_elsewhere_is_another_run(self):
        self.succeeds(*RUN, "--schedule", "cosine", "--steps", 2, "--out-dir", "run")
        self.refuses(*RUN, "--schedule", "cosine", "--steps", 4, "--out-dir", "run", "--resume", says=["step-2", "steps 2, now it is 4"])

    def test_states_without_their_run_are_not_written_over(self):
        self.succeeds(*RUN, "--steps", 2, "--out-dir", "run")
        for name in ("config.json", "metrics.jsonl", "trace"):
            (self.folder / "run" / name).unlink()
        self.refuses(*RUN, "--steps", 2, "--out-dir", "run", says=["state/step-2", "--resume"])
        self.succeeds(*RUN, "--steps", 3, "--out-dir", "run", "--resume")

    def test_a_full_disk_at_the_start_of_a_resume_loses_nothing(self):
        self.succeeds(*RUN, "--steps", 2, "--out-dir", "full")
        before = self.files()
        result = self.snug(*RUN, "--steps", 4, "--out-dir", "full", "--resume",
                           preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200)))
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertEqual(self.files(), before)
        self.succeeds(*RUN, "--steps", 4, "--out-dir", "full", "--resume")

    def test_nothing_is_saved_if_asked(self):
        self.succeeds(*RUN, "--steps", 2, "--no-save", "--out-dir", "none")
        self.assertFalse((self.folder / "none" / "state").exists())

    def test_a_state_is_a_model_for_another_run(self):
        self.succeeds(*RUN, "--steps", 3, "--out-dir", "first")
        self.succeeds(*RUN, "--steps", 4, "--out-dir", "whole")
        flags = [flag if flag != "model.json" else "first/state/step-3" for flag in RUN]
        document = self.json(*flags, "--steps", 1, "--no-save", "--out-dir", "second")
        self.assertLess(document["first_loss"], self.losses("first")[0][1])  # not from scratch

    def test_what_belongs_to_a_published_model_goes_along_even_if_its_folder_goes(self):
        self.succeeds(*RUN, "--steps", 1, "--out-dir", "first")
        model = self.folder / "model"
        self.state("first", 1).rename(model)
        (model / "state.json").unlink()
        (model / "tokenizer.json").write_text("{}")
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**config, "eos_token_id": 7}))
        flags = [flag if flag != "model.json" else "model" for flag in RUN]
        process = subprocess.Popen([SNUG, *flags, "--steps", "100000", "--out-dir", "second"], cwd=self.folder,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.wait_for_lines("second", 2, process)
        model.rename(self.folder / "gone")
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(60), 128 + signal.SIGINT)
        state = self.state("second", len(self.losses("second")))
        self.assertEqual((state / "tokenizer.json").read_text(), "{}")
        self.assertEqual(json.loads((state / "config.json").read_text())["eos_token_id"], 7)

        flags = [flag if flag != "model.json" else "gone/config.json" for flag in RUN]  # no weights there, nor a tokenizer
        steps = len(self.losses("second")) + 1
        self.succeeds(*flags, "--steps", steps, "--keep-last", 1, "--out-dir", "second", "--resume")
        state = self.state("second", steps)
        self.assertEqual((state / "tokenizer.json").read_text(), "{}")
        self.assertEqual(json.loads((state / "config.json").read_text())["eos_token_id"], 7)

    def test_data_counts_by_content(self):
        self.succeeds(*RUN, "--steps", 2, "--out-dir", "run")
        (self.folder / "book.txt").rename(self.folder / "moved.txt")
        flags = [flag if flag != "book.txt" else "moved.txt" for flag in RUN]
        self.succeeds(*flags, "--steps", 3, "--out-dir", "run", "--resume")
        self.write("moved.txt", "Not to be, or to be, that is the question. " * 50)
        self.refuses(*flags, "--steps", 4, "--out-dir", "run", "--resume", says=["step-3", "--data has another content"])

    def test_ctrl_c_and_sigterm_save(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(number):
                run = f"stopped-{number}"
                process = subprocess.Popen([SNUG, *RUN, "--steps", "100000", "--out-dir", run], cwd=self.folder,
                                           stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                                           preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL))
                self.wait_for_lines(run, 2, process)
                process.send_signal(number)
                if number == signal.SIGHUP:  # shell and kernel
                    process.send_signal(number)
                text = process.communicate(timeout=60)[0]
                self.assertEqual(process.returncode, 128 + number)
                done = len(self.losses(run))
                self.assertIn(f"Trained model: {run}/state/step-{done}\nStopped after {done} of 100000 steps: --resume", text)
                self.assertTrue(self.state(run, done).is_dir())
                self.succeeds(*RUN, "--steps", done + 2, "--out-dir", run, "--resume")
                self.assertEqual(len(self.losses(run)), done + 2)

    def test_ctrl_c_while_updates_wait_loses_none_of_them(self):
        self.write("model.json", json.dumps(WIDE))
        for shares in (STATES_ON_HOST, ALL_ON_HOST):
            with self.subTest(shares):
                run = f"stopped-{len(shares)}"
                process = subprocess.Popen([SNUG, *RUN, *shares, "--update", "forward", "--steps", "100000", "--out-dir", run],
                                           cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                self.wait_for_lines(run, 2, process)
                process.send_signal(signal.SIGINT)
                self.assertEqual(process.wait(60), 128 + signal.SIGINT)
                end = len(self.losses(run)) + 2
                self.succeeds(*RUN, "--steps", end, "--out-dir", run, "--resume")
                self.succeeds(*RUN, "--steps", end, "--out-dir", f"whole-{len(shares)}")
                self.assert_same_end(f"whole-{len(shares)}", run, end)

    def wait_for_lines(self, run, count, process):
        metrics = self.folder / run / "metrics.jsonl"
        while not metrics.exists() or metrics.read_text().count("\n") < count:
            self.assertIsNone(process.poll())
            time.sleep(0.01)

    def kill_somewhere(self, process, states, chance):
        """False if it ended before. Every other kill waits for a save and comes in the middle of it, or soon after."""
        end = time.monotonic() + chance.uniform(0.3, 1.2)
        waits_for_save, saved = chance.random() < 0.5, chance.randrange(4)
        while process.poll() is None:
            if not waits_for_save and time.monotonic() >= end:
                break
            if waits_for_save and any(states.glob(".*.part")):
                if saved == 0:
                    time.sleep(chance.uniform(0, 0.02))
                    break
                saved -= 1
                while process.poll() is None and any(states.glob(".*.part")):
                    pass
            time.sleep(0.0005)
        process.kill()
        return process.wait() != 0

    def test_a_kill_at_any_moment_loses_nothing_that_was_saved(self):
        """SNUG_KILLS times (100 for the figure), in a run that saves after every step and goes on under any placement."""
        steps, chance = 60, random.Random(os.environ.get("SNUG_SEED", "7"))
        self.write("model.json", json.dumps(WIDE))
        self.succeeds(*RUN, "--steps", steps, "--no-save", "--out-dir", "whole")
        expected = self.losses("whole")
        run, kills, in_saves = 0, 0, 0
        while kills < KILLS:
            name, run = f"killed-{run}", run + 1
            metrics, states = self.folder / name / "metrics.jsonl", self.folder / name / "state"
            (self.folder / name).mkdir()
            resume = ()
            while True:
                process = subprocess.Popen([SNUG, *RUN, *chance.choice(PLACEMENTS), "--steps", str(steps), "--save-every", "1",
                                            "--out-dir", name, *resume],
                                           cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                killed = kills < KILLS and self.kill_somewhere(process, states, chance)
                errors = process.communicate(timeout=120)[1]
                if not killed:
                    self.assertEqual(process.returncode, 0, errors)
                    break
                self.assertEqual(process.returncode, -signal.SIGKILL, errors)
                kills += 1
                in_saves += any(states.glob(".*.part"))
                if metrics.exists() and metrics.stat().st_size > 0 and not any(states.glob("step-*")):
                    break  # a step was taken, none was saved: it is refused to lose its line
                resume = ("--resume",) if (self.folder / name / "config.json").exists() else ()
            if not any(states.glob("step-*")):
                continue
            self.assertEqual(self.losses(name), expected)
            self.assertEqual(sorted(os.listdir(self.folder / name / "state")), [f"step-{steps - 1}", f"step-{steps}"])
        print(f"{kills} kills, {in_saves} of them in the middle of a save")

    def test_a_full_disk_leaves_the_state_before(self):
        self.write("model.json", json.dumps(WIDE))
        for number, placement in enumerate(PLACEMENTS):
            for save_every in (1, 2, 3):  # after the second of three steps, or the last
                with self.subTest(placement=placement, save_every=save_every):
                    run = f"full-{number}-{save_every}"
                    self.succeeds(*RUN, *placement, "--steps", 1, "--out-dir", run)
                    size = (self.state(run, 1) / "optimizer.safetensors").stat().st_size
                    result = self.snug(*RUN, *placement, "--steps", 3, "--save-every", save_every, "--out-dir", run, "--resume",
                                       preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size // 2, size // 2)))
                    self.assertEqual(result.returncode, 3, result.stderr)
                    self.assertIn("optimizer.safetensors: cannot write", result.stderr)
                    self.assertIn("step-1 is whole", result.stderr)
                    self.assertEqual(os.listdir(self.folder / run / "state"), ["step-1"])
                    self.succeeds(*RUN, *placement, "--steps", 3, "--out-dir", run, "--resume")

    def test_a_nan_ends_the_run_and_the_state_before_stays(self):
        self.succeeds(*RUN, "--steps", 2, "--lr", 1e30, "--clip", 0, "--allow-nan", "--no-save", "--out-dir", "check")
        result = self.snug(*RUN, "--steps", 9, "--lr", 1e30, "--clip", 0, "--save-every", 1, "--out-dir", "nan")
        self.assertEqual(result.returncode, 3, result.stderr)
        self.assertIn("nan at step", result.stderr)
        self.assertIn("step-1", os.listdir(self.folder / "nan" / "state"))


class BadState(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()
        self.write("book.txt", "To be, or not to be, that is the question. " * 50)
        self.succeeds(*RUN, "--steps", 2, "--out-dir", "run")
        self.state = self.folder / "run" / "state" / "step-2"

    def refuses_to_resume(self, *flags, says):
        self.refuses(*RUN, "--steps", 4, "--out-dir", "run", "--resume", *flags, says=says)

    def test_a_flipped_byte(self):
        chance = random.Random(5)
        for name in ("model.safetensors", "optimizer.safetensors", "config.json", "state.json"):
            good = (self.state / name).read_bytes()
            for _ in range(5):
                place = chance.randrange(len(good))
                bad = bytearray(good)
                bad[place] ^= 1 << chance.randrange(8)
                if name == "state.json" and bad.split() == good.split():
                    continue
                with self.subTest(name=name, place=place):
                    (self.state / name).write_bytes(bad)
                    self.refuses_to_resume(says=["step-2/" + name if name != "state.json" else "step-2"])
            (self.state / name).write_bytes(good)

    def test_a_flipped_byte_is_found_by_whoever_reads_the_weights(self):
        model = self.state / "model.safetensors"
        data = bytearray(model.read_bytes())
        data[-1] ^= 1
        model.write_bytes(data)
        says = ["step-2/model.safetensors: is damaged"]
        self.refuses("train", "--model", self.state, "--device", "cpu", "--out-dir", "next", says=says)
        self.refuses("eval", "--model", self.state, "--device", "cpu", "--data", "book.txt", "--seq-len", 32, says=says)
        self.refuses("convert", self.state, "copy", says=says)

    def test_who_does_not_need_the_optimizer_does_not_read_it(self):
        (self.state / "optimizer.safetensors").unlink()
        self.succeeds("convert", self.state, "copy", "--dtype", "bf16")
        self.succeeds("eval", "--model", self.state, "--device", "cpu", "--data", "book.txt", "--seq-len", 32)
        self.refuses("convert", self.state, "exact", "--dtype", "fp32", says="optimizer.safetensors")

    def test_damage_comes_with_advice_that_is_true(self):
        (self.state / "state.json").write_text("{")
        self.refuses_to_resume(says=["step-2/state.json", "no other state"])
        self.succeeds(*RUN, "--steps", 3, "--save-every", 1, "--out-dir", "two")
        last = self.folder / "two" / "state" / "step-3"
        (last / "model.safetensors").unlink()
        self.refuses(*RUN, "--steps", 4, "--out-dir", "two", "--resume", says=["set two/state/step-3 aside", "after step 2"])
        last.rename(self.folder / "aside")
        self.assertEqual(self.json(*RUN, "--steps", 4, "--out-dir", "two", "--resume")["resumed"], 2)

    def test_a_file_that_is_cut_short_or_gone(self):
        for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
            good = (self.state / name).read_bytes()
            (self.state / name).write_bytes(good[:-20])
            self.refuses_to_resume(says=["step-2/" + name])
            (self.state / name).unlink()
            self.refuses_to_resume(says=["step-2/" + name])
            (self.state / name).write_bytes(good)

    def test_another_run(self):
        for flags, says in [(("--lr", "0.5"), "lr 0.0003, now it is 0.5"), (("--weight-decay", "0.2"), "weight_decay 0.01, now it is 0.2"),
                            (("--precision", "bf16"), "precision"), (("--optimizer", "sgd"), "optimizer"), (("--seed", "9"), "seed"),
                            (("--optimizer", "sgd", "--momentum", "0.9", *STATES_ON_HOST), "optimizer")]:
            with self.subTest(flags):
                self.refuses_to_resume(*flags, says=["step-2", says])

    def test_another_master(self):
        """A tie is rounded to the even weight beside a whole master, and away from zero if it is split."""
        for before, now in (("split", "fp32"), ("fp32", "split")):
            self.succeeds(*RUN, "--precision", "bf16", "--master", before, "--steps", 2, "--out-dir", before)
            self.refuses(*RUN, "--precision", "bf16", "--master", now, "--steps", 4, "--out-dir", before, "--resume",
                         says=[f'{before}/state/step-2: this run had master "{before}", now it is "{now}"', "resume it as it was"])

    def test_another_model(self):
        self.write("model.json", json.dumps({**MODEL, "num_hidden_layers": 3}))
        self.refuses_to_resume(says=["step-2", "this run had architecture.num_hidden_layers 4, now it is 3"])

    def test_another_version(self):
        path = self.state / "state.json"
        path.write_text(path.read_text().replace('"version": 2', '"version": 3'))
        self.refuses_to_resume(says=["state.json", "version 3"])

    def test_no_run_to_resume(self):
        self.refuses(*RUN, "--out-dir", "nowhere", "--resume", says="holds no run")
        self.refuses(*RUN, "--resume", says="--out-dir")
        self.refuses(*RUN, "--no-save", "--save-every", 2, says="--no-save")


if __name__ == "__main__":
    unittest.main()

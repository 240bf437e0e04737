"""Several processes that train one model: the same numbers at every stage, and one end for all."""
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import time
import unittest

from command import SNUG, CommandTest
from hardware_test import HARDWARE

MODEL = {"model_type": "llama", "vocab_size": 256, "hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 128}
RUN = ("train", "--model", "model.json", "--device", "cpu", "--seq-len", "16", "--data", "book.txt", "--shuffle", "3")
KILLS, STOPS = int(os.environ.get("SNUG_KILLS", "4")), int(os.environ.get("SNUG_STOPS", "1"))
ALL = os.environ.get("SNUG_ALL_RANKS") == "1"
TIMEOUT = 10
ON_HOST = ("--states-on-host", "all", "--gradients-on-host", "all", "--weights-on-host", "all")


class Ranks(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("model.json", json.dumps(MODEL))
        self.write("book.txt", "To be, or not to be, that is the question. " * 50)
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(self.cache), "OMP_NUM_THREADS": "1"}

    def train(self, *flags, **options):
        """In processes of their own: a launcher starts its own program again."""
        return self.snug(*RUN, *flags, env=self.environment, **options)

    def trains(self, *flags):
        result = self.train(*flags, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def numbers(self, run):
        lines = (self.folder / run / "metrics.jsonl").read_text().splitlines()
        return [(line["step"], line["loss"], line["gradient_norm"]) for line in map(json.loads, lines)]

    def weights(self, run, step):
        files = sorted((self.folder / run / "state" / f"step-{step}").glob("*.safetensors"))
        return [(path.name, path.read_bytes()) for path in files]

    def as_ranks(self, *flags_of_ranks, verbs=(RUN, RUN), commands=None, **variables):
        """Two, as torchrun would start them, each with its flags."""
        commands = commands or [[SNUG, *verb, "--rank-timeout", str(TIMEOUT), *map(str, flags)]
                                for verb, flags in zip(verbs, flags_of_ranks, strict=True)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        everywhere = {"WORLD_SIZE": str(len(flags_of_ranks)), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **variables}
        ranks = [subprocess.Popen(command, cwd=self.folder, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  env={**self.environment, "RANK": str(rank), "LOCAL_RANK": str(rank), **everywhere})
                 for rank, command in enumerate(commands)]
        for rank in ranks:
            self.addCleanup(rank.communicate)
            self.addCleanup(rank.kill)
        return ranks

    def ended(self, ranks, seconds=60):
        return [(rank.communicate(timeout=seconds), rank.returncode) for rank in ranks]


class Stages(Ranks):
    def settings(self):
        """All of them, or pairs of every two values: (ranks, precision, clip, passes, more)."""
        more = ((), ("--states-on-host", "all"), ("--recompute", "block"), ("--recompute", "cheap", "--offload", "all"),
                ("--states-on-host", "all", "--update", "step"))
        if ALL:
            return itertools.product((1, 2, 3, 4), ("fp32", "bf16"), ("0", "0.5"), (1, 2), more)
        return [(2, "fp32", "0.5", 1, more[0]), (3, "bf16", "0.5", 2, more[1]), (4, "bf16", "0", 1, more[2]),
                (2, "bf16", "0", 2, more[1]), (3, "fp32", "0", 1, more[3]), (1, "fp32", "0.5", 2, more[4])]

    def test_have_the_same_bits_where_they_sum_at_the_same_moments(self):
        for number, (ranks, precision, clip, passes, more) in enumerate(self.settings()):
            flags = ("--batch-size", 12, "--accumulation", passes, "--precision", precision, "--clip", clip, *more, "--steps", 20)
            runs = [f"{number}-{stage}" for stage in range(4)]
            with self.subTest(ranks=ranks, precision=precision, clip=clip, passes=passes, more=more):
                for stage, run in enumerate(runs):
                    document = self.trains(*flags, "--ranks", ranks, "--zero-stage", stage, "--out-dir", run)
                    self.assertEqual(document["measured"]["peak_bytes"], document["predicted"]["peak_bytes"], run)
                    self.assertEqual(max(document["peak_bytes_of_ranks"]), document["measured"]["peak_bytes"])
                pairs = itertools.combinations(range(4), 2)
                for one, other in pairs:
                    if passes == 1 or ranks == 1 or (one < 2) == (other < 2):
                        self.assertEqual(self.numbers(runs[one]), self.numbers(runs[other]), (one, other))
                        models = [dict(self.weights(runs[stage], 20)) for stage in (one, other)]
                        for name in models[0]:
                            if name.startswith("model"):
                                self.assertEqual(models[0][name], models[1][name], (one, other, name))
                if precision == "fp32" and ranks > 1:
                    self.trains(*flags, "--out-dir", f"{number}-alone", "--no-save")
                    for (_, loss, _), (_, alone, _) in zip(self.numbers(runs[3]), self.numbers(f"{number}-alone"), strict=True):
                        self.assertAlmostEqual(loss, alone, delta=1e-6 * alone)

    def test_need_the_bytes_that_they_promise(self):
        """Of tiny on four ranks, bytes per parameter by category, but for one bucket."""
        for precision, master, of_states in (("fp32", (), 8), ("bf16", ("--master", "fp32"), 12), ("bf16", ("--master", "split"), 10)):
            weight = 4 if precision == "fp32" else 2
            for stage in (1, 2, 3):
                document = json.loads(self.succeeds("train", "--device", "cpu", "--batch-size", 4, "--seq-len", 16, "--steps", 2, "--no-save",
                                                    "--out-dir", f"{precision}{master}{stage}", "--precision", precision, *master,
                                                    "--ranks", 4, "--zero-stage", stage, "--json", env=self.environment))
                parameters = 5_869_824
                measured = document["measured"]["bytes"]
                self.assertEqual(measured, document["predicted"]["bytes"])
                block = (4 * 256 * 256 + 3 * 256 * 704) * weight  # whole while it runs, and the one after it
                for category, whole, from_stage, at_once in (("optimizer", of_states, 1, 0), ("gradients", weight, 2, 2 * block),
                                                             ("parameters", weight, 3, 2 * block)):
                    share = parameters * whole / (4 if stage >= from_stage else 1)
                    more = at_once if stage >= from_stage else 0
                    self.assertLess(measured[category], share + more + 64 * 1024, (precision, master, stage, category))

    def test_have_the_same_bits_with_their_pieces_on_the_host(self):
        gradients = ("--gradients-on-host", "all")
        half = ("--gradients-on-host", "50%", "--weights-on-host", "50%")
        cases = itertools.product((1, 2, 3, 4), ("fp32", "bf16", "fp16"), ("0", "0.5"), (1, 2)) if ALL else \
            ((2, "bf16", "0.5", 2), (3, "fp16", "0.5", 1), (2, "fp32", "0", 1))
        for number, (ranks, precision, clip, passes) in enumerate(cases):
            flags = ("--batch-size", 12, "--accumulation", passes, "--precision", precision, "--clip", clip, "--ranks", ranks, "--steps", 12)
            for stage, placements in ((2, (gradients,)), (3, ((*ON_HOST, "--recompute", "block"), half))):
                self.trains(*flags, "--zero-stage", stage, "--out-dir", f"{number}-{stage}")
                for placement in placements:
                    run = f"{number}-{stage}-{len(placement)}"
                    with self.subTest(ranks=ranks, precision=precision, clip=clip, passes=passes, stage=stage, placement=placement):
                        document = self.trains(*flags, "--zero-stage", stage, *placement, "--out-dir", run)
                        self.assertEqual(document["measured"]["peak_bytes"], document["predicted"]["peak_bytes"])
                        self.assertEqual(self.numbers(run), self.numbers(f"{number}-{stage}"))
                        self.assertEqual(self.weights(run, 12), self.weights(f"{number}-{stage}", 12))

    def test_whose_pieces_are_just_too_small_to_leave_do_as_the_others(self):
        """Of the four ranks the last one has 16,376 elements of a matrix, the others 16,392."""
        self.write("model.json", json.dumps({**MODEL, "hidden_size": 272, "intermediate_size": 241}))
        document = self.trains("--batch-size", 4, "--ranks", 4, "--zero-stage", 3, "--steps", 2, "--out-dir", "run", "--no-save", *ON_HOST)
        self.assertEqual(document["measured"]["peak_bytes"], document["predicted"]["peak_bytes"])
        for peak in document["peak_bytes_of_ranks"]:
            self.assertAlmostEqual(peak, document["predicted"]["peak_bytes"], delta=64 * 1024)

    def test_a_budget_below_their_states_sends_pieces_to_the_host(self):
        link = dict.fromkeys(("to_host_rate", "to_device_rate", "both_ways_rate"), 1e10)
        self.write("hardware.json", json.dumps({**HARDWARE, **link}))
        step = ("--batch-size", 4, "--ranks", 2, "--precision", "bf16", "--hardware", "hardware.json")
        planned = self.snug("plan", "--model", "model.json", "--device", "cpu", "--seq-len", 16, *step, "--budget", "1MiB", "--json")
        self.assertEqual(planned.returncode, 1, planned.stderr)
        planned = json.loads(planned.stdout)
        document = self.trains(*step, "--budget", planned["budget_bytes"] + planned["missing_bytes"], "--steps", 3, "--out-dir", "within")
        self.assertTrue(document["within_budget"])
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])
        self.assertEqual(document["zero_stage"], 3)
        config = json.loads((self.folder / "within" / "config.json").read_text())
        self.assertEqual(config["weights_on_host"], 100)

    def test_pieces_of_different_sizes_have_one_plan(self):
        plain = self.trains("--batch-size", 6, "--ranks", 3, "--zero-stage", 1, "--steps", 1, "--no-save", "--out-dir", "plain")
        document = self.trains("--batch-size", 6, "--ranks", 3, "--budget", plain["predicted"]["peak_bytes"] - 100_000, "--steps", 2,
                               "--out-dir", "within")
        self.assertTrue(document["within_budget"])

    def test_a_budget_chooses_the_stage(self):
        plain = self.trains("--batch-size", 4, "--ranks", 2, "--zero-stage", 1, "--steps", 1, "--no-save", "--out-dir", "plain")
        budget = plain["predicted"]["peak_bytes"] - 100_000
        document = self.trains("--batch-size", 4, "--ranks", 2, "--budget", budget, "--steps", 3, "--out-dir", "within")
        self.assertTrue(document["within_budget"])
        self.assertEqual(document["predicted"]["peak_bytes"], document["measured"]["peak_bytes"])
        self.assertGreater(document["zero_stage"], 1)
        planned = self.json("plan", "--model", "model.json", "--device", "cpu", "--seq-len", 16, "--batch-size", 4, "--ranks", 2,
                            "--budget", budget)
        self.assertEqual(planned["predicted"]["peak_bytes"], document["predicted"]["peak_bytes"])


class Saved(Ranks):
    flags = ("--batch-size", 12, "--precision", "bf16", "--accumulation", 1)

    def test_a_run_goes_on_at_another_stage_bit_by_bit(self):
        self.trains(*self.flags, "--ranks", 3, "--zero-stage", 2, "--steps", 8, "--out-dir", "whole")
        parts = ((3, ON_HOST), (0, ("--states-on-host", "none", "--gradients-on-host", "none", "--weights-on-host", "none")), (1, ()), (3, ON_HOST))
        for step, (stage, placement) in enumerate(parts, start=1):
            self.trains(*self.flags, "--ranks", 3, "--zero-stage", stage, *placement, "--steps", 2 * step, "--out-dir", "parts",
                        *(("--resume",) if step > 1 else ()))
        self.assertEqual(self.numbers("parts"), self.numbers("whole"))
        self.assertEqual(self.weights("parts", 8), self.weights("whole", 8))

    def test_a_run_goes_on_on_other_ranks_and_is_merged(self):
        alone = ("--batch-size", 12, "--precision", "fp32", "--accumulation", 1)
        self.trains(*alone, "--steps", 6, "--out-dir", "alone")
        self.trains(*alone, "--ranks", 4, "--zero-stage", 3, "--steps", 2, "--out-dir", "run")
        result = self.train(*alone, "--steps", 4, "--out-dir", "run", "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("the batch is now split 12 x 1, it was 3 x 1 on 4 ranks"), 1, result.stderr)
        result = self.train(*alone, "--ranks", 2, "--zero-stage", 1, "--steps", 6, "--out-dir", "run", "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr.count("warning"), 1, result.stderr)
        for (_, loss, _), (_, expected, _) in zip(self.numbers("run"), self.numbers("alone"), strict=True):
            self.assertAlmostEqual(loss, expected, delta=1e-6 * expected)
        evaluated = [self.json("eval", "--model", model, "--data", "book.txt", "--seq-len", 16)["loss"]
                     for model in ("run/state/step-6", "alone/state/step-6")]
        self.assertAlmostEqual(*evaluated, delta=1e-5)
        self.succeeds("convert", "run/state/step-6", "merged")
        self.assertEqual(self.json("eval", "--model", "merged", "--data", "book.txt", "--seq-len", 16)["loss"], evaluated[0])

    def test_a_file_that_is_missing_or_damaged_is_named_once(self):
        flags = (*self.flags, "--ranks", 2, "--zero-stage", 3, "--out-dir", "run", "--rank-timeout", TIMEOUT)
        self.trains(*flags, "--steps", 2)
        for name in ("model-rank-1-of-2.safetensors", "optimizer-rank-0-of-2.safetensors"):
            path = self.folder / "run" / "state" / "step-2" / name
            good = path.read_bytes()
            for bad in (None, good[:-1] + bytes([good[-1] ^ 1])):
                path.unlink()
                if bad:
                    path.write_bytes(bad)
                result = self.train(*flags, "--steps", 4, "--resume")
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
                self.assertIn(name, result.stderr)
                path.write_bytes(good)
        self.trains(*flags, "--steps", 4, "--resume")


class Ends(Ranks):
    flags = ("--batch-size", 12, "--ranks", 3, "--zero-stage", 3, "--precision", "bf16", "--rank-timeout", TIMEOUT)

    def children(self, process):
        children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def start(self, *flags):
        process = subprocess.Popen([SNUG, *map(str, (*RUN, *self.flags, *flags))], cwd=self.folder, text=True, env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.addCleanup(process.kill)
        return process

    def wait_for_step(self, run, step):
        metrics = self.folder / run / "metrics.jsonl"
        until = time.monotonic() + 60
        while not metrics.exists() or len(metrics.read_text().splitlines()) < step:
            self.assertLess(time.monotonic(), until)
            time.sleep(0.01)

    def goes_on(self, run, whole):
        result = self.train(*self.flags, "--steps", 30, "--save-every", 2, "--out-dir", run, "--resume")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.numbers(run), self.numbers(whole))
        self.assertEqual(self.weights(run, 30), self.weights(whole, 30))

    def broken(self, how, times, seconds):
        """Stop or kill a rank at some moment: all end in time with status 3 and one line, and the run goes on as if nothing were."""
        randomness = random.Random(os.environ.get("SNUG_SEED", "1"))
        self.trains(*self.flags, "--steps", 30, "--save-every", 2, "--out-dir", "whole")
        for number in range(times):
            run = f"{how.name}-{number}"
            process = self.start("--steps", 100_000, "--save-every", 2, "--out-dir", run, *(ON_HOST if number % 2 else ()))
            self.wait_for_step(run, randomness.randrange(1, 12))
            time.sleep(randomness.random() * 0.3)
            victim = randomness.randrange(3)
            ranks = self.children(process)
            self.assertEqual(len(ranks), 3)
            os.kill(ranks[victim], how)
            began = time.monotonic()
            _, errors = process.communicate(timeout=seconds + 30)
            took = time.monotonic() - began
            self.assertLess(took, seconds, errors)
            self.assertEqual(process.returncode, 3, errors)
            lines = [line for line in errors.splitlines() if line.startswith("snug: ") and "warning" not in line]
            self.assertEqual(len(lines), 1, errors)
            self.assertIn(f"rank {victim}", lines[0])
            for rank in ranks:
                self.assertFalse(pathlib.Path(f"/proc/{rank}").exists())
            saved = sorted(int(path.name.removeprefix("step-")) for path in (self.folder / run / "state").glob("step-*")) \
                if (self.folder / run / "state").exists() else []
            if not saved or saved[-1] > 30:  # it had got further than the run that it is compared with
                continue
            self.goes_on(run, "whole")

    def test_a_rank_that_is_killed_ends_all(self):
        self.broken(signal.SIGKILL, KILLS, TIMEOUT + 2)

    def test_a_rank_that_is_stopped_ends_all(self):
        self.broken(signal.SIGSTOP, STOPS, 2 * TIMEOUT + 2)

    def test_who_holds_the_store_is_stopped_and_the_others_end(self):
        ranks = self.as_ranks(*((("--batch-size", 4, "--steps", 100_000, "--no-save", "--out-dir", "run"),) * 2))
        self.wait_for_step("run", 2)
        ranks[0].send_signal(signal.SIGSTOP)
        (_, errors), status = self.ended(ranks[1:], 2 * TIMEOUT)[0]
        self.assertEqual(status, 3, errors)
        self.assertEqual(len([line for line in errors.splitlines() if line.startswith("snug: ")]), 1, errors)
        self.assertIn("rank 0 of 2", errors)

    def test_a_rank_that_is_killed_before_all_are_there_is_named(self):
        for victim in (0, 1):
            process = self.start("--steps", 100_000, "--no-save", "--out-dir", f"run-{victim}")
            while len(ranks := self.children(process)) < 3:
                time.sleep(0.01)
            os.kill(ranks[victim], signal.SIGKILL)
            _, errors = process.communicate(timeout=TIMEOUT + 10)
            self.assertEqual(process.returncode, 3, errors)
            self.assertEqual(len([line for line in errors.splitlines() if line.startswith("snug: ")]), 1, errors)
            self.assertIn(f"rank {victim}", errors)

    def test_ctrl_c_before_the_first_step_has_its_status(self):
        process = self.start("--steps", 100_000, "--no-save", "--out-dir", "run")
        while len(self.children(process)) < 3:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=TIMEOUT + 10)
        self.assertEqual(process.returncode, 130, errors)

    def test_ctrl_c_saves_and_stops_all_after_the_same_step(self):
        process = self.start("--steps", 100_000, "--out-dir", "run")
        self.wait_for_step("run", 3)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 130, errors)
        self.assertEqual(errors.count("stopping after this step"), 1, errors)
        done = self.numbers("run")[-1][0]
        self.trains(*self.flags, "--steps", done + 2, "--out-dir", "run", "--resume")
        self.trains(*self.flags, "--steps", done + 2, "--out-dir", "whole")
        self.assertEqual(self.numbers("run"), self.numbers("whole"))

    def test_a_launcher_that_is_killed_takes_its_ranks_along(self):
        process = self.start("--steps", 100_000, "--out-dir", "run")
        self.wait_for_step("run", 2)
        ranks = self.children(process)
        process.kill()
        process.communicate()
        until = time.monotonic() + 2 * TIMEOUT
        while any(pathlib.Path(f"/proc/{rank}").exists() for rank in ranks):
            self.assertLess(time.monotonic(), until)
            time.sleep(0.05)

    def test_out_of_memory_on_one_rank_is_said_once(self):
        flags = ("--batch-size", 12, "--ranks", 3, "--zero-stage", 0, "--rank-timeout", TIMEOUT)
        small = self.trains(*flags, "--steps", 1, "--no-save", "--out-dir", "plain")["predicted"]["peak_bytes"] // 3
        result = self.train(*flags, "--budget", small, "--out-dir", "run")
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertEqual(result.stderr.count("does not fit"), 1, result.stderr)


class Loops(Ranks):
    def test_a_loop_of_anybodys_under_a_session_at_every_stage(self):
        example = pathlib.Path(SNUG).parent / "07_ranks"
        alone = subprocess.run([example, "0"], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120)
        self.assertEqual(alone.returncode, 0, alone.stderr)
        losses = []
        for stage in range(4):
            ranks = self.as_ranks((), (), commands=([example, str(stage)],) * 2)
            ended = self.ended(ranks)
            self.assertEqual([status for _, status in ended], [0, 0], ended)
            self.assertIn(f"2 ranks, stage {stage}: loss ", ended[0][0][0])
            losses.append(ended[0][0][0].split("loss ")[1].split(",")[0])
        self.assertEqual(len(set(losses[:2])), 1, losses)
        self.assertEqual(len(set(losses[2:])), 1, losses)
        for loss in losses:
            self.assertAlmostEqual(float(loss), float(alone.stdout.split("loss ")[1].split(",")[0]), delta=2e-6)


def can_make_networks():
    made = subprocess.run(["ip", "netns", "add", f"snug-try-{os.getpid()}"], capture_output=True) if shutil.which("ip") else None
    if made and made.returncode == 0:
        subprocess.run(["ip", "netns", "del", f"snug-try-{os.getpid()}"], check=True)
        return True
    return False


@unittest.skipUnless(can_make_networks(), "network namespaces cannot be made here")
class Machines(Ranks):
    """Two machines with two ranks each, played by two network namespaces that a cable joins."""
    flags = ("--batch-size", 8, "--accumulation", 1, "--zero-stage", 3, "--precision", "bf16", "--rank-timeout", TIMEOUT)

    def setUp(self):
        super().setUp()
        self.names = [f"snug-{os.getpid()}-{side}" for side in "ab"]
        for name in self.names:
            self.ip("netns", "add", name)
            self.addCleanup(subprocess.run, ["ip", "netns", "del", name])
        cables = [f"snug{os.getpid() % 100000}{side}" for side in "ab"]
        self.ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for number, (name, cable) in enumerate(zip(self.names, cables, strict=True), start=1):
            self.ip("link", "set", cable, "netns", name)
            self.ip("-n", name, "address", "add", f"10.199.7.{number}/24", "dev", cable)
            for device in ("lo", cable):
                self.ip("-n", name, "link", "set", device, "up")

    def ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True)

    def start(self, *flags):
        ranks = []
        for rank in range(4):
            environment = {**self.environment, "RANK": str(rank), "LOCAL_RANK": str(rank % 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
                           "MASTER_ADDR": "10.199.7.1", "MASTER_PORT": "29517"}
            command = ["ip", "netns", "exec", self.names[rank // 2], SNUG, *RUN, *self.flags, *flags]
            ranks.append(subprocess.Popen(list(map(str, command)), cwd=self.folder, text=True, env=environment, stdout=subprocess.PIPE,
                                          stderr=subprocess.PIPE))
            self.addCleanup(ranks[-1].communicate)
            self.addCleanup(ranks[-1].kill)
        return ranks

    def listening(self, name):
        """Addresses, in the kernel's hexadecimal."""
        tables = subprocess.run(["ip", "netns", "exec", name, "cat", "/proc/net/tcp", "/proc/net/tcp6"], check=True, capture_output=True, text=True)
        fields = [line.split() for line in tables.stdout.splitlines()]
        return {line[1].split(":")[0] for line in fields if len(line) > 3 and line[3] == "0A"}

    def test_train_what_one_machine_trains_and_listen_nowhere_else(self):
        ranks = self.start("--steps", 200, "--no-save", "--out-dir", "two")
        until = time.monotonic() + 60
        while not (self.folder / "two" / "metrics.jsonl").exists():
            self.assertLess(time.monotonic(), until)
            time.sleep(0.02)
        self.assertEqual(self.listening(self.names[0]), {"0107C70A"})
        self.assertEqual(self.listening(self.names[1]), {"0207C70A"})
        for (_, errors), status in self.ended(ranks, 120):
            self.assertEqual(status, 0, errors)
        self.trains(*self.flags, "--ranks", 4, "--steps", 20, "--no-save", "--out-dir", "one")
        self.assertEqual(self.numbers("two")[:20], self.numbers("one"))

    def test_a_rank_that_is_killed_or_a_cable_that_is_cut_ends_all(self):
        for how in ("kill", "cut"):
            ranks = self.start("--steps", 100_000, "--save-every", 5, "--out-dir", how)
            metrics = self.folder / how / "metrics.jsonl"
            until = time.monotonic() + 60
            while not metrics.exists() or len(metrics.read_text().splitlines()) < 7:
                self.assertLess(time.monotonic(), until)
                time.sleep(0.02)
            if how == "kill":
                ranks[3].kill()
            else:
                self.ip("-n", self.names[1], "link", "set", "lo", "down")
                self.ip("-n", self.names[1], "link", "set", f"snug{os.getpid() % 100000}b", "down")
            began = time.monotonic()
            ended = self.ended(ranks, 2 * TIMEOUT)
            self.assertLess(time.monotonic() - began, TIMEOUT + 2)
            left = ended[:3] if how == "kill" else ended
            self.assertEqual([status for _, status in left], [3] * len(left), ended)
            lines = [line for (_, errors), _ in left for line in errors.splitlines() if line.startswith("snug: ")]
            # A machine that is cut off cannot know who has spoken on the other side.
            self.assertIn(len(lines), (1,) if how == "kill" else (1, 2), lines)
            result = self.train(*self.flags, "--ranks", 4, "--steps", len(metrics.read_text().splitlines()) + 1, "--out-dir", how, "--resume")
            self.assertEqual(result.returncode, 0, result.stderr)


class BadInput(Ranks):
    flags = ("--batch-size", 4, "--steps", 2, "--out-dir", "run")

    def named_once(self, ranks, *says, statuses=(2, 3)):
        ended = self.ended(ranks)
        self.assertTrue(all(status in statuses for _, status in ended), ended)
        lines = [line for (_, errors), _ in ended for line in errors.splitlines() if line.strip()]
        self.assertEqual(len(lines), 1, lines)
        for part in says:
            self.assertIn(part, lines[0])

    def test_ranks_that_train_something_else_are_named(self):
        self.write("other.txt", "Whether 'tis nobler in the mind to suffer " * 50)
        self.write("other.json", json.dumps({**MODEL, "num_hidden_layers": 1}))
        for other, says in ((("--seed", 5), "seed 0 and 5 on ranks 0 and 1"), (("--lr", 1), "lr "), (("--clip", 2), "clip "),
                            (("--host-budget", "1GiB"), "host_budget_bytes "), (("--save-every", 1), "save_every 0 and 1"), (("--zero-stage", 3), "zero_stage 1 and 3 on ranks 0 and 1"),
                            (("--backend", "gloo"), "backend auto and gloo on ranks 0 and 1")):
            with self.subTest(says):
                self.named_once(self.as_ranks(self.flags, (*self.flags, *other)), "ranks do not train the same", says)
        for flag, value, says in (("--data", "other.txt", "data "), ("--model", "other.json", "num_hidden_layers 2 and 1")):
            with self.subTest(says):
                other = list(RUN)
                other[other.index(flag) + 1] = value
                self.named_once(self.as_ranks(self.flags, self.flags, verbs=(RUN, other)), says)

    def test_ranks_that_go_on_from_different_states_are_refused(self):
        here = ("--batch-size", 4, "--out-dir", "here")
        for rank in self.ended(self.as_ranks(*(((*here, "--steps", 2),) * 2))):
            self.assertEqual(rank[1], 0, rank)
        before = self.weights("here", 2)
        resumed = (*here, "--steps", 4, "--resume")
        self.named_once(self.as_ranks(resumed, (*here, "--steps", 4)), "resume true and false")
        (self.folder / "there").mkdir()
        self.named_once(self.as_ranks(resumed, ("--batch-size", 4, "--out-dir", "there", "--steps", 4, "--resume")), "here", "there")
        self.assertEqual(self.weights("here", 2), before)

    def test_flags_of_one_rank_that_are_wrong_end_all(self):
        self.named_once(self.as_ranks(self.flags, (*self.flags, "--micro-batch", 3)), "micro-batch")

    def test_a_rank_that_is_there_twice_or_does_not_come_is_named(self):
        first, second = self.as_ranks(self.flags, self.flags)
        first.kill()
        (_, errors), status = self.ended([second])[0]
        self.assertEqual(status, 3)
        self.assertIn("rank 0", errors)

    def test_environments_that_make_no_sense_are_refused(self):
        for variables, says in (({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR is not set"),
                                ({"RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE must be at least 1, got 0"),
                                ({"RANK": "3", "WORLD_SIZE": "2"}, "RANK must be from 0 to 1, got 3")):
            result = self.snug(*RUN, *self.flags, env={**self.environment, **variables})
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn(says, result.stderr)

    def test_flags_that_make_no_sense_are_refused(self):
        self.flags = (*self.flags, "--no-save")
        for flags, says in ((("--ranks", 0), "--ranks must be at least 1"), (("--ranks", 3), "does not divide --batch-size 4"),
                            (("--ranks", 2, "--zero-stage", 4), "--zero-stage must be"),
                            (("--ranks", 2, "--backend", "mpi"), "--backend must be auto, nccl or gloo"),
                            (("--ranks", 2, "--backend", "nccl"), "NCCL needs a GPU of its own for each rank: rank 0 has no GPU"),
                            (("--zero-stage", 3, "--backend", "nccl"), "NCCL needs a GPU of its own for each rank: rank 0 has no GPU"),
                            (("--backend", "nccl"), "--backend has no use for one that trains by itself"),
                            (("--ranks", 2, "--zero-stage", 2, "--weights-on-host", "all"), "--weights-on-host is of pieces, which --zero-stage 3 makes; got 2"),
                            (("--ranks", 2, "--zero-stage", 1, "--gradients-on-host", "50%"), "--gradients-on-host is of pieces, which --zero-stage 2 and 3 make"),
                            (("--ranks", 2, "--zero-stage", 0, "--update", "backward", "--clip", 0), "--update backward")):
            with self.subTest(says):
                result = self.train(*self.flags, *flags)
                self.assertEqual(result.returncode, 2, result.stderr)
                self.assertIn(says, result.stderr)
                self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)


if __name__ == "__main__":
    unittest.main()

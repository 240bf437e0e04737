"""Options that make no sense: status 2, one line, nothing left behind."""
from command import SMALL, CommandTest


class BadFlags(CommandTest):
    def test_unknown_verbs_and_options(self):
        self.refuses(says="expected a verb")
        self.refuses("--model", "tiny", says="expected a verb")
        self.refuses("tarin", says=["tarin", "estimate, plan, train, eval, convert, tune, verify, profile, report or probe"])
        self.refuses("profile", "--plan", "plan.json", says=["--plan", "snug profile --help"])
        self.refuses("train", "--compress", "all", says="--compress")
        self.refuses("train", "--resume", says="--resume")
        self.refuses("estimate", "--budget", "1GiB", says="--budget")
        self.refuses("report", says="TRACE")

    def test_values_that_are_missing_or_given_twice(self):
        self.refuses("train", "--steps", says=["--steps", "needs a value"])
        self.refuses("train", "--data", "--steps", "3", says=["--data", "needs a value"])
        self.refuses("train", "--steps", 1, "--steps", 2, says=["--steps", "2 times"])
        self.refuses("train", "--json=3", says="--json")
        self.refuses("train", "--allow-quadratic=3", says="--allow-quadratic")
        self.refuses("train", "--verify=3", says="--verify")
        self.refuses("plan", "--sweep=3", says="--sweep")

    def test_numbers(self):
        for option, value in [("--batch-size", "abc"), ("--batch-size", "0"), ("--batch-size", "1e300"),
                              ("--batch-size", "2.5"), ("--steps", "-1"), ("--steps", "0"), ("--steps", "5x"),
                              ("--micro-batch", "0"), ("--accumulation", "-2"), ("--seq-len", "0"), ("--lr", "nan"),
                              ("--lr", "-1"), ("--lr", "inf"), ("--lr", "fast"), ("--clip", "-1"), ("--seed", "-1"),
                              ("--lr", "1e99"), ("--eps", "1e39"), ("--steps", "1e30"),
                              ("--beta1", "1.5"), ("--beta2", "1"), ("--warmup", "-1"), ("--shuffle", "x")]:
            with self.subTest(option=option, value=value):
                self.refuses("train", option, value, says=[option, value])
        for value in ("0", "-7e9", "7.5", "nan", "1e300", "seven"):
            with self.subTest(params=value):
                self.refuses("estimate", "--params", value, says=["--params", value])

    def test_sizes(self):
        for size in ("12Gib", "-3", "1e99GiB", "0", "0GiB", "GiB", "nan", "12 GiB", "99999999999GiB"):
            with self.subTest(size):
                self.refuses("train", "--budget", size, says=["--budget", size])
        for verb in ("plan", "tune", "verify"):
            self.refuses(verb, "--budget", "0", says="--budget")
        for verb in ("train", "plan", "tune", "verify"):
            self.refuses(verb, "--budget", "12", says=["--budget: 12 is 12 bytes", "12GiB?"])
        for verb in ("train", "plan"):
            self.refuses(verb, "--host-budget", "1048575", says=["--host-budget", "1048575GiB?"])

    def test_names(self):
        self.refuses("train", "--model", "gpt5", says=["gpt5", "tiny", "llama2-7b"])
        self.refuses("estimate", "--model", "gpt5", says=["gpt5", "tiny"])
        for flag in ("--states-on-host", "--gradients-on-host", "--weights-on-host"):
            self.refuses("train", flag, "0%", says=[flag, "from 1% to 100%, all or none", '"0%"'])
            self.refuses("train", flag, "all", "--budget", "1GiB", says=[flag, "chooses by hand"])
            self.refuses("verify", "--recompute", "block", flag, "all", says=[flag, "nothing is updated"])
        self.refuses("train", "--precision", "fp8", says=["--precision", "fp32", "bf16", "fp8"])
        self.refuses("train", "--optimizer", "adam", says=["--optimizer", "adamw", "sgd"])
        self.refuses("train", "--schedule", "step", says=["--schedule", "cosine"])
        self.refuses("train", "--recompute", "all", says=["--recompute", "none", "cheap", "block", "all"])
        self.refuses("train", "--decay", "none", says=["--decay", "matrices"])
        for device in ("gpu", "cuda:x", "cuda:-1", "cuda:99"):
            self.refuses("train", "--device", device, says=["--device", device])

    def test_what_only_half_precision_has(self):
        self.refuses("train", "--precision", "fp32", "--loss-scale", "8", says=["--loss-scale", "no use", "fp32"])
        self.refuses("train", "--precision", "fp16", "--loss-scale", "0.5", says=["--loss-scale", "at least 1"])
        self.refuses("train", "--master", "split", says=["--master", "fp32"])
        self.refuses("plan", "--precision", "fp16", "--master", "split", "--budget", "1GiB", says="--master split")
        self.refuses("train", "--master", "half", says=["--master", "split or fp32"])

    def test_batches_that_do_not_divide(self):
        self.refuses("train", "--batch-size", 8, "--accumulation", 3, says=["--accumulation 3", "--batch-size 8"])
        self.refuses("train", "--batch-size", 8, "--micro-batch", 3, says=["--micro-batch 3", "--batch-size 8"])
        self.refuses("train", "--batch-size", 8, "--micro-batch", 2, "--accumulation", 2,
                     says=["--micro-batch 2", "--accumulation 2"])

    def test_options_without_a_use(self):
        for option in ("--beta1", "--beta2", "--eps"):
            self.refuses("train", "--optimizer", "sgd", option, "0.5", says=[option, "sgd"])
        self.refuses("train", "--optimizer", "sgd", "--decay", "all", says=["--decay", "sgd"])
        self.refuses("train", "--momentum", "0.9", says=["--momentum", "adamw"])
        self.refuses("train", "--data", "synthetic", "--shuffle", 1, *SMALL, says="shuffle")
        for verb in ("train", "profile", "plan", "verify"):
            self.refuses(verb, "--allow-quadratic", *SMALL,
                         says=["--allow-quadratic has no use", "heads of 64 in fp32 on cpu"])
        self.refuses("estimate", "--model", "tiny", "--device", "cuda", "--allow-quadratic",
                     says=["--allow-quadratic has no use", "heads of 64 in bf16 on cuda"])
        self.refuses("estimate", "--params", "7e9", "--allow-quadratic", says=["--allow-quadratic", "--model"])

    def test_two_that_decide_the_same(self):
        self.refuses("train", "--budget", "1GiB", "--recompute", "cheap", says=["--budget", "--recompute"])
        self.refuses("train", "--plan", "plan.json", "--recompute", "block", says=["--plan", "--recompute"])
        self.refuses("train", "--budget", "1GiB", "--plan", "plan.json", says=["--budget", "--plan"])
        self.refuses("train", "--plan", "plan.json", "--micro-batch", 1, says=["plan", "--micro-batch"])
        self.refuses("train", "--plan", "plan.json", "--accumulation", 2, says=["plan", "--accumulation"])
        self.refuses("plan", "--budget", "1GiB", "--recompute", "cheap", says="--recompute")
        self.refuses("plan", "--budget", "1GiB", "--max-slowdown", 2, says=["--budget", "--max-slowdown"])

    def test_slowdowns(self):
        for value in ("0.9", "-1", "nan", "inf", "fast"):
            with self.subTest(value):
                self.refuses("plan", "--max-slowdown", value, says=["--max-slowdown", value])

    def test_hardware_for_nothing(self):
        self.refuses("train", "--hardware", "cpu", says=["--hardware", "--budget"])

    def test_schedules_without_steps(self):
        self.refuses("train", "--schedule", "cosine", "--steps", 5, "--warmup", 5, says=["--warmup 5", "--steps 5"])
        self.refuses("train", "--steps", 5, "--warmup", 6, says=["--warmup", "5", "6"])

    def test_estimates_that_make_no_sense(self):
        self.refuses("estimate", says=["--params", "--model"])
        self.refuses("estimate", "--params", "7e9", "--model", "tiny", says="not both")
        self.refuses("estimate", "--params", "7e9", "--batch-size", 1, says=["--batch-size", "--model"])
        self.refuses("estimate", "--params", "7e9", "--seq-len", 1, says=["--seq-len", "--model"])
        self.refuses("estimate", "--params", "7e9", "--precision", "fp32", "--master", "split", says="--master")
        self.refuses("estimate", "--params", "7e9", "--precision", "fp16", "--master", "split", says="--master split")
        self.refuses("estimate", "--params", "7e9", "--zero-stage", 4, "--ranks", 2, says="--zero-stage")
        self.refuses("estimate", "--params", "7e9", "--zero-stage", 3, says="--ranks")
        self.refuses("estimate", "--params", "7e9", "--ranks", 8, says="--zero-stage")
        self.refuses("estimate", "--params", "7e9", "--zero-stage", 1, "--ranks", 0, says="--ranks")

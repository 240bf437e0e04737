"""The examples of every --help, run as they stand, but for steps and sizes that would take long."""
import json
import re
import shlex
import shutil

from command import MODEL, CommandTest

VERBS = ("estimate", "plan", "train", "eval", "convert", "tune", "verify", "profile", "report", "probe")
QUICK = ("--model", "model.json", "--device", "cpu")


class Examples(CommandTest):
    def setUp(self):
        super().setUp()
        self.write("model.json", json.dumps({**MODEL, "max_position_embeddings": 1024}))
        self.write("book.txt", "To be, or not to be, that is the question. " * 300)
        self.write_tokens("held-out.bin", [7] * 1025)
        self.succeeds("train", *QUICK, "--batch-size", 1, "--seq-len", 16, "--steps", 1, "--precision", "bf16",
                      "--out-dir", "runs/book-1")
        state = self.folder / "runs" / "book-1" / "state"
        (state / "step-1").rename(state / "step-500")
        for name in ("Qwen3-0.6B", "Qwen3-8B"):
            shutil.copytree(state / "step-500", self.folder / name)
            (self.folder / name / "state.json").unlink()
        (self.folder / "runs" / "tiny-1").mkdir()
        for name in ("runs/tiny-1/trace", "snug.trace", "before.trace", "after.trace", "tiny.trace", "split.trace"):
            shutil.copy(self.folder / "runs" / "book-1" / "trace", self.folder / name)

    def examples(self, verb):
        """The commands, without what a shell would do with their output."""
        text = self.succeeds(verb, "--help").split("Examples:\n")[1]
        lines = re.findall(r"^  (snug .*)$", text, re.MULTILINE)
        self.assertGreater(len(lines), 1, text)
        return [[shlex.split(re.split("[|>]", command)[0])[1:] for command in line.split("&&")] for line in lines]

    def quick(self, helped, verb, *flags):
        """On the CPU; where steps are run, one step of a small model."""
        flags = list(flags)

        def replace(option, value, only_if_given=False):
            if option in flags:
                flags[flags.index(option) + 1] = value
            elif not only_if_given:
                flags.extend((option, value))

        if verb not in ("convert", "report") and "--hardware" not in flags:
            replace("--device", "cpu")
        if helped in ("train", "verify", "tune", "profile") and verb != "report":
            replace("--model", "model.json")
            for option, value in (("--warmup", "0"), ("--batch-size", "4"), ("--micro-batch", "1"), ("--seq-len", "1024")):
                replace(option, value, only_if_given=True)
            if verb in ("train", "profile"):
                replace("--steps", "1")
        return [verb, *flags]

    def run_examples(self, helped):
        for commands in self.examples(helped):
            for name in ("plan.json", "tiny.trace", "split.trace"):  # what the last one wrote is in no one's way
                if f"--out {name}" in " ".join(commands[0]):
                    (self.folder / name).unlink(missing_ok=True)
            for command in commands:
                with self.subTest(" ".join(command)):
                    self.succeeds(*self.quick(helped, *command))

    def test_examples(self):
        for verb in VERBS:
            if verb not in ("probe", "train", "verify"):
                self.run_examples(verb)
        self.succeeds("plan", *QUICK, "--budget", "150MiB", "--out", "plan.json", "--force")
        self.run_examples("verify")
        self.write("runs/book/config.json", "{}")  # for --resume
        self.run_examples("train")

    def test_what_probe_is_asked_for_is_known(self):
        for commands in self.examples("probe"):  # it would measure for many seconds
            self.refuses(*[flag for flag in commands[0] if flag != "llama3-8b" and flag != "--model"], "--model", "nobody",
                         says="no model nobody")

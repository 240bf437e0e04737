"""snug eval: the loss of saved models."""
from command import CommandTest

RUN = ("--device", "cpu", "--data", "book.txt", "--seq-len", "32")


class Eval(CommandTest):
    def setUp(self):
        super().setUp()
        self.write_model()
        self.write("book.txt", ("To be, or not to be, that is the question. " * 8)[:8 * 32 + 1])  # 8 windows

    def test_is_the_loss_that_the_next_step_finds(self):
        self.succeeds("train", "--model", "model.json", *RUN, "--steps", 3, "--save-every", 1, "--keep-last", 9, "--out-dir", "run")
        for step in (1, 2):
            for batch in (8, 3):
                document = self.json("eval", "--model", f"run/state/step-{step}", *RUN, "--batch-size", batch)
                self.assertEqual(document["tokens"], 8 * 32)
                self.assertAlmostEqual(document["loss"], self.losses("run")[step], delta=2e-6)
        self.assertIn("Loss ", self.succeeds("eval", "--model", "run/state/step-3", *RUN))

    def test_what_it_cannot_evaluate(self):
        self.refuses("eval", "--model", "tiny", *RUN, says="has no weights")
        self.refuses("eval", "--model", "model.json", *RUN, says="has no weights")
        self.succeeds("train", "--model", "model.json", *RUN, "--steps", 1, "--out-dir", "run")
        self.refuses("eval", "--model", "run/state/step-1", "--device", "cpu", says="--data")
        self.refuses("eval", "--model", "run/state/step-1", *RUN[:-1], 300, says="300")
        self.refuses("eval", "--model", "run", *RUN, says=["run is a run", "run/state/step-N"])
        self.refuses("eval", "--model", "run/state/step-1/model.safetensors", *RUN, says="give the folder")
        self.refuses("eval", *RUN, says="--model is missing")

    def test_weights_that_are_not_finite(self):
        self.succeeds("train", "--model", "model.json", *RUN, "--steps", 1, "--out-dir", "run")
        self.succeeds("convert", "run/state/step-1", "model")
        path = self.folder / "model" / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-4] + b"\xff\xff\xff\x7f")
        self.refuses("eval", "--model", "model", *RUN, says=["the loss is nan", "not finite"], status=3)
        result = self.snug("train", "--model", "model", *RUN, "--steps", 1, "--out-dir", "next")
        self.assertEqual(result.returncode, 3)
        self.assertIn("before anything was updated", result.stderr)

"""Plans as files: what is no plan, or one for another step, is refused before anything is made."""
import json

from command import MODEL, STEP
from plan_file import RUN, PlanFileTest


class Contents(PlanFileTest):
    def test_files_that_are_no_plan(self):
        for text, says in (("", "not valid JSON"), ("{", "not valid JSON"), ("[1]", "expected a JSON object"),
                           ('{"version": 2, "version": 2}', "twice"), (json.dumps(MODEL), "version")):
            with self.subTest(text):
                self.write("plan.json", text)
                self.refuses(*RUN, "--plan", "plan.json", says=["plan.json", says])
        self.refuses(*RUN, "--plan", "missing.json", says=["missing.json", "No such file"])
        self.refuses(*RUN, "--plan", ".", says="folder")
        self.refuses("verify", *STEP, "--plan", "missing.json", says=["missing.json", "No such file"])

    def test_unknown_keys(self):
        for where, place in (("", lambda plan: plan), ("step", lambda plan: plan["step"]),
                             ("predicted", lambda plan: plan["predicted"]), ("levers", lambda plan: plan["levers"][0]),
                             ("fates", lambda plan: plan["fates"][0])):
            with self.subTest(where):
                self.refuses_edited(lambda plan: place(plan).update(colour=1), "colour", where)

    def test_missing_keys(self):
        for key in ("version", "step", "budget_bytes", "micro_batch", "head_chunks", "predicted", "levers", "fates"):
            with self.subTest(key):
                self.refuses_edited(lambda plan: plan.pop(key), key, "missing")
        for outer, key in (("plain", "peak_bytes"), ("step", "torch")):
            with self.subTest(f"{outer}.{key}"):
                self.refuses_edited(lambda plan: plan[outer].pop(key), key, "missing")
        for key in ("regions", "recompute", "offload"):
            with self.subTest(f"fates.{key}"):
                self.refuses_edited(lambda plan: plan["fates"][0].pop(key), "fates", key, "missing")

    def test_values_of_the_wrong_kind(self):
        for key, value in (("version", "1"), ("version", 1), ("budget_bytes", "5MiB"),
                           ("budget_bytes", -1), ("budget_bytes", 2**63), ("micro_batch", 1.5), ("micro_batch", 0),
                           ("accumulation", "2"), ("predicted", []), ("step", []), ("bound_seconds", -1.0),
                           ("fates", "all")):
            with self.subTest(key=key, value=value):
                self.refuses_edited(lambda plan: plan.update({key: value}), key)
        self.refuses_edited(lambda plan: plan["predicted"].update(peak_bytes=-5), "predicted", "peak_bytes", "-5")

    def test_pieces_of_the_head_that_are_no_count(self):
        for value, says in ((-1, "0 (as usual) or more"), (1.5, "integer"), (2.0, "integer"), ("2", "integer"),
                            (True, "integer"), (None, "integer"), (2**63, "integer")):
            with self.subTest(value):
                self.refuses_edited(lambda plan: plan.update(head_chunks=value), '"head_chunks" must be', says,
                                    json.dumps(value))

    def test_splits_that_are_not_the_batch(self):
        for micro_batch, accumulation in ((3, 1), (2, 1), (8, 1)):
            with self.subTest(micro_batch=micro_batch, accumulation=accumulation):
                self.refuses_edited(lambda plan: plan.update(micro_batch=micro_batch, accumulation=accumulation),
                                    f"micro_batch {micro_batch}", f"accumulation {accumulation}", "--batch-size 4")


class OtherSteps(PlanFileTest):
    def test_other_options(self):
        def instead(option, value):
            return [value if before == option else word for before, word in zip(("", *RUN), RUN)]
        self.write("wide.json", json.dumps({**MODEL, "hidden_size": 128}))
        for arguments, says in ((instead("--seq-len", 32), ("seq_len 64", "32")),
                                (instead("--batch-size", 8), ("batch_size 4", "8")),
                                (instead("--model", "wide.json"), ("hidden_size",)),
                                ((*RUN, "--precision", "bf16"), ("precision", "fp32", "bf16")),
                                ((*RUN, "--optimizer", "sgd"), ("optimizer", "adamw", "sgd"))):
            with self.subTest(says[0]):
                self.refuses(*arguments, "--plan", "plan.json", says=["plan.json", "another step", *says])

    def test_another_machine(self):
        for key, value in (("torch", "1.0.0"), ("device", "cuda"), ("threads", 99)):
            with self.subTest(key):
                self.refuses_edited(lambda plan: plan["step"].update({key: value}), "another step", key,
                                    json.dumps(value))

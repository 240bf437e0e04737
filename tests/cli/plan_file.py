"""A plan on disk, to be edited and run."""
import copy
import json

from command import STEP, CommandTest

RUN = ("train", "--steps", "1", *STEP)


class PlanFileTest(CommandTest):
    """Starts with plan.json, which recomputes values in every layer to fit 5 MiB."""

    plan = None  # made once: it is the same for all

    def setUp(self):
        super().setUp()
        self.write_model()
        if PlanFileTest.plan is None:
            self.succeeds("plan", *STEP, "--budget", "5MiB", "--out", "plan.json")
            PlanFileTest.plan = self.read("plan.json")
        self.write("plan.json", json.dumps(self.plan))

    def edited(self, change):
        plan = copy.deepcopy(self.plan)
        change(plan)
        self.write("plan.json", json.dumps(plan))

    def refuses_edited(self, change, *says):
        self.edited(change)
        self.refuses(*RUN, "--plan", "plan.json", says=["plan.json", *says])

    def fate(self, plan, region):
        return next(fate for fate in plan["fates"] if region in fate["regions"])

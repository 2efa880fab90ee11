"""Job plans in which one step raises."""

from __future__ import annotations

from msgspec.structs import replace

from spyre.runtime.flex.scheduling import Stage
from spyre.runtime.flex.steps import JobPlan


class Failing:
    """A step that raises at one iteration, after the wrapped step has run the earlier ones."""

    def __init__(self, step, iteration=0):
        self.step, self.iteration = step, iteration
        self.step_type = step.step_type
        self.describe = step.describe

    @property
    def stage(self):
        inner = self.step.stage

        def run(context, first, last):
            if first <= self.iteration < last:
                if first < self.iteration:
                    inner.run(context, first, self.iteration)
                raise RuntimeError(f"{self.step_type} {self.iteration}")
            inner.run(context, first, last)

        return Stage(inner.engine, run, inner.is_prep)


def failing(plan: JobPlan, place: int, iteration: int = 0) -> JobPlan:
    """``plan`` with a fault in step ``place`` at ``iteration``."""
    steps = list(plan.steps)
    steps[place] = Failing(steps[place], iteration)
    return replace(plan, steps=tuple(steps))

"""When a round begins and when its result is merged: both follow from the number of optimizer steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

from geocomm.core.errors import InvalidArgumentError


@dataclass(frozen=True)
class Schedule:
    """Round r averages fragment r % P. Every fragment is due once in `every` steps, and merged `overlap` steps later.

    `overlap` is the least, where results may be late. Fragments are due one after the other (Streaming DiLoCo, arXiv
    2501.18512), at steps as far apart as whole numbers allow; `every` need not be a multiple of their number. Rounds
    begin and end in the order of their numbers. Steps are counted from 1: step s is the s-th optimizer step.
    """

    every: int
    """Optimizer steps between two rounds of a fragment (H)."""
    fragments: int
    """Their number (P)."""
    overlap: int
    """Optimizer steps from the beginning of a round to the merge of its result (tau), at least; 0: the site waits."""
    first_round: int = 0
    """The first of this schedule, of fragment 0; those before followed another one."""
    first_step: int = 0
    """The schedule counts steps from here."""

    def __post_init__(self) -> None:
        """Raise InvalidArgumentError for numbers that cannot be."""
        if not 0 <= self.overlap <= self.every:
            raise InvalidArgumentError(
                f"overlap is {self.overlap}; it must be from 0 to every ({self.every}): the result of a round is "
                "merged before its fragment is due again"
            )

    def fragment_of(self, number: int) -> int:
        """The fragment that round `number` averages."""
        return number % self.fragments

    @property
    def most_in_a_step(self) -> int:
        """Rounds that begin after one step, at most."""
        return -(-self.fragments // self.every)

    def begun_by(self, step: int) -> int:
        """How many rounds have begun after `step` steps: rounds 0 … n - 1."""
        cycle, rest = divmod(step - self.first_step, self.every)
        return self.first_round + cycle * self.fragments + rest * self.fragments // self.every

    def renewed(self, number: int, every: int) -> Schedule:
        """The schedule from round `number` on, which is one of fragment 0, with another `every`."""
        cycles = (number - self.first_round) // self.fragments
        return replace(self, every=every, first_round=number, first_step=self.first_step + cycles * self.every)
